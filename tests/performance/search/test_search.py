"""The search with a GPU that is a formula: it finds the fastest that is right, what is wrong costs itself alone, and an interrupted search goes on."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path

import pytest

from cuir import CuirError, Program
from cuir.performance.search import SearchOptions, SearchTask, Space, tune
from cuir.performance.search.compiling import BuildResult
from cuir.performance.search.search import Outcome
from cuir.performance.search.space import plain
from cuir.performance.search.tuning_records import Journal
from cuir.syntax.types import F16
from tests.performance.search.fakes import SPACE, FakeCompiler, FakeDevice, cost, nan

FIXED = {"T": F16, "D": 64}


def read_best(report: object) -> dict:
    assert report.best is not None
    return {k: report.best.consts[k] for k in ("BM", "BN", "STAGES", "DYNAMIC")}


@pytest.mark.sweep(4)
@pytest.mark.parametrize("exhaustive", [False, True])
def test_the_fastest_is_found(program: Program, exhaustive: bool) -> None:
    device = FakeDevice(cost)
    report = tune(SearchTask(program, None, FIXED, SPACE), device, FakeCompiler(), SearchOptions(exhaustive=exhaustive))
    assert read_best(report) == {"BM": 128, "BN": 96, "STAGES": 3, "DYNAMIC": False} and report.complete
    assert report.count("pruned") >= 1 and all(
        o.why.startswith("M301") for o in report.outcomes if o.status == "pruned"
    )  # 8 stages of the large tiles
    assert all(c["D"] == 64 for c in device.checked)


def test_axis_by_axis_tries_less_than_everything(program: Program) -> None:
    few, all_of_them = (
        tune(SearchTask(program, None, FIXED, SPACE), FakeDevice(cost), FakeCompiler(), SearchOptions(exhaustive=e)) for e in (False, True)
    )
    assert len(few.outcomes) < len(all_of_them.outcomes) == 36


@pytest.mark.parametrize("status", ["wrong", "hangs", "fault"])
def test_what_is_not_right_is_never_timed(program: Program, status: str) -> None:
    device = FakeDevice(cost, {(128, 96): status})
    report = tune(SearchTask(program, None, FIXED, SPACE), device, FakeCompiler())
    assert read_best(report)["BN"] != 96 or read_best(report)["BM"] != 128
    assert not [c for c in device.timed if (c["BM"], c["BN"]) == (128, 96)] and report.count(status) >= 1
    assert next(o for o in report.outcomes if o.status == status).why == f"it {status}"


def test_spills_and_serialised_products_are_left_out(program: Program) -> None:
    def build(consts: Mapping) -> BuildResult:
        return BuildResult(spills=8) if consts["BN"] == 96 else BuildResult(serialised=1) if consts["BN"] == 64 else BuildResult()

    report = tune(
        SearchTask(program, None, {**FIXED, "STAGES": 2}, SPACE), FakeDevice(cost), FakeCompiler(build), SearchOptions(exhaustive=True)
    )
    assert (
        report.best is not None
        and report.best.consts["BN"] == 128
        and {o.why for o in report.outcomes if o.status == "flawed"}
        == {
            "8 bytes of spills",
            "1 warnings of serialised products",
        }
    )


def test_if_all_spill_the_least_is_taken(program: Program) -> None:
    report = tune(
        SearchTask(program, None, {**FIXED, "STAGES": 2}, SPACE),
        FakeDevice(cost),
        FakeCompiler(lambda c: BuildResult(spills=c["BN"])),
        SearchOptions(exhaustive=True),
    )
    assert report.best is not None and report.best.consts["BN"] == 64


def test_what_does_not_compile_is_said(program: Program) -> None:
    report = tune(
        SearchTask(program, None, FIXED, SPACE),
        FakeDevice(cost),
        FakeCompiler(lambda c: BuildResult("L010: no") if c["BM"] == 128 else BuildResult()),
    )
    assert read_best(report)["BM"] == 64 and report.count("refused") >= 3


def test_a_hang_while_timing_is_no_figure(program: Program) -> None:
    report = tune(SearchTask(program, None, FIXED, SPACE), FakeDevice(nan), FakeCompiler())
    assert report.best is None and report.count("hangs") >= 1 and report.count("timed") == 0


def test_ties_and_noise_keep_the_earlier(program: Program) -> None:
    jitter = itertools.cycle([1.0, 0.999, 1.001])
    retained: list[dict] = []
    tune(
        SearchTask(program, None, FIXED, SPACE),
        FakeDevice(lambda c: next(jitter)),
        FakeCompiler(),
        keep=lambda o: retained.append(o.consts),
    )
    assert retained[0]["BM"] == 64 and len(retained) == 2  # the start, and what the last turns gave


def test_given_consts_are_not_varied(program: Program) -> None:
    report = tune(SearchTask(program, None, {**FIXED, "BM": 64, "STAGES": 2}, SPACE), FakeDevice(cost), FakeCompiler())
    assert all(set(o.consts) == {"BN", "DYNAMIC"} for o in report.outcomes) and report.best is not None and report.best.consts["BN"] == 96


def test_defaults_are_no_second_candidate(program: Program) -> None:
    observed = [tuple(o.consts.items()) for o in tune(SearchTask(program, None, FIXED, SPACE), FakeDevice(cost), FakeCompiler()).outcomes]
    assert len(observed) == len(set(observed)) and all(len(s) == 4 for s in observed)


def test_without_a_device_candidates_are_only_listed(program: Program) -> None:
    compiler = FakeCompiler()
    report = tune(SearchTask(program, None, {**FIXED, "D": 128}, SPACE), None, compiler)
    assert {o.status for o in report.outcomes} == {"fits", "pruned"} and not compiler.settings and report.best is None


def test_the_limit_of_time_ends_the_search(program: Program) -> None:
    ticks = itertools.count()
    device = FakeDevice(cost)
    report = tune(
        SearchTask(program, None, FIXED, SPACE), device, FakeCompiler(), SearchOptions(limit=12, clock=lambda: float(next(ticks)))
    )
    assert not report.complete and len(device.timed) < 20


def test_an_interrupted_search_goes_on(program: Program, tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"

    class Interrupted(FakeDevice):
        def check(self, consts: Mapping) -> tuple[str, str]:
            if len(self.checked) == 5:
                raise KeyboardInterrupt
            return super().check(consts)

    verdicts = {(64, 96): "hangs"}
    with pytest.raises(KeyboardInterrupt):
        tune(SearchTask(program, None, FIXED, SPACE), Interrupted(cost, verdicts), FakeCompiler(), journal=Journal(path))
    assert path.exists()
    path.write_text(path.read_text(encoding="utf-8") + '{"consts": {"BM": 1', encoding="utf-8")  # the line that was being written
    finished = {tuple(sorted(e["consts"].items())) for e in Journal(path).entries.values()}
    device = FakeDevice(cost, verdicts)
    report = tune(SearchTask(program, None, FIXED, SPACE), device, FakeCompiler(), journal=Journal(path))
    assert read_best(report) == {"BM": 128, "BN": 96, "STAGES": 3, "DYNAMIC": False} and finished
    assert (("BM", 64), ("BN", 64)) in {entry[:2] for entry in finished}
    repeated = [c for c in device.checked if tuple(sorted(plain(c).items())) in finished]
    assert not repeated, "what was found before is not asked again"
    whole = FakeDevice(cost, verdicts)
    third = tune(SearchTask(program, None, FIXED, SPACE), whole, FakeCompiler(), journal=Journal(path))
    assert read_best(third) == read_best(report) and not whole.checked and whole.timed, "only the last turns are run again"


def test_a_journal_holds_whole_settings(program: Program, tmp_path: Path) -> None:
    """Figures for one value that was given do not serve another; settings with flaws are told with theirs, and compiled again."""
    path, spills = tmp_path / "journal.jsonl", lambda consts: BuildResult(spills=8 * (consts["BN"] == 96))
    for stages in (2, 3):
        device, compiler = FakeDevice(cost), FakeCompiler(spills)
        tune(SearchTask(program, None, {**FIXED, "STAGES": stages}, SPACE), device, compiler, journal=Journal(path))
        assert device.checked and all(c["STAGES"] == stages for c in (*device.checked, *compiler.settings))
    entries = [Outcome.of(e) for e in Journal(path).entries.values()]
    flawed = {(o.consts["STAGES"], o.consts["BN"], o.why) for o in entries if o.status == "flawed"}
    assert flawed == {(2, 96, "8 bytes of spills"), (3, 96, "8 bytes of spills")}
    assert all(FIXED.items() <= o.consts.items() for o in entries)
    repeated = FakeCompiler(spills)
    tune(SearchTask(program, None, {**FIXED, "STAGES": 3}, SPACE), FakeDevice(cost), repeated, journal=Journal(path))
    assert {c["BN"] for c in repeated.settings} == {96}


def test_a_space_for_another_kernel_is_an_error(program: Program) -> None:
    with pytest.raises(CuirError, match="no const parameter `BK`"):
        tune(SearchTask(program, None, FIXED, Space(({"BK": (64,)},), ())), FakeDevice(cost), FakeCompiler())
