"""Checks of CUDA kernels: schedules, findings told once, what an interruption keeps. The command's tests show the reports."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cuir.cuda import KernelCall, LoadedModule, load
from cuir.text.diagnostics import CuirError
from cuir.verification.cuda_runs import CudaCheck, collect_calls, list_schedules

SOURCE = Path(__file__).parent.parent / "ptx/kernels.cu"


def test_schedules_begin_with_those_that_are_no_draw() -> None:
    assert list_schedules(2) == ("together", "first")
    assert list_schedules(5) == ("together", "first", "last", "random:0", "random:1")


@pytest.mark.parametrize("made", [None, [], [3], "launch"])
def test_only_launches_are_launched(made: object) -> None:
    with pytest.raises(CuirError, match="returns a KernelCall, or a list of them"):
        collect_calls(made, lambda: made)


@pytest.fixture(scope="module")
def module() -> LoadedModule:
    return load(SOURCE, arch="sm_90")


@pytest.mark.nvcc
def test_a_finding_of_several_schedules_is_told_once(module: LoadedModule) -> None:
    def launch() -> KernelCall:
        return KernelCall(1, 128, torch.randn(1000), torch.zeros(1), 1000, kernel="reduce_faulty")

    report = CudaCheck(module, launch, replay="replay it: {}").run(list_schedules(4))
    assert not report.ok and report.launches == 4 and report.schedules == list_schedules(4)
    assert [d.code for d in report.findings] == ["R401", "M401"]  # the second under the schedule in which the read comes first
    told = [n.message for d in report.findings for n in d.notes if "replay" in n.message]
    assert told == ["replay: replay it: together", "replay: replay it: first"]


@pytest.mark.nvcc
def test_processes_find_what_one_finds(module: LoadedModule) -> None:
    def launch() -> list[KernelCall]:
        faulty = KernelCall(1, 128, torch.randn(1000), torch.zeros(1), 1000, kernel="reduce_faulty")
        return [KernelCall((2, 2), (32, 8), torch.randn(64, 64), torch.zeros(64, 64), 64, kernel="transpose_right"), faulty]

    alone, together = (CudaCheck(module, launch).run(list_schedules(5), jobs=jobs) for jobs in (1, 2))
    assert [str(d) for d in together.findings] == [str(d) for d in alone.findings] and alone.findings
    assert replace(together, findings=()) == replace(alone, findings=())


@pytest.mark.nvcc
def test_what_processes_found_before_an_interruption_is_kept(module: LoadedModule) -> None:
    def launch() -> KernelCall:
        return KernelCall(1, 128, torch.randn(1000), torch.zeros(1), 1000, kernel="reduce_faulty")

    def interrupt(text: str) -> None:
        if text.startswith("schedule 2 of"):
            raise KeyboardInterrupt

    check = CudaCheck(module, launch)
    with pytest.raises(KeyboardInterrupt):
        check.run(list_schedules(4), interrupt, jobs=2)
    report = check.make_report()
    assert "together" in report.schedules and [d.code for d in report.findings][:1] == ["R401"]


@pytest.mark.nvcc
def test_draws_are_the_same_under_each_schedule_and_the_callers_go_on(module: LoadedModule) -> None:
    drawn = []

    def launch() -> KernelCall:
        drawn.append(torch.randn(64 * 64).reshape(64, 64))
        return KernelCall((2, 2), (32, 8), drawn[-1], torch.zeros(64, 64), 64, kernel="transpose_right")

    state = torch.get_rng_state()
    report = CudaCheck(module, launch).run(list_schedules(3))
    assert report.ok and not report.varying and torch.equal(drawn[0], drawn[2]) and torch.equal(state, torch.get_rng_state())
    assert report.ctas == 12 and report.lane_instructions > 12 * 256


@pytest.mark.nvcc
def test_progress_tells_schedules_and_shares(module: LoadedModule) -> None:
    told = []
    launch = lambda: KernelCall(1, 32, *(torch.zeros(32, dtype=torch.int32) for _ in range(2)), kernel="warp_right")  # noqa: E731
    CudaCheck(module, launch).run(list_schedules(2), lambda text: told.append((str(text), text.share)))  # type: ignore[attr-defined]
    assert told == [("schedule 1 of 2: together", 0.0), ("schedule 2 of 2: first", 0.5)]
