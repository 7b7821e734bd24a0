"""The evaluator gives the interpreter's bits, whatever the program; and says what is wrong with IR that is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from xdsl.irdl import IRDLOperation, irdl_op_definition, operand_def, result_def

from cuir.checking.checked import Checked
from cuir.checking.checker import check
from cuir.interp import run
from cuir.lowering.ir import evaluate_operations, ops
from cuir.lowering.ir import ir_types as types
from cuir.lowering.ir.build_ir import build
from cuir.lowering.ir.evaluator_state import Fault, SharedArray, share_bytes
from cuir.lowering.ir.ir_evaluator import evaluate
from cuir.lowering.ir.ir_text import parse as parse_ir
from cuir.lowering.ir.ir_text import show
from cuir.lowering.layouts.tile_layouts import PARTIAL
from cuir.syntax.parser import parse
from cuir.syntax.types import F16, F32
from tests.lowering.conftest import kernel
from tests.lowering.ir import cases
from tests.strategies.selection import examples
from tests.strategies.typed import Case, arguments, kernels

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of xDSL's parser


def same_bits(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    """Bit by bit, but for how a NaN looks."""
    if not actual.is_floating_point():
        return torch.equal(actual, expected)
    bits = {2: torch.int16, 4: torch.int32}[actual.element_size()]
    numbers = [x.masked_fill(x.isnan(), 0).view(bits) for x in (actual, expected)]
    return torch.equal(actual.isnan(), expected.isnan()) and torch.equal(*numbers)


def differing(checked: Checked, actual: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    return [t.name for t in checked.tensors if t.written and not same_bits(actual[t.name], expected[t.name])]


def as_interpreted(case: cases.Case) -> None:
    actual, expected = case.fresh(), case.fresh()
    run(case.checked, expected)
    evaluate(case.built, actual, ctas=case.ctas)
    assert not differing(case.checked, actual, expected)
    assert all(bool(expected[name].isfinite().any()) for name in case.written)


@pytest.mark.sweep
@pytest.mark.parametrize("name", cases.NAMES)
def test_kernels_of_the_corpus(name: str) -> None:
    as_interpreted(cases.case(name))


@pytest.mark.sweep
@pytest.mark.parametrize("name", cases.VARIANTS)
def test_the_expert_kernel_of_each_variant(name: str) -> None:
    as_interpreted(cases.variant(name))


@examples(1)
@given(kernels())
def test_random_kernels(case: Case) -> None:
    """The IR that is read back from its text."""
    checked = check(parse(case.text))
    actual, expected = (arguments(checked, dict.fromkeys(checked.dims, case.M)) for _ in range(2))
    run(checked, expected)
    evaluate(parse_ir(show(build(checked))), actual)
    assert not differing(checked, actual, expected)


def ran(body: str, **replacements: Any) -> dict[str, Any]:
    """Return the output of a role of this body, the same as in the interpreter."""
    checked = kernel(body)
    actual, expected = (arguments(checked, {"M": 100}) | replacements for _ in range(2))
    run(checked, expected)
    evaluate(build(checked), actual)
    assert not differing(checked, actual, expected)
    return actual


@pytest.mark.parametrize(
    "body",
    [
        "i = rows(64)\nstore(Y[i], cast(i, f32) * 0.1, mask=i % 3 == 0)\nstore(Y[i - 5], cast(i, f32), mask=i > 80)",
        "i = rows(64)\nstore(Z[i * 0 + 3, cols(64)], zeros(f32, [64, 64]) + 0.1)\nstore(Z[I[i] + 50, cols(64)], zeros(f32, [64, 64]))",
        "store(Z[-3 : 61, :], cast(load(X[90 : 154, :]), f32) + 1.0, mask=rows(64) % 2 == 0)",
        "store(Z[3 : 67, :], full(f32, [64, 64], scale), add=True)\nstore(Y[7], 0.1)\nstore(Y[7], scale, add=True)",
        "store(Z[0 : 64, :], cast(where(cols(64) < 7, load(X[0 : 64, :]), 0.1), f32) * cast(full(f16, [64, 64], 0.3), f32))",
        "store(s[1], load(X[0 : 64, :]), mask=rows(64) < 5)\nstore(s[1], load(X[8 : 72, :]), mask=rows(64) >= 5)\nstore(Z[0 : 64, :], cast(load(s[1]), f32))",
        "c = rows(64) == 37\nd = warp_any(n > 5)\nstore(Z[0 : 64, :], where(warp_any(c & (cols(64) == 3)), 1.0, cast(load(X[0 : 64, :]), f32)) + where(d, 1.0, 0.5))",
        "x = max(rows(64), cols(64), 7, n)\nstore(Z[0 : 64, :], cast(x * min(x, n, rows(64)) // 3 % 5, f32) / 3.0)",
        "store(Z[0 : 64, :], 1.0 / cast(rows(64) - cols(64), f32) - -inf)\nstore(Y[0], cast(cdiv(n * 7, 3) + min(n, 9, M), f32) - 0.1)",
        "a, b, c = 1, 2, 3\nfor j in range(n + 5, -3, -2):\n    a, b, c = b, c, a\n    if j == 3:\n        a, b = b, a\n    else:\n        c = c + j\nstore(Y[1], cast(a * 100 + b * 10 + c, f32))",
        "for j in range(M + 2):\n    v = I[j] if j < M else -1\n    if (j < M and I[j] > 0 or n // max(1, j) > 3) and (j > 10 or 7 % (j + 1) == 0):\n        store(Y[min(j, M - 1)], cast(v * 10 + j, f32))",
        "v = s[0]\nfull[0].expect(nbytes(v))\ncopy_async(X[64 : 128, :], v, full[0])\nfull[0].wait(0)\np = mma_async(v.T, v)\nmma_wait(p)\nq = mma_async(v, v.T, p)\nmma_wait(q)\nstore(Z[0 : 64, :], mma(load(v), v, q))",
    ],
)
def test_what_primitives_do(body: str) -> None:
    ran(body)


def test_every_pure_primitive_has_a_meaning() -> None:
    assert not evaluate_operations.gaps()


# ---- memory and layouts
def test_a_write_makes_poison_of_arrays_over_the_same_bytes() -> None:
    ring = SharedArray("v", F16, (2, 16, 128), 1024, [])  # two stages of 2 panels of 16 rows
    over = SharedArray("o", F32, (8, 64), 1024, [])  # 2 panels of 8 rows: the first half of stage 0
    difference = SharedArray("x", F16, (8, 8), 0, [])
    share_bytes([ring, over, difference])
    assert ring.over == [over] and over.over == [ring] and not difference.over
    for array in (ring, over):
        array.values.zero_()
    over.place((0, 0), (8, 64), False).write(torch.ones(8, 64))
    assert ring.values[0, :, :64].isnan().all() and not ring.values[0, :, 64:].any() and not ring.values[1].any()
    ring.place((1, 0, 0), (-1, 16, 128), False).write(torch.ones(16, 128))
    assert (over.values == 1).all(), "stage 1 lies behind it"
    ring.place((0, 8, 0), (-1, 8, 64), False).write(torch.ones(8, 64))
    assert over.values[:, 32:].isnan().all() and (over.values[:, :32] == 1).all(), (
        "rows 8 to 15 of the first panel are the second panel of the other"
    )


@irdl_op_definition
class Part(IRDLOperation):
    """Partial sum of each of the four threads of a row."""

    name = "tile.test_part"
    x = operand_def()
    result = result_def()

    def evaluate(self, context: Any, operands: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        (x,) = operands
        return [x.reshape(len(x), -1, 4, 2).sum((1, 3))]


@irdl_op_definition
class Whole(IRDLOperation):
    """The sum over the four threads of a row."""

    name = "tile.test_whole"
    x = operand_def()
    result = result_def()

    def evaluate(self, context: Any, operands: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [operands[0].sum(-1, keepdim=True)]


def test_operations_of_the_machine_and_summands_of_rows() -> None:
    """total * 0.5 + row_sum(x), with a summand in each of the four threads that share a row."""
    ir = build(
        kernel(
            "x = cast(load(X[0 : 64, :]), f32)\ntotal = zeros(f32, [64, 1])\ntotal = total * 0.5 + row_sum(x)\nstore(Y[rows(64)], total)"
        )
    )
    summed = types.tile(F32, 64, 1, PARTIAL)
    for op in list(ir.roles[0].body.block.ops):
        if isinstance(op, ops.Apply) and op.op in ("zeros", "*", "+"):
            op.result._type = summed  # type: ignore[misc]
        if isinstance(op, ops.Apply) and op.op == "row_sum":
            part = Part(operands=[op.arguments[0]], result_types=[summed])
            op.parent.insert_op_before(part, op)
            op.result.replace_all_uses_with(part.result)
            op.detach()
            op.erase()
        if isinstance(op, ops.Perform) and op.op == "store":
            whole = Whole(operands=[op.arg("tile")], result_types=[types.tile(F32, 64, 1)])
            op.parent.insert_op_before(whole, op)
            op.operands[1] = whole.result
    inputs = arguments(kernel("store(Y[0], 0.0)"), {"M": 64})
    evaluate(ir, inputs)
    assert (inputs["Y"] - inputs["X"].float().sum(-1)).abs().max() < 1e-4


# ---- what is wrong


def test_a_deadlock_names_the_waits() -> None:
    ir = build(kernel("full[0].expect(64)\nfull[0].wait(0)"))
    with pytest.raises(
        Fault,
        match=r"deadlock: all\[0\] of cluster 0 waits for parity 0 of `full\[0\] of cluster 0`, which is in phase 0 with 1 of 1 arrival, 64 bytes missing; all\[0\] of cluster 1",
    ):
        evaluate(ir, arguments(kernel("full[0].expect(64)\nfull[0].wait(0)"), {"M": 64}))
    head = 'k(X: Global[f16, M, 64]):\n    turn = named_barrier(2)\n    with role("all", warps=1):\n        turn.sync()\n'
    checked = check(parse(f'@kernel(arch="sm_90a")\ndef {head}'))
    with pytest.raises(Fault, match=r"all\[0\] waits for `turn`, where 1 of 2 have arrived"):
        evaluate(build(checked), {"X": torch.zeros(64, 64, dtype=torch.float16)})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "full[0].arrive()\nfull[1].expect(8)\nfull[1].arrive()",
            r"all\[0\].*`mbarrier.arrive` at k.cuir:10: `full\[1\].*` has all 1 arrival of phase 0, and another one comes",
        ),
        ("store(s[n], zeros(f16, [64, 64]))", r"`tile.at` at k.cuir:8: `s` has 2 elements in dim 0, and 1 from 2 on are reached for"),
        ("full[n].arrive()", "there is no barrier 2 in a ring of 2"),
        ("store(Y[M], scale)", "`Y` has no element 100 in dim 0, whose length is 100"),
        ("store(Y[0], cast(n // (n - 2), f32))", "`//` at k.cuir:8: DivisionByZero"),
    ],
)
def test_faults_name_the_operation(body: str, message: str) -> None:
    checked = kernel(body)
    with pytest.raises(Fault, match=message):
        evaluate(build(checked), arguments(checked, {"M": 100}))


def test_arguments_that_the_kernel_does_not_take() -> None:
    checked = kernel("store(Y[0], scale)")
    ir, inputs = build(checked), arguments(checked, {"M": 64})
    with pytest.raises(ValueError, match="no parameters Q"):
        evaluate(ir, {**inputs, "Q": 1})
    with pytest.raises(ValueError, match="`X` is a f16 tensor of 2 dims on the CPU"):
        evaluate(ir, {**inputs, "X": inputs["X"].float()})
    with pytest.raises(ValueError, match="a dim of `Y`, M, has the length 63"):
        evaluate(ir, {**inputs, "Y": inputs["Y"][1:]})
