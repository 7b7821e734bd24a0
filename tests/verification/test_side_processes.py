"""Jobs in forked processes: results, what they leave behind, faults, deaths, interruptions."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
import torch

import corpus
from cuir.spec.loading import as_specification
from cuir.spec.specification import Specification
from cuir.syntax.parser import parse
from cuir.verification import VerifyReport, numbers_stage, resource_limits, schedules_stage, side_processes, stages, verify
from cuir.verification.side_processes import SideProcesses, count_usable_processes

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")


class Observation:
    """Recorder of a list of numbers."""

    def __init__(self, trusted: bool = True) -> None:
        self.numbers: list[int] = []
        self.trusted = trusted

    def forget(self) -> None:
        self.numbers.clear()

    def export(self) -> Any:
        return list(self.numbers) if self.trusted else None

    def merge(self, state: Any) -> None:
        self.numbers += state

    def job(self, n: int) -> int:
        self.numbers.append(n)
        return n * n


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_each_job_runs_once_and_what_it_leaves_comes_back() -> None:
    observed = Observation()
    phases = [[lambda n=n: observed.job(n) for n in range(20)], [lambda n=n: observed.job(n) for n in range(100, 107)]]
    with SideProcesses(phases, observed, 3) as shared:
        assert shared.results(0) == [n * n for n in range(20)]
        assert sorted(observed.numbers) == list(range(20))
        assert shared.results(1) == [n * n for n in range(100, 107)]
        assert sorted(observed.numbers) == [*range(20), *range(100, 107)]
        pids = [s.pid for s in shared.sides]
    assert len(pids) == 3 and not any(map(is_alive, pids))


def test_a_job_that_raises_is_left_to_the_caller() -> None:
    observed = Observation()

    def fail() -> int:
        raise ValueError

    with SideProcesses([[lambda: observed.job(1), fail, lambda: observed.job(2)]], observed, 2) as shared:
        assert shared.results(0) == [1, None, 4]


def test_what_a_process_did_before_it_died_is_left_to_the_caller() -> None:
    """Without its state nothing of a phase counts; of others it does."""
    observed, local = Observation(), os.getpid()

    def die() -> int:
        if os.getpid() != local:
            os.kill(os.getpid(), signal.SIGKILL)
        return 0

    with SideProcesses([[lambda: observed.job(1)], [lambda: observed.job(2), die]], observed, 1 + 1) as shared:
        assert shared.results(0) == [1]
        assert shared.results(1)[1] is None
        assert len(observed.numbers) == 1 + (shared.results(1)[0] is not None)


def test_a_specification_that_is_not_trusted_disowns_the_results() -> None:
    observed = Observation(trusted=False)
    with SideProcesses([[lambda: observed.job(1), lambda: observed.job(2)]], observed, 2) as shared:
        assert shared.results(0) == [None, None] and observed.numbers == []


def test_results_that_cannot_be_sent_are_left_to_the_caller() -> None:
    observed = Observation()
    with SideProcesses([[lambda: lambda: 0, lambda: lambda: 1]], observed, 2) as shared:
        assert shared.results(0) == [None, None]


def test_processes_that_fall_silent_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource_limits, "SILENCE", 0.3)
    observed = Observation()
    with SideProcesses([[lambda: time.sleep(60), lambda: time.sleep(60)]], observed, 2) as shared:
        assert shared.results(0) == [None, None]
        assert not any(is_alive(s.pid) for s in shared.sides)


def test_an_error_in_the_caller_ends_the_processes() -> None:
    observed = Observation()
    with pytest.raises(KeyboardInterrupt), SideProcesses([[lambda: time.sleep(60), lambda: time.sleep(60)]], observed, 2) as shared:
        pids = [s.pid for s in shared.sides]
        raise KeyboardInterrupt
    assert len(pids) == 2 and not any(map(is_alive, pids))


@pytest.mark.thorough
def test_processes_end_with_a_parent_that_is_killed() -> None:
    text = """
import os, time
from cuir.verification.side_processes import SideProcesses
class Nothing:
    def forget(self): pass
    def export(self): return 0
    def merge(self, state): pass
with SideProcesses([[lambda: time.sleep(60), lambda: time.sleep(60)]], Nothing(), 2) as shared:
    time.sleep(0.2)
    print(*[s.pid for s in shared.sides], flush=True)
    time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(x) for x in parent.stdout.readline().split()]
        parent.kill()
    end = time.monotonic() + 10
    while any(map(_runs, pids)) and time.monotonic() < end:
        time.sleep(0.05)
    assert len(pids) == 2 and not any(map(_runs, pids))


def _runs(pid: int) -> bool:
    """Return whether a process runs; one that nobody has waited for yet does not."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_one_process_does_nothing() -> None:
    observed = Observation()
    with SideProcesses([[lambda: observed.job(1)]], observed, 1) as shared:
        assert shared.results(0) == [None] and not shared.sides


def test_a_machine_says_how_many_are_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUIR_PROCESSES", raising=False)
    for cores, processes in ((1, 1), (2, 2), (4, 3), (64, side_processes.MOST)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, n=cores: set(range(n)), raising=False)
        assert count_usable_processes() == processes
    monkeypatch.setenv("CUIR_PROCESSES", "1")
    assert count_usable_processes() == 1


# ---- of a verification


@pytest.fixture
def a_sixth(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sixth of what level quick asks."""
    for module, name, retained in (
        (schedules_stage, "make_schedule_cases", slice(1, 2)),
        (schedules_stage, "make_counted_cases", slice(0, 60, 9)),
        (schedules_stage, "make_ring_cases", slice(0, 1)),
        (schedules_stage, "make_empty_cases", slice(0, 1)),
        (stages, "choose_readout_lengths", slice(0, 1)),
        (numbers_stage, "make_number_cases", slice(0, 8)),
        (numbers_stage, "make_user_cases", slice(0, 1)),
    ):
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *arguments, real=real, retained=retained: real(*arguments)[retained])


def describe(report: VerifyReport) -> list[Any]:
    """All of a report but its times."""
    stages = [{k: v for k, v in s.as_json().items() if k != "seconds"} for s in report.stages]
    return [report.ok, stages, report.runs, report.unreached, report.short, report.steps, str(report.coverage), report.warnings]


def verify_text(text: str, processes: int) -> VerifyReport:
    spec = as_specification(corpus.specification("causal"), "causal")
    return verify(parse(text, "flash.cuir"), spec, consts={"D": 64, "BM": 128, "BN": 64}, shrink=False, processes=processes)


TEXT = corpus.kernels()["flash_fwd_sm90"].read_text(encoding="utf-8")


@pytest.mark.thorough
def test_a_report_does_not_depend_on_how_many_processes_made_it(a_sixth: None) -> None:
    alone, shared = (describe(verify_text(TEXT, n)) for n in (1, 3))
    assert alone == shared and alone[0]


@pytest.mark.thorough("the faults of gradients below take a quarter of the time")
@pytest.mark.parametrize(
    ("right", "wrong", "stage"),
    [
        ("k_empty[s].wait(phase ^ 1)", "k_empty[s].wait(phase)", "schedules"),
        ("return S, scale * LOG2E", "return S, scale * LOG2E * 1.02", "numbers"),
    ],
)
def test_a_fault_is_told_as_by_one_process(right: str, wrong: str, stage: str, a_sixth: None) -> None:
    text = TEXT.replace(right, wrong)
    alone, shared = (verify_text(text, n) for n in (1, 3))
    assert [s.name for s in alone.stages if s.verdict == "failed"] == [stage] == [s.name for s in shared.stages if s.verdict == "failed"]
    assert [d.as_json() for d in alone.diagnostics] == [d.as_json() for d in shared.diagnostics]


def gradients_verified(processes: int, right: str = "", wrong: str = "") -> VerifyReport:
    text = corpus.kernels()["flash_bwd_dq_f32"].read_text(encoding="utf-8")
    assert right in text
    spec = as_specification(corpus.specification("causal"), "causal")
    return verify(parse(text.replace(right, wrong), "gradients.cuir"), spec, consts={"D": 8, "BM": 64}, shrink=False, processes=processes)


@pytest.mark.thorough("two verifications of a backward kernel")
def test_kernels_of_gradients_share_their_runs(a_sixth: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where longer problems follow from runs of the schedules stage, and without autograd, which fails in forks of a process that uses a GPU."""
    local, differentiate = os.getpid(), torch.autograd.grad

    def grad(*arguments: Any, **options: Any) -> Any:
        if os.getpid() != local:
            raise RuntimeError("Unable to handle autograd's threading in combination with fork-based multiprocessing")
        return differentiate(*arguments, **options)

    monkeypatch.setattr(torch.autograd, "grad", grad)
    remaining: list[int] = []
    results = SideProcesses.results

    def count(shared: SideProcesses, phase: int) -> list[Any]:
        finished = results(shared, phase)
        remaining.append(sum(x is None for x in finished))
        return finished

    monkeypatch.setattr(SideProcesses, "results", count)
    wider: list[Any] = []

    def find(*arguments: Any) -> list[Any]:
        wider[:] = numbers_stage.make_number_cases(arguments[1], arguments[2], [], "quick")[:1]
        return list(wider)

    monkeypatch.setattr(schedules_stage, "find_wider_cases", find)
    monkeypatch.setattr(numbers_stage, "make_branch_draws", lambda *arguments: [])  # a sixth leaves many branches to draw for
    alone, shared = (describe(gradients_verified(n)) for n in (1, 3))
    assert alone == shared and alone[0] and wider and remaining == [0, 0, 0, 0]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("right", "wrong", "stage"),
    [
        ("k_empty[s].wait(phase ^ 1)", "k_empty[s].wait(phase)", "schedules"),
        ("return 1.0", "return 1.02", "numbers"),
    ],
)
def test_a_fault_of_gradients_is_told_as_by_one_process(right: str, wrong: str, stage: str, a_sixth: None) -> None:
    alone, shared = (gradients_verified(n, right, wrong) for n in (1, 3))
    assert [s.name for s in alone.stages if s.verdict == "failed"] == [stage] == [s.name for s in shared.stages if s.verdict == "failed"]
    assert [d.as_json() for d in alone.diagnostics] == [d.as_json() for d in shared.diagnostics]


@pytest.mark.thorough
def test_a_specification_that_changes_its_answers_is_found_in_side_processes(a_sixth: None) -> None:
    """Each process asks again at the end of its runs; what it did with other answers does not count."""
    calls = 0

    def changing(b: Any, h: Any, q: Any, k: Any) -> Any:
        nonlocal calls
        calls += 1
        return q >= k if calls < 12 else q > k

    report = verify(
        parse(TEXT, "flash.cuir"), Specification("changing", changing), consts={"D": 64, "BM": 128, "BN": 64}, shrink=False, processes=3
    )
    assert not report.ok
