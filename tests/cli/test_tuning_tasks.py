"""`cuir tune` on a cluster: what one GPU finds, whichever task ends first; errors of the place. GPUs are made up."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from cuir.campaigns.tasks import Result, Task, run_task
from cuir.cli import tuning_tasks
from cuir.cli.tuning_tasks import CHECKED, TIMED, ClusterBench, check_settings
from cuir.performance.search import SearchOptions, SearchTask, tune
from cuir.performance.search.search import InTurns
from cuir.syntax.parser import parse
from cuir.syntax.types import F16
from cuir.text.diagnostics import CuirError
from tests.performance.search.fakes import SPACE, TEXT, FakeCompiler, FakeDevice, cost

FIXED = {"T": F16, "D": 64}
JOB = {"variant": "causal"}
VERDICTS = {(64, 96): "hangs", (128, 64): "wrong"}


class LastFirst:
    """Executor that runs the last task first."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []

    def describe(self) -> str:
        return "GPUs"

    def run(self, tasks: Sequence[Task]) -> Generator[Result]:
        self.tasks += tasks
        yield from map(run_task, reversed(tasks))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Mapping[str, object], str | None]]:
    """Jobs of tasks, whose GPU is a formula."""
    asked: list[tuple[Mapping[str, object], str | None]] = []

    @contextmanager
    def open_device(job: Mapping[str, object], device: str | None) -> Iterator[InTurns]:
        asked.append((job, device))
        yield InTurns(FakeDevice(lose_some, VERDICTS))

    monkeypatch.setattr(tuning_tasks, "_open", open_device)
    return asked


def lose_some(consts: Mapping[str, Any]) -> float:
    return float("nan") if consts["STAGES"] == 2 and consts["BM"] == 128 else cost(consts)


@pytest.mark.sweep(4)
@pytest.mark.parametrize("exhaustive", [False, True])
def test_a_cluster_finds_what_one_gpu_finds(exhaustive: bool, opened: list[tuple[Mapping[str, object], str | None]]) -> None:
    gpus, task, options = LastFirst(), SearchTask(parse(TEXT), None, FIXED, SPACE), SearchOptions(exhaustive=exhaustive)
    reports = [tune(task, bench, FakeCompiler(), options) for bench in (FakeDevice(lose_some, VERDICTS), ClusterBench(gpus, JOB, "a GPU"))]
    alone, together = ({str(o.consts): (o.status, o.why, o.milliseconds) for o in report.outcomes} for report in reports)
    assert together == alone and {"hangs", "wrong", "timed"} <= {status for status, _, _ in alone.values()}
    assert reports[0].best is not None and reports[1].best is not None and reports[0].best.consts == reports[1].best.consts
    assert all(t.gpus == 1 for t in gpus.tasks) and set(map(str, opened)) == {str((JOB, "a GPU"))}
    sizes = {f.__name__: max(len(t.arguments[1]) for t in gpus.tasks if t.function is f) for f in {t.function for t in gpus.tasks}}  # type: ignore[arg-type]
    assert sizes["check_settings"] <= CHECKED and sizes["time_settings"] <= TIMED and (not exhaustive or sizes["check_settings"] == CHECKED)


def test_another_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cuir.cli.bench_tasks.versions", lambda: {"device": "another"})
    with pytest.raises(CuirError, match="results are of a GPU") as caught:
        check_settings(JOB, [{"BM": 64}], "a GPU")
    assert caught.value.diagnostics[0].code == "U515"
    with pytest.raises(CuirError, match="results are of a GPU"):  # also where a task raises it
        list(ClusterBench(LastFirst(), JOB, "a GPU").check([{"BM": 64}]))


def test_a_place_is_for_the_search_of_settings(cuir: Callable) -> None:
    output = cuir("tune", "causal", "--choice", "--on", "ray")
    assert output.code == 2 and "U100" in output.err and "leave out --on" in output.err
    assert cuir("tune", "causal", "--on", "slurm").code == 2
