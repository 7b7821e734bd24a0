"""Every schedule of small launches of attention kernels: right ones pass, a wrong one is refused by the exploration alone."""

from __future__ import annotations

from importlib.resources import files

import pytest

import corpus
from corpus.computes import COMPUTES
from cuir.attn.splicing.splice import transfer
from cuir.attn.verification.problems import make_small_attention_launches
from cuir.checking.checked import Checked
from cuir.checking.checker import check
from cuir.spec.loading import as_any, as_specification
from cuir.spec.specification import Specification
from cuir.syntax.nodes import Program
from cuir.syntax.parser import parse
from cuir.syntax.types import F16
from cuir.verification import check_exhaustively, schedules_stage, stages, verify
from cuir.verification.exhaustive import Explored

CONSTS = {"T": F16, "D": 64}
PLAIN = files("corpus").joinpath("programs/flash_fwd.cuir").read_text(encoding="utf-8")


def kernel(name: str) -> tuple[Program, Checked, Specification]:
    spec = as_specification(corpus.variant(name), name, {})
    program = parse(transfer(parse(PLAIN), spec).text, f"{name}.cuir")
    return program, check(program, None, CONSTS), spec


@pytest.mark.parametrize("name", ["causal", "sliding_window", "document"])
def test_right_kernels(name: str) -> None:
    text: list[str] = []
    result = check_exhaustively(*kernel(name), progress=text.append)
    assert [e.case for e in result] == [case for case, _ in make_small_attention_launches(128, 128, 2, 4, ring=2)]
    assert all(e.result.ok and e.result.alike for e in result) and len(text) > len(result)


CORPUS = {**corpus.programs(), **corpus.kernels()}


def explore_corpus(name: str, kernel: str, old: str = "", new: str = "") -> list[Explored]:
    """Explore small launches of a program of the corpus, in which one text may be replaced."""
    text, computed = CORPUS[name].read_text(encoding="utf-8"), COMPUTES[name][kernel]
    assert not old or text.count(old) == 1
    program = parse(text.replace(old, new) if old else text, f"{name}.cuir")
    names = {p.name for p in program.kernels()[kernel].params}
    consts = {n: v for n, v in {**CONSTS, **computed.tested}.items() if n in names}
    spec = as_any(corpus.specification(computed.specification), computed.specification)
    return check_exhaustively(program, check(program, kernel, consts), spec)


@pytest.mark.sweep(32)
@pytest.mark.parametrize(("name", "kernel"), [(n, k) for n, kernels in COMPUTES.items() for k in kernels])
def test_no_schedule_of_the_corpus_has_a_fault(name: str, kernel: str) -> None:
    result = explore_corpus(name, kernel)
    assert len(result) >= 6 and {e.result.verdict for e in result} == {"clean"} and all(e.result.alike for e in result)


@pytest.mark.parametrize(
    ("name", "kernel", "old"),
    [
        ("flash_fwd_sm75", "flash_fwd", "sync()                                       # V has landed for all"),
        ("flash_fwd_sm80", "flash_fwd", "sync()                                   # block i has landed for all"),
        ("decode_cache_sm80", "flash_decode", "sync()                                       # all are done with keys and values"),
    ],
)
def test_kernels_of_warps_without_a_sync_are_refused(name: str, kernel: str, old: str) -> None:
    assert explore_corpus(name, kernel, old, "pass_by = 0  # ")[-1].result.diagnostics[0].code in ("R401", "M401")  # a race; not landed


def make_broken() -> tuple[Program, Checked, Specification]:
    """A stage of K is released before the product that reads it was waited for, in the loop's body."""
    lines = transfer(parse(PLAIN), as_specification(corpus.variant("causal"), "causal", {})).text.split("\n")
    at = [n for n, line in enumerate(lines) if line.strip().startswith("mma_wait(S)") and "k_empty" in lines[n + 1]]
    lines[at[-1]], lines[at[-1] + 1] = lines[at[-1] + 1], lines[at[-1]]
    program = parse("\n".join(lines), "broken.cuir")
    return program, check(program, None, CONSTS), as_specification(corpus.variant("causal"), "causal", {})


def test_a_wrong_kernel_ends_the_exploration() -> None:
    result = check_exhaustively(*make_broken())
    assert len(result) == 1 and result[-1].result.verdict == "faulty"
    assert result[-1].result.diagnostics[0].code == "R401" and result[-1].result.schedule is not None
    assert result[-1].result.schedule.dims["N"] == 4 * 128


def test_what_holds_for_three_blocks_need_not_for_four() -> None:
    """With three blocks a tile the next use of each stage that is released early lies behind the next Q, which orders the two."""
    assert all(e.result.ok for e in check_exhaustively(*make_broken(), blocks=3))


def test_the_full_level_refuses_what_its_runs_do_not_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules_stage, "check_schedules", lambda *arguments, **more: 0)
    monkeypatch.setattr(schedules_stage, "make_counted_jobs", lambda *arguments, **more: ())
    monkeypatch.setattr(stages, "check_contracts", lambda *arguments, **more: 0)
    program, _, spec = make_broken()
    report = verify(program, spec, consts=CONSTS, level="full")
    assert not report.ok and [s.verdict for s in report.stages[:3]] == ["passed", "passed", "failed"]
    assert report.diagnostics[0].code == "R401" and "found among all schedules of 2 tiles of 4 blocks" in str(report.diagnostics[0].notes)
