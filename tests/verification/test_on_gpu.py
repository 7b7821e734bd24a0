"""Comparisons of `verify --gpu`: the interpreter under another schedule stands for the GPU, with faults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

import corpus
from cuir import CuirError, parse
from cuir.attn.verification.numeric import RATIO
from cuir.attn.verification.problems import Case
from cuir.checking.checker import check
from cuir.interp import Schedule, run
from cuir.spec.loading import as_specification
from cuir.spec.specification import Lengths
from cuir.syntax.types import F16
from cuir.verification.on_gpu import compare

PROGRAM = parse((corpus.programs()["flash_fwd"]).read_text(encoding="utf-8"), "flash_fwd.cuir")
CHECKED = check(PROGRAM, None, {"T": F16, "D": 64})
SPEC = as_specification(corpus.variant("causal"), "causal", {})
CASE = Case("more queries than keys", Lengths(1, 2, 1, 70, 40))  # the first 30 queries have no keys


def gpu(fault: Callable[[dict[str, Any], int], None] = lambda arguments, launch: None) -> Callable[[Mapping[str, Any]], None]:
    """A launch that runs, and does what `fault` does to the tensors after launch 0, 1, ..."""
    finished = iter(range(100))

    def launch(arguments: Mapping[str, Any]) -> None:
        run(CHECKED, arguments, schedule=Schedule.random(3))
        fault(dict(arguments), next(finished))

    return launch


def compare_launch(launched: Callable[[Mapping[str, Any]], None]) -> Any:
    return compare(PROGRAM, CHECKED, SPEC, CASE, launched, device="cpu", launches=2)


def test_a_right_kernel_agrees() -> None:
    result = compare_launch(gpu())
    assert result.distance == 0 and result.repeated == 2 and 0 < result.numbers.error < 1e-3
    assert result.as_json()["case"] == str(CASE)


def last_bit(a: dict[str, Any], launch: int) -> None:
    a["O"][0, 1, 69, 5] *= 1 + launch * 2.0**-10


def unwritten(a: dict[str, Any], launch: int) -> None:
    a["O"][0, 1, 69, 5] = float("nan")


def keyless(a: dict[str, Any], launch: int) -> None:
    a["LSE"][0, 0, 3] = -1e30


def small(a: dict[str, Any], launch: int) -> None:
    a["O"] *= 1.02


def illegal(a: dict[str, Any], launch: int) -> None:
    raise RuntimeError("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be reported later")


@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        (last_bit, "V402", "launch 2 gives other bits than launch 1: O[0, 1, 69, 5]"),
        (unwritten, "V302", "head 1, query 69, column 5"),
        (keyless, "V303", "query 3"),
        (small, "V301", "O differs from float64"),
        (illegal, "V403", "faults on the GPU: CUDA error: an illegal memory access was encountered (more queries"),
    ],
)
def test_a_fault_is_named(fault: Callable[[dict[str, Any], int], None], code: str, words: str) -> None:
    with pytest.raises(CuirError) as caught:
        compare_launch(gpu(fault))
    (result,) = caught.value.diagnostics
    assert result.code == code and words in result.message and result.span == CHECKED.origin.span


def test_two_that_are_both_near_float64_may_be_too_far_apart() -> None:
    def mirror(a: dict[str, Any], launch: int) -> None:
        """Return numbers as far from float64 as is allowed, on the other side of it."""
        expected, _ = SPEC.reference(a["Q"], a["K"], a["V"], a["scale"])
        half, _ = SPEC.half(a["Q"], a["K"], a["V"], a["scale"])
        off = a["O"].double() - expected
        allowed = RATIO * (half.double() - expected).norm() + 0.8 * 2.0**-11 * expected.norm()
        a["O"].copy_(expected - off * (allowed / off.norm()))

    with pytest.raises(CuirError) as caught:
        compare_launch(gpu(mirror))
    (actual,) = caught.value.diagnostics
    assert actual.code == "V402" and "from the interpreter's, more than" in actual.message
