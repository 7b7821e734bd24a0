"""Values that may hold NaNs with their sign bit set, and tiles of which a NaN spoils the row."""

from __future__ import annotations

import pytest

from cuir.lowering.analyses import Facts
from cuir.lowering.analyses.nans import Nans, spoils_row
from cuir.lowering.ir import ops
from cuir.lowering.ir.ir_text import parse
from cuir.lowering.ir.ir_walk import every
from tests.lowering.passes.lowering import role as machine_role
from tests.lowering.tile_ir import clean, kernel_of, program, role, value

TEXT = """
@kernel(arch="sm_90a")
def f(X: Global[f32, 64, 64], Y: Global[f32, 64, 64], R: Global[f32, 64], n: i32, s: f32):
    h = shared(f16, [64, 64])
    v = shared(f16, [64, 64])
    with role("one", warpgroups=1):
        x = load(X[0:64, :])
        p = mma_async(h, v)
        mma_wait(p)
"""


def build_kernel(body: str) -> ops.Kernel:
    return clean(program(TEXT + "".join(f"        {line}\n" for line in body.split("\n"))))


@pytest.mark.parametrize(
    ("body", "negative"),
    [
        ("y = x", True),  # what lies in memory may be any
        ("y = p", False),
        ("y = X[rows(64), cols(64)]", True),
        ("y = x * x", False),
        ("y = x * 2.0", True),  # the compiler could leave it out if it were 1
        ("y = p * 2.0", False),
        ("y = p * s", False),  # a parameter may be any number, but the compiler does not know it
        ("y = x * s", False),
        ("y = -p", True),
        ("y = p * -1.0", True),
        ("y = 0.0 - p", True),
        ("y = p - 0.0", False),
        ("y = p + (0.0 if n > 0 else 1.0)", False),
        ("y = p * (1.0 if n > 0 else 2.0)", True),  # of a known number, but which?
        ("y = x + where(rows(64) < n, 0.0, 1.0)", True),
        ("y = where(rows(64) < n, p, x)", True),
        ("y = where(rows(64) < n, p, 0.0)", False),
        ("y = max(p, -inf)", False),
        ("y = max(p, s)", True),
        ("y = exp2(x)", False),
        ("y = x / 2.0", False),
        ("y = p - row_max(x)", False),
        ("y = zeros(f32, [64, 64]) + row_max(x)", True),
        ("y = p * R[rows(64)]", True),  # a gather is 0 outside of the tensor
        ("y = p\nfor i in range(n):\n    y = where(rows(64) < i, y, x)", True),
        ("y = p\nfor i in range(n):\n    y = y * y + p", False),
        ("y = p\nif n > 0:\n    y = x\nelse:\n    y = p * p", True),
        ("y = p\nfor i in range(n):\n    c = mma_async(h, v, y)\n    mma_wait(c)\n    y = c", False),
    ],
)
def test_signs_of_nans(body: str, negative: bool) -> None:
    kernel = build_kernel(f"{body}\nstore(R[rows(64)], row_max(y))")
    (top,) = (
        op
        for op in every(kernel)
        if isinstance(op, ops.Apply) and op.op == "row_max" and next(iter(op.result.uses)).operation.name == "tile.perform"
    )
    assert Facts(kernel).negative_nan(top.arguments[0]) == negative


def test_a_loop_is_what_any_turn_makes_of_it() -> None:
    """It takes as many turns as values follow each other."""
    r = role(
        '%z = tile.apply "zeros"() : !tile.reg<f32, 64, 64>',
        '%x = tile.perform "load"(view: %a) : !tile.reg<f32, 64, 64>',
        "%u1, %u2, %u3 = tile.for %i = %0 to %n carrying (%v1 = %z, %v2 = %z, %v3 = %z) {",
        "  tile.yield(%v2, %v3, %x)",
        "}",
        '%y = tile.apply "*"(%z, %s) : !tile.reg<f32, 64, 64>',
    )
    nans = Nans(kernel_of(r))
    assert [nans.negative(value(r, n)) for n in ("z", "x", "u1", "v1", "u3", "y")] == [False, True, True, True, True, True]


@pytest.mark.parametrize(
    ("body", "spoiled"),
    [
        ("store(R[rows(64)], row_sum(y))", True),
        ("store(R[rows(64)], row_max(y * 2.0 + 1.0))", True),
        ("store(Y[0:64, :], y)", False),  # its own elements are read
        ("store(R[rows(64)], row_sum(where(rows(64) < n, y, 0.0)))", False),  # a choice may lose it
        ("store(R[rows(64)], row_sum(exp2(y - row_max(y))))", True),
        ("q = mma_async(cast(y, f16), v)\nmma_wait(q)\nstore(Y[0:64, :], q)", True),  # by rows
        ("q = mma_async(h, v, y)\nmma_wait(q)\nstore(Y[0:64, :], q)", False),  # by elements
        ("q = mma_async(h, v, y)\nmma_wait(q)\nstore(R[rows(64)], row_sum(q))", True),
        ("for i in range(n):\n    y = y * 2.0\nstore(R[rows(64)], row_sum(y))", True),
        ("for i in range(n):\n    y = y * 2.0\nstore(Y[0:64, :], y)", False),
        ("if n > 0:\n    store(R[rows(64)], row_max(y))\nelse:\n    store(Y[0:64, :], cast(cast(y, i32), f32))", False),
        ("store(R[rows(64)], row_sum(cast(y > 0.0, f32)))", False),
    ],
)
def test_rows_that_a_nan_spoils(body: str, spoiled: bool) -> None:
    kernel = build_kernel(f"y = x * x\n{body}")
    first = next(op for op in every(kernel) if isinstance(op, ops.Apply) and op.op == "*" and op.arguments[0] is op.arguments[1])
    assert spoils_row(first.result) == spoiled


def test_operations_of_the_machine_spread_nans() -> None:
    """Shared reciprocals go by rows into a sum: a NaN spoils the row behind them as behind a division."""
    body = """\
%W = tile.by_reciprocal(%S) shared : !tile.reg<f32, 64, 64>
%p = tile.pin(%W) : !tile.reg<f32, 64, 64>
%l = tile.apply "row_sum"(%p) : !tile.reg<f32, 64, 1>"""
    kernel = parse(machine_role(body))
    (op,) = (op for op in every(kernel) if op.name == "tile.by_reciprocal")
    assert spoils_row(op.results[0]) and spoils_row(op.operands[0])
    stored = parse(machine_role(body, "%p"))
    assert not any(spoils_row(op.results[0]) for op in every(stored) if op.name == "tile.by_reciprocal")


def test_operations_of_the_machine() -> None:
    """A pinned value is the value; what is read a column each is memory; other arithmetic may keep what it is given."""
    r = role(
        '%z = tile.apply "zeros"() : !tile.reg<f32, 64, 64>',
        "%box = tile.at %X[%n, %n : 64] : !tile.tensor<f32, 64>",
        "%c = tile.read_columns(%box) : !tile.reg<f32, 1, 64, lanes>",
        "%p = tile.pin(%z) : !tile.reg<f32, 64, 64>",
        '%q = tile.apply "+"(%c, %z) : !tile.reg<f32, 64, 64>',
        "%t = tile.shared_tanh(%q) : !tile.reg<f32, 64, 64>",
        "%u = tile.shared_tanh(%p) : !tile.reg<f32, 64, 64>",
        '%m = tile.apply "row_max"(%u) : !tile.reg<f32, 64, 1>',
        'tile.perform "store"(place: %a, tile: %t)',
    )
    nans = Nans(kernel_of(r))
    assert [nans.negative(value(r, n)) for n in ("z", "c", "p", "q", "t", "u")] == [False, True, False, True, True, False]
    assert [spoils_row(value(r, n)) for n in ("p", "u", "z", "q")] == [True, True, False, False]
