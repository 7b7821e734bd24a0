"""Bounds of floats, and floats that are whole numbers.

Values that may hold NaNs with their sign bit set, and tiles of which a NaN spoils the row.
"""

from __future__ import annotations

import math

import pytest

from cuir.lowering.analyses import Facts
from cuir.lowering.analyses.float_ranges import UNBOUNDED, Nans, compute_float_range, is_integral, spoils_row
from cuir.lowering.ir import ops
from cuir.lowering.ir.build_ir import build
from cuir.lowering.ir.ir_text import parse
from cuir.lowering.ir.ir_walk import every
from cuir.lowering.ir.ops import Perform
from tests.lowering.conftest import kernel
from tests.lowering.passes.lowering import role
from tests.lowering.passes.lowering import role as machine_role
from tests.lowering.tile_ir import clean, program, value
from tests.lowering.tile_ir import role as role_of_nans

INF = math.inf


def compute_range(*lines: str) -> tuple[float, float]:
    """The range of what a body stores last."""
    ir = build(kernel("\n".join(["S = zeros(f32, [64, 64]) + scale", *lines, "store(Z[rows(64), cols(64)], V)"])))
    stores = [op for op in every(ir) if isinstance(op, Perform) and op.op == "store"]
    return compute_float_range(stores[-1].arg("tile"))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("S", UNBOUNDED),
        ("exp2(S)", (0.0, 2.0**1000)),
        ("exp2(min(S, 3.0))", (0.0, 8.0)),
        ("1.0 + exp2(min(S, 3.0))", (1.0, 9.0)),
        ("exp2(min(S, 3.0)) - 1.0", (-1.0, 7.0)),
        ("-exp2(min(S, 3.0))", (-8.0, 0.0)),
        ("max(1.0, min(S, 100.0))", (1.0, 100.0)),
        ("max(S, 2.0)", (2.0, INF)),
        ("abs(max(min(S, 3.0), -5.0))", (0.0, 5.0)),
        ("abs(min(S, -5.0))", (5.0, INF)),
        ("where(S > 0.0, full(f32, [64, 64], 2.0), 3.0)", (2.0, 3.0)),
        ("tanh(S) + 1.0", (0.0, 2.0)),
        ("S * 0.0", UNBOUNDED),
        ("S - S", UNBOUNDED),
    ],
)
def test_ranges(value: str, expected: tuple[float, float]) -> None:
    assert compute_range(f"V = {value}") == expected


def test_branches_give_what_either_region_gives() -> None:
    assert compute_range("V = full(f32, [64, 64], 1.0)", "if n > 0:", "    V = exp2(min(S, 3.0))") == (0.0, 8.0)


def test_what_a_loop_makes_of_itself_has_no_range() -> None:
    assert compute_range("V = exp2(min(S, 3.0))", "for i in range(n):", "    V = V + 1.0") == UNBOUNDED


def test_what_a_loop_leaves_alone_keeps_its_range() -> None:
    assert compute_range("V = exp2(min(S, 3.0))", "for i in range(n):", "    V = exp2(min(S, 5.0))") == (0.0, 32.0)


BODY = """\
%i = tile.apply "cast"(%r) : !tile.reg<f32, 64, 1>
%k = tile.apply "cast"(%c) : !tile.reg<f32, 1, 64>
%d = tile.apply "-"(%i, %k) : !tile.reg<f32, 64, 64>
%m = tile.apply "abs"(%d) : !tile.reg<f32, 64, 64>
%one = tile.constant {number} : !tile.scalar<f32>
%u = tile.apply "{op}"(%m, %one) : !tile.reg<f32, 64, 64>
%y = tile.apply "log2"(%u) : !tile.reg<f32, 64, 64>
"""


@pytest.mark.parametrize(
    ("op", "number", "holds"), [("+", 1.0, True), ("*", 3.0, True), ("max", 1.0, True), ("+", 0.5, False), ("/", 2.0, False)]
)
def test_sums_and_products_of_integers_that_were_converted(op: str, number: float, holds: bool) -> None:
    ir = parse(role(BODY.format(op=op, number=number), "%y"))
    (log,) = [o for o in every(ir) if isinstance(o, ops.Apply) and o.kind.logarithm]
    assert is_integral(log.arguments[0]) == holds and not is_integral(log.result)


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
    r = role_of_nans(
        '%z = tile.apply "zeros"() : !tile.reg<f32, 64, 64>',
        '%x = tile.perform "load"(view: %a) : !tile.reg<f32, 64, 64>',
        "%u1, %u2, %u3 = tile.for %i = %0 to %n carrying (%v1 = %z, %v2 = %z, %v3 = %z) {",
        "  tile.yield(%v2, %v3, %x)",
        "}",
        '%y = tile.apply "*"(%z, %s) : !tile.reg<f32, 64, 64>',
    )
    nans = Nans()
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
    r = role_of_nans(
        '%z = tile.apply "zeros"() : !tile.reg<f32, 64, 64>',
        "%box = tile.at %X[%n, %n : 64] : !tile.tensor<f32, 64>",
        "%c = tile.read_columns(%box) : !tile.reg<f32, 1, 64, lanes>",
        "%p = tile.pin(%z) : !tile.reg<f32, 64, 64>",
        "%o = tile.convert_layout(%c) : !tile.reg<f32, 1, 64>",
        '%q = tile.apply "+"(%o, %z) : !tile.reg<f32, 64, 64>',
        "%t = tile.shared_tanh(%q) : !tile.reg<f32, 64, 64>",
        "%u = tile.shared_tanh(%p) : !tile.reg<f32, 64, 64>",
        '%m = tile.apply "row_max"(%u) : !tile.reg<f32, 64, 1>',
        'tile.perform "store"(place: %a, tile: %t)',
    )
    nans = Nans()
    assert [nans.negative(value(r, n)) for n in ("z", "c", "o", "p", "q", "t", "u")] == [False, True, True, False, True, True, False]
    assert [spoils_row(value(r, n)) for n in ("p", "u", "z", "q")] == [True, True, False, False]
