"""Products that a wait may leave running over all paths: by the program, and by the IR behind any pass."""

from __future__ import annotations

import pytest

from cuir.lowering.ir import ops
from cuir.lowering.ir.build_ir import build
from cuir.lowering.ir.in_flight import InFlight
from cuir.lowering.ir.ir_walk import every
from cuir.lowering.passes.pipeline import optimise
from tests.lowering.conftest import kernel


def waits(body: str) -> list[int]:
    """The counts of the program's waits that wait for something, in order of the text."""
    checked = kernel("full[0].wait(0)\n" + body)
    result = build(checked)
    (role,) = result.roles
    flight, counts = InFlight(role.body.block), []
    for op in every(role):
        if isinstance(op, ops.Perform) and op.op == "mma_wait":
            ages = flight.before[op]
            counts.append(op.const("pending"))
            assert min((ages[v] for v in op.arguments if v in ages), default=counts[-1]) == counts[-1]
            assert all(age < counts[-1] for age in flight.after[op].values())
    optimise(result)
    behind = [op.const("pending") for op in every(result) if isinstance(op, ops.Perform) and op.op == "mma_wait"]
    assert behind == counts, "no pass adds a wait, or makes one longer"
    return counts


@pytest.mark.parametrize(
    ("body", "counts"),
    [
        ("a = mma_async(s[0], s[1])\nmma_wait(a)", [0]),
        ("a = mma_async(s[0], s[1])\nb = mma_async(s[0], s[1])\nmma_wait(a)\nmma_wait(b)", [1, 0]),
        ("a = mma_async(s[0], s[1])\nb = mma_async(s[0], s[1])\nmma_wait(b)", [0]),
        ("a = mma_async(s[0], s[1])\nb = mma_async(s[0], s[1])\nc = mma_async(s[0], s[1])\nmma_wait(b, a)\nmma_wait(c)", [1, 0]),
        ("a = mma_async(s[0], s[1])\nmma_wait(a)\nmma_wait(a)", [0]),
        ("a = zeros(f32, [64, 64])\nmma_wait(a)", []),
        ("a = mma_async(s[0], s[1])\nb = a\nmma_wait(b)", [0]),  # another name of the product
        # products issued on one path alone: the smallest count that is right on all
        ("a = mma_async(s[0], s[1])\nif n > 0:\n    b = mma_async(s[0], s[1])\n    mma_wait(b)\nmma_wait(a)", [0, 0]),
        ("a = mma_async(s[0], s[1])\nb = zeros(f32, [64, 64])\nif n > 0:\n    b = mma_async(s[0], s[1])\nmma_wait(a)\nmma_wait(b)", [0]),
        (
            "a = mma_async(s[0], s[1])\nif n > 0:\n    b = mma_async(s[0], s[1])\nelse:\n    b = mma_async(s[1], s[0])\nmma_wait(a)\nmma_wait(b)",
            [1, 0],
        ),
        # carried around a loop: S of this block and P V of the block before
        (
            "acc = zeros(f32, [64, 64])\nP = zeros(f16, [64, 64])\nfor i in range(n):\n    S = mma_async(s[0], s[1].T)\n    acc = mma_async(P, s[1], acc)\n"
            "    mma_wait(S)\n    W = exp2(S)\n    mma_wait(acc)\n    P = cast(W, f16)\nstore(Z[rows(64), cols(64)], acc)",
            [1, 0],
        ),
        (
            "acc = zeros(f32, [64, 64])\nfor i in range(n):\n    before = acc\n    acc = mma_async(s[0], s[1].T, acc)\n    mma_wait(before)\n"
            "mma_wait(acc)\nstore(Z[rows(64), cols(64)], acc)",
            [1, 0],
        ),
    ],
)
def test_the_smallest_count_over_all_paths(body: str, counts: list[int]) -> None:
    assert waits(body) == counts


def test_registers_that_a_product_reads_stay_until_it_is_finished() -> None:
    (role,) = build(
        kernel("P = cast(rows(64) + cols(64), f16)\na = mma_async(P, s[1])\nb = mma_async(s[0], s[1])\nmma_wait(a)\nmma_wait(b)")
    ).roles
    result = InFlight(role.body.block, operands=True)
    first, second = (op for op in every(role) if isinstance(op, ops.Perform) and op.op == "mma_wait")
    assert [(v.name_hint, age) for v, age in result.before[first].items()] == [("P", 1)] and not result.before[second]
