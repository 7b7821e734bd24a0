"""The first pass that changes what a kernel computes is named."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given

from cuir.checking.checked import Checked
from cuir.checking.checker import check
from cuir.interp import run
from cuir.lowering import validate as module
from cuir.lowering.ir import ops
from cuir.lowering.ir.build_ir import build
from cuir.lowering.ir.ir_evaluator import evaluate
from cuir.lowering.passes.pipeline import PASSES
from cuir.lowering.validate import ctas_for, random_arguments, validate
from cuir.syntax.parser import parse
from cuir.syntax.types import F32
from tests.lowering import kernels
from tests.lowering.conftest import kernel
from tests.lowering.ir import cases
from tests.strategies import typed
from tests.strategies.selection import examples
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


@pytest.mark.sweep(32)
@pytest.mark.parametrize("name", [*cases.NAMES, *cases.VARIANTS])
def test_every_pass_keeps_what_kernels_compute(name: str) -> None:
    case = cases.case(name) if name in cases.NAMES else cases.variant(name)
    assert str(validate(case.built.clone(), PASSES, case.arguments, ctas=case.ctas)) == "None"


# lengths of caches and packed sequences, and what their kernels read of them; other kernels take any lengths
PAGES = {"B": 1, "H": 1, "HK": 1, "NP": 3, "PAGE": 64, "MP": 2, "BS": 1, "M": 2, "TQ": 20}
SELECTED = {"B": 1, "H": 2, "HK": 1, "HU": 1, "M": 3, "N": 100, "MP": 128, "GROUPS": 3, "SELECTED": 2}  # and of lists of blocks
HEADS = {"B": 1, "H": 2, "HK": 1, "VB": 1, "VH": 1, "M": 70, "N": 70, "MP": 70}  # of 8-bit inputs with scales of heads
LISTS = {"BLOCKS": [[[[1, 0], [0, 0], [1, 0]]]], "COUNTS": [[[2, 0, 1]]]}
STORED = {"PAGES": [[2, 0]], "LENGTHS": [70], "QSTART": [0], "QEND": [18], "KSTART": [1], "KEND": [70], "len_k": [70], "page": [[2, 0]]}


def choose_lengths(checked: Checked) -> dict[str, int]:
    if "NP" in checked.dims:
        return PAGES
    if "GROUPS" in checked.dims:
        return SELECTED
    if any(t.name == "DOSCALE" for t in checked.tensors):
        return HEADS
    return dict.fromkeys({"M", "N", "MP"} & {*checked.dims}, 70)


@pytest.mark.sweep(32)
@pytest.mark.parametrize("name", kernels.NAMES)
def test_every_pass_keeps_what_each_kernel_of_the_corpus_computes(name: str) -> None:
    checked = kernels.corpus_kernel(name)
    lengths = choose_lengths(checked)
    inputs = random_arguments(checked, torch.Generator().manual_seed(1), {d: n for d, n in lengths.items() if d in checked.dims})
    inputs |= {n: torch.tensor(x, dtype=torch.int32) for n, x in {**STORED, **LISTS}.items() if n in inputs} | (
        {"LONGEST": 18} if "LONGEST" in inputs else {}
    )
    assert str(validate(build(checked), PASSES, inputs, ctas=ctas_for(checked))) == "None"


@examples(0.5)
@given(typed.kernels())
def test_every_pass_keeps_what_random_programs_compute(case: typed.Case) -> None:
    checked = check(parse(case.text))
    inputs = arguments(checked, dict.fromkeys(checked.dims, case.M))
    assert str(validate(build(checked), PASSES, inputs, ctas=ctas_for(checked))) == "None"


def test_ir_that_a_pass_leaves_as_it_is_does_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = list[object]()
    monkeypatch.setattr(module, "evaluate", lambda kernel, values, **options: runs.append(kernel) or evaluate(kernel, values, **options))
    assert not validate_passes(change_nothing, a_pass("same", factor(0.5)), a_pass("lanes", change_nothing, SYNCHRONISES=True))
    assert len(runs) == 3, "before any pass, behind the one that makes another constant, and with lanes"
    assert validate_passes(a_pass("wrong", factor(0.25))).startswith("wrong: Z: ")


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
