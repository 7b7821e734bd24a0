"""A report of a fault of synchronisation names the faulty line: systematic faults of right kernels, and what the report points at first.

A stage that is written to too early: the report names the arrival that released it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import corpus
import cuir
from cuir import check, parse, run
from cuir.text.diagnostics import CuirError, Diagnostic
from tests.interp.line_faults import LineFault, line_faults
from tests.strategies.typed import arguments

ROOT = Path(__file__).parent.parent.parent
SCHEDULES = ("in_order", "adversarial:workers_first", "adversarial:reverse")
ATTENTION = {"B": 1, "H": 2, "HK": 1, "M": 256, "N": 320}
KERNELS: dict[
    str, tuple[str, dict[str, Any], dict[str, int], int]
] = {  # path or name in corpus.faulty(), consts, dims, every so-manieth fault
    "pipeline": ("clean_pipeline", {}, {"M": 320}, 1),
    "gemm": ("corpus/programs/gemm.cuir", {"T": cuir.f16, "BM": 128, "BN": 128}, {"M": 256, "N": 256, "K": 320}, 1),
    "attention": ("corpus/programs/flash_fwd.cuir", {"T": cuir.f16, "D": 64, "BN": 64}, ATTENTION, 8),
    "expert attention": ("corpus/kernels/flash_fwd_sm90.cuir", {"T": cuir.f16, "D": 64, "BN": 64}, ATTENTION, 13),
}


def find_first_report(fault: LineFault, name: str, consts: Mapping[str, Any], dims: Mapping[str, int]) -> Diagnostic | None:
    """The first report of the interpreter; None if the text does not check, or nothing goes wrong."""
    try:
        checked = cuir.check(cuir.parse(fault.text, name), None, consts)
    except CuirError:
        return None
    for schedule in SCHEDULES:
        try:
            cuir.run(
                checked,
                arguments(checked, {**dims, **{n: int(c) for n, c in consts.items() if isinstance(c, int)}}),
                grid=1,
                schedule=schedule,
            )
        except CuirError as error:
            return error.diagnostics[0]
    return None


def names(fault: LineFault, result: Diagnostic) -> bool:
    """Return whether the place or the first note is a line to blame.

    Of something left out the words may say what is missing where.
    """
    spans = [result.span, *[n.span for n in result.notes if n.span is not None][:1]]
    if any(s is not None and s.line in fault.lines for s in spans):
        return True
    words = " ".join([result.message, result.hint or "", *(n.message for n in result.notes)])
    return fault.left_out and re.search(rf"no (wait|arrival|statement)[^.]*`{fault.barrier}\b", words) is not None


def text_of(path: str) -> str:
    """Return the text of a file, or of a program of `corpus.faulty()`."""
    return corpus.faulty().get(path) or (ROOT / path).read_text(encoding="utf-8")


@functools.cache
def judge_faults(kernel: str) -> tuple[tuple[LineFault, Diagnostic], ...]:
    path, consts, dims, every = KERNELS[kernel]
    faults = list(line_faults(text_of(path)))[::every]
    return tuple((f, result) for f in faults if (result := find_first_report(f, path, consts, dims)) is not None)


@pytest.mark.sweep
@pytest.mark.parametrize("kernel", KERNELS)
def test_the_faulty_line_is_named(kernel: str) -> None:
    result = judge_faults(kernel)
    second = [f"{fault}: {d.code} {d.span}" for fault, d in result if not names(fault, d)]
    assert len(result) >= 5 and len(second) <= 0.1 * len(result), "\n".join(second)


@pytest.mark.sweep(4)
@pytest.mark.parametrize("kernel", KERNELS)
def test_reports_are_short(kernel: str) -> None:
    """A message, at most three notes with a place, one hint."""
    for _, d in judge_faults(kernel):
        assert d.hint and sum(n.span is not None for n in d.notes) <= 3, d.render()


PIPE = text_of(KERNELS["pipeline"][0])


@pytest.mark.parametrize(
    ("old", "new", "code", "says"),
    [
        ("full[s].wait(phase)", "full[s].wait(phase ^ 1)", ("M401", "R401"), "returned at once: it means phase -1, which is over before the first arrival; the copy lands in phase 0"),
        ("full[s].expect(nbytes(sX[s]))", "full[s].expect(2 * nbytes(sX[s]))", ("D401", "S402"), "16,384 bytes are expected here for phase 0 of `full[0]`, and 8,192 are copied by 1 copy"),
        ("empty[s].wait(phase ^ 1)", "empty[s].wait(phase)", ("D401",), "a first wait(1) returns at once"),
        ("                empty[s].wait(phase ^ 1)\n", "", ("R401", "S402"), "no wait"),
        ("mbarrier(1, stages=STAGES)\n", "mbarrier(2, stages=STAGES)\n", ("D401",), "the count of `empty[0]` is 2, and only 1 worker of role `compute` can arrive on it"),
        ("                empty[s].arrive()\n", "", ("D401",), "no statement arrives on `empty`"),
        ("copy_async(X[j * 64 : j * 64 + 64, :], sX[s], full[s])", "copy_async(X[j * 64 : j * 64 + 64, :], sX[s], full[1 - s])", ("R401", "D401", "M401"), "this copy lands on `full[1]`, and the expect that goes with it announces its bytes on `full[0]`"),
        ("range(cdiv(M, 64)):\n                s, phase = it % STAGES, it // STAGES % 2\n                full", "range(cdiv(M, 64) - 3):\n                s, phase = it % STAGES, it // STAGES % 2\n                full", ("D401",), "is at its end: nobody can arrive"),
    ],
    ids=["parity of the reader", "too many bytes expected", "parity of the loader", "no wait of the loader", "count too high", "never given back", "another stage", "fewer turns"],
)  # fmt: skip
def test_the_report_says_the_cause(old: str, new: str, code: tuple[str, ...], says: str) -> None:
    assert old in PIPE
    result = find_first_report(LineFault("", PIPE.replace(old, new, 1), (0,), ""), "k.cuir", {}, {"M": 320})
    assert result is not None and result.code in code and says in result.render(), result and result.render()


def test_two_copies_where_one_is_announced() -> None:
    """The phase ends after the first copy: the expect's line, and both numbers."""
    halves = "copy_async(X[j * 64 : j * 64 + 32, :], sX[s, 0 : 32], full[s])\n                copy_async(X[j * 64 + 32 : j * 64 + 32 + 32, :], sX[s, 32 : 64], full[s])"
    text = PIPE.replace("copy_async(X[j * 64 : j * 64 + 64, :], sX[s], full[s])", halves).replace("nbytes(sX[s])", "nbytes(sX[s, 0 : 32])")
    result = find_first_report(LineFault("", text, (0,), ""), "k.cuir", {}, {"M": 320})
    assert result is not None and "4,096 bytes" in result.render(), result and result.render()
    note = next((n for n in result.notes if n.span is not None), None)
    assert note is not None and note.span is not None and ".expect(" in note.span.text(), result.render()


def test_arguments_are_of_the_kernels() -> None:
    """Nothing is refused before it is made faulty."""
    for path, consts, dims, _ in KERNELS.values():
        right = LineFault("", text_of(path), (0,), "")
        assert find_first_report(right, path, consts, dims) is None


PAIRS = """
@kernel(arch="sm_90a")
def pairs(Y: Global[f32, 4, 64]):
    s = shared(f32, [4, 1, 64])
    meet = named_barrier(2)
    with role("all", warps=4) as w:
        store(s[w], full(f32, [1, 64], 1.0))
        meet.sync()
        store(Y[w, cols(64)], load(s[w ^ 1]))
"""
OF_TWO_ROLES = """
@kernel(arch="sm_90a")
def pairs(Y: Global[f32, 4, 64]):
    s = shared(f32, [4, 1, 64])
    meet = named_barrier(2)
    with role("a", warps=2) as w:
        store(s[w], full(f32, [1, 64], 1.0))
        meet.sync()
        store(Y[w, cols(64)], load(s[w ^ 1]))
    with role("b", warps=2) as w:
        store(s[2 + w], full(f32, [1, 64], 1.0))
        meet.sync()
        store(Y[2 + w, cols(64)], load(s[2 + (w ^ 1)]))
"""


@pytest.mark.parametrize("text", [PAIRS, OF_TWO_ROLES])
@pytest.mark.parametrize("seed", [1, 2, 5])
def test_pairs_that_share_a_named_barrier_are_told_to_take_one_each(text: str, seed: int) -> None:
    with pytest.raises(CuirError) as caught:
        cuir.run(cuir.check(cuir.parse(text)), {"Y": torch.zeros(4, 64)}, schedule=f"random:{seed}")
    result = caught.value.diagnostics[0]
    assert result.notes[0].message.startswith("2 groups of 2 workers share `meet`") and result.notes[0].span is not None
    assert result.hint is not None and "named_barrier(2, stages=2)" in result.hint and "here 4" not in result.hint


def test_pairs_with_a_named_barrier_each_are_ordered() -> None:
    text = PAIRS.replace("named_barrier(2)", "named_barrier(2, stages=2)").replace("meet.sync()", "meet[w // 2].sync()")
    for seed in range(5):
        cuir.run(cuir.check(cuir.parse(text)), {"Y": torch.zeros(4, 64)}, schedule=f"random:{seed}")


def test_a_count_that_leaves_one_worker_out_is_a_wrong_count() -> None:
    with pytest.raises(CuirError) as caught:
        cuir.run(
            cuir.check(cuir.parse(PAIRS.replace("warps=4", "warps=3").replace("w ^ 1", "(w + 1) % 3"))),
            {"Y": torch.zeros(4, 64)},
            schedule="random:1",
        )
    assert caught.value.diagnostics[0].hint == "the count is the number of workers that arrive in a phase, here 3"


@pytest.mark.parametrize(
    ("name", "line", "says"),
    [
        ("R401_released_too_early", 28, "compute[0] arrives on `empty[0]` here"),
        ("R401_released_under_a_product", 30, "compute[0] arrives on `empty[0]` here"),
        ("R401_missing_wait", None, ""),
        ("R401_swapped_parity_of_reader", None, ""),
    ],
)
def test_the_arrival_that_released_is_named(name: str, line: int | None, says: str) -> None:
    checked = check(parse(corpus.faulty()[name], f"{name}.cuir"))
    shapes = {t.name: [320 if isinstance(d, str) else d for d in t.dims] for t in checked.tensors}
    dtypes = {t.name: torch.float32 if str(t.dtype) == "f32" else torch.float16 for t in checked.tensors}
    with pytest.raises(CuirError) as caught:
        run(checked, {n: torch.zeros(shape, dtype=dtypes[n]) for n, shape in shapes.items()}, grid=1)
    result = caught.value.diagnostics[0]
    notes = [(n.span.line, n.message) for n in result.notes if n.span is not None and "arrives on" in n.message]
    assert result.code == "R401" and [at for at, _ in notes] == ([line] if line else [])
    assert all(says in message for _, message in notes)
