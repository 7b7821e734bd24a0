"""Cells of a suite as tasks for GPUs: rows as they come, another kind of GPU, a lost worker. GPUs are made up."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from cuir.campaigns.tasks import Result, Task, TaskError
from cuir.cli.bench_tasks import measure_request, spread_over
from cuir.performance.suites.cell_benchmark import Cell
from cuir.performance.suites.results import Results
from cuir.performance.suites.suite_run import Planned, SuiteRun, run_calls, run_cells
from cuir.performance.timing.problem import Shape
from cuir.text.diagnostics import CuirError

CELLS = [Cell("causal", {}, "m", Shape(1, 2, 1, 64, n, 64)) for n in (64, 128, 256)]


class Gpus:
    """Executor that makes rows up, last cell first; the second cell's worker is lost."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []

    def describe(self) -> str:
        return "GPUs"

    def run(self, tasks: Sequence[Task]) -> Generator[Result]:
        self.tasks += tasks
        for number, task in reversed(list(enumerate(tasks))):
            cell = cast("dict[str, Any]", task.arguments[0])
            row = {**cell, "contenders": {"cuir": {"milliseconds": 1.0}}}
            yield Result(task.key, row) if number != 1 else Result(task.key, error=TaskError("its process died"))


@pytest.mark.parametrize("kind", ["backward", "forward"])
def test_rows_come_as_gpus_finish(kind: str, tmp_path: Path) -> None:
    results, gpus, finished = Results(tmp_path / "r.jsonl", {"suite": "s", "date": "today"}), Gpus(), list[tuple[int, str]]()
    suite = SuiteRun(CELLS, results, "f16", ["dense"], 2, 9.0, spread=spread_over(gpus, "a GPU", "origin"))

    def tell(count: Any) -> None:
        finished.append((count.finished, count.doing))

    def refuse(*arguments: object) -> Any:
        raise AssertionError("nothing is measured or compiled here")

    def plan(cell: Cell) -> Planned:
        return Planned(cell, "text", "k", ({"BM": 64},))

    assert run_calls(suite, kind, refuse, tell) if kind == "backward" else run_cells(suite, plan, refuse, refuse, refuse, tell)
    assert finished == [(n + 1, c.name) for n, c in enumerate(reversed(CELLS))]
    assert results.missing(CELLS, ["dense"]) == CELLS[1:2], "the next run measures what was lost"
    assert [r.get("failed") for r in results.rows] == [None, "its process died", None]
    assert all(t.gpus == 1 and t.arguments[2] == "a GPU" for t in gpus.tasks)
    request = cast("dict[str, Any]", gpus.tasks[0].arguments[1])
    assert request["origin"] == "origin" and request["do"] == ("cell" if kind == "forward" else "backward") and request["rounds"] == 2
    assert request.get("settings") == (None if kind == "backward" else [{"BM": 64}])


def test_a_cell_is_measured_on_the_named_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cuir.cli.bench_tasks.versions", lambda: {"device": "a GPU"})

    def ask(request: Mapping[str, object], seconds: float) -> dict[str, object]:
        return {**CELLS[0].as_json(), "asked for": request["do"]}

    row = measure_request(CELLS[0].as_json(), {"do": "cell"}, "a GPU", ask)
    assert isinstance(row, dict) and row["asked for"] == "cell"
    with pytest.raises(CuirError, match="results are of another") as caught:
        measure_request(CELLS[0].as_json(), {"do": "cell"}, "another", ask)
    assert caught.value.diagnostics[0].code == "U515"
