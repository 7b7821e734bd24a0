"""The first pass that changes what a kernel computes is named."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cuir.interp import run
from cuir.lowering.ir import ops
from cuir.lowering.ir.build_ir import build
from cuir.lowering.passes.pipeline import PASSES
from cuir.lowering.validate import random_arguments, validate
from cuir.syntax.types import F32
from tests.lowering.conftest import kernel
from tests.lowering.ir import cases
from tests.strategies.typed import arguments

BODY = "x = cast(load(X[0 : 64, :]), f32)\nstore(Z[0 : 64, :], x * 0.5 + scale)"


def find_applied(result: ops.Kernel, name: str) -> ops.Apply:
    return next(op for op in result.roles[0].body.block.ops if isinstance(op, ops.Apply) and op.op == name)


def change_nothing(result: ops.Kernel) -> None:
    """A pass that changes nothing."""


def factor(value: float) -> Callable[[ops.Kernel], None]:
    """A pass that multiplies by another number."""

    def run(result: ops.Kernel) -> None:
        multiply = find_applied(result, "*")
        constant = ops.constant(value, F32)
        multiply.parent.insert_op_before(constant, multiply)  # type: ignore[union-attr]
        multiply.operands[1] = constant.result

    return run


def break_type(result: ops.Kernel) -> None:
    """A pass that makes a name that the table does not have."""
    find_applied(result, "*").properties["primitive"] = type(find_applied(result, "*").primitive)("times")


def a_pass(name: str, run: Callable[[ops.Kernel], None], **attributes: Any) -> SimpleNamespace:
    return SimpleNamespace(__name__=f"cuir.lowering.passes.{name}", run=run, **attributes)


def validate_passes(*passes: Any) -> str:
    checked = kernel(BODY)
    result = validate(build(checked), passes, arguments(checked, {"M": 100}))
    return "" if result is None else str(result)


def test_the_first_pass_that_changes_a_result_is_named() -> None:
    assert not validate_passes(change_nothing, a_pass("same", factor(0.5)))
    assert validate_passes(change_nothing, a_pass("wrong", factor(0.25)), a_pass("later", factor(0.125))).startswith("wrong: Z: ")
    assert "of the elements differ, by up to 1" in validate_passes(a_pass("wrong", factor(0.25)))
    assert validate_passes(a_pass("close", factor(0.5 + 2.0**-24))).startswith("close: Z: ")


def test_a_pass_may_declare_that_it_rounds_otherwise() -> None:
    close = a_pass("close", factor(0.5 + 2.0**-24), ROUNDING=True)
    assert not validate_passes(close, change_nothing, a_pass("same", factor(0.5 + 2.0**-24)))
    assert validate_passes(a_pass("far", factor(0.501), ROUNDING=True)).startswith("far: Z: ")
    assert validate_passes(close, a_pass("back", factor(0.5))).startswith("back: Z: "), "the pass after it is held against what it left"


@pytest.mark.sweep
@pytest.mark.parametrize(
    "name", ["expert plain f16", "expert cluster bf16", "flash_bwd f16", "flash_fwd_warps f16", "gemm f16", "decode f16"]
)
def test_the_pipeline_keeps_what_kernels_compute(name: str) -> None:
    case = cases.case(name)
    assert str(validate(case.built.clone(), PASSES, case.arguments, ctas=case.ctas)) == "None"


def test_invalid_ir_is_named() -> None:
    assert validate_passes(change_nothing, a_pass("broken", break_type)) == "broken: VerifyException: there is no primitive `times`"


@pytest.mark.parametrize("name", ["flash_bwd f16", "flash_fwd_warps f16", "combine f16", "gemm bf16", "expert plain f16"])
def test_random_arguments_run(name: str) -> None:
    """Arguments of any kernel, whatever it computes; the same generator gives the same."""
    checked = cases.case(name).checked
    first, second = (random_arguments(checked, torch.Generator().manual_seed(5)) for _ in range(2))
    run(checked, first)
    assert validate(build(checked), [change_nothing], second) is None
    assert first.keys() == second.keys() and any(bool(first[t.name].isfinite().any()) for t in checked.tensors if t.written)
    lengths = dict.fromkeys(checked.dims, 3)
    inputs = random_arguments(checked, torch.Generator().manual_seed(5), lengths)
    assert all(n == 3 for t in checked.tensors for d, n in zip(t.dims, inputs[t.name].shape, strict=True) if isinstance(d, str))
