"""PyTorch's own error: its dtype, what infinite inputs leave open, and other right values in their order."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from cuir import FunctionSpecification, check, parse
from cuir.checking.checked import Checked
from cuir.syntax.types import F16
from cuir.verification.error_bounds import TURNS
from cuir.verification.yardstick import Yardstick

TEXT = """
@kernel(arch="sm_80")
def f(X: Global[T, M, D], Y: Global[T, M, D], *, T: const, D: const):
    work = tiles(cdiv(M, 16))
    with role("all", warps=1):
        for t in work:
            q = t * 16 + rows(16)
            x = cast(X[q, cols(D)], f32)
            store(Y[q, cols(D)], cast({value}, T))
"""


def check_kernel(value: str = "exp2(x)") -> Checked:
    return check(parse(TEXT.format(value=value), "f.cuir"), "f", {"T": F16, "D": 16})


def make(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, value: str = "exp2(x)", special: bool = False) -> Yardstick:
    spec = FunctionSpecification("f", function)
    return Yardstick(check_kernel(value), spec, {"X": x}, ["Y"], {"Y": function(x.double())}, special=special)


@pytest.mark.parametrize(("value", "coarse"), [("exp2(x)", False), ("exp2(cast(cast(x * x, T), f32))", True)])
def test_a_kernel_that_rounds_in_between_is_judged_in_its_dtype(value: str, coarse: bool) -> None:
    yardstick = make(lambda x: x.exp2(), torch.randn(16, 16).half(), value)
    assert yardstick.coarse == coarse and yardstick.words == ("float16" if coarse else "float32")
    assert (yardstick.floor > 0) == coarse


@pytest.mark.parametrize(("added", "endless", "below"), [(0.0, False, True), (torch.inf, True, False), (-torch.inf, True, True)])
def test_infinite_inputs(added: float, endless: bool, below: bool) -> None:
    x = torch.randn(16, 16).half()
    x[3, 4] += added
    for special in (False, True):
        yardstick = make(lambda x: x.exp2(), x, special=special)
        assert (yardstick.endless, yardstick.below, yardstick.open) == (endless, below, endless and special)


@pytest.mark.parametrize("value", ["exp2(x)", "exp2(cast(cast(x * x, T), f32))"])
def test_other_right_values_are_evaluated_one_by_one(value: str) -> None:
    calls: list[torch.dtype] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        calls.append(x.dtype)
        return x.exp2()

    yardstick = make(function, torch.randn(16, 16).half(), value)
    expected = (2 if yardstick.coarse else 1) * TURNS + 1
    yardstick.get_single()
    before, values = len(calls), yardstick.off("Y")
    next(values)
    assert len(calls) - before <= 1
    assert len(list(values)) == expected - 1 and len(calls) - before == expected - 1  # float32 as it is was there
    assert len(yardstick.list_off("Y")) == expected and len(calls) - before == expected - 1


def test_a_function_that_float32_cannot_evaluate_has_no_other_values() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        if x.dtype == torch.float32:
            raise TypeError("no float32")
        return x.exp2()

    yardstick = make(function, torch.randn(16, 16).half())
    assert yardstick.coarse and yardstick.list_off("Y") == []
