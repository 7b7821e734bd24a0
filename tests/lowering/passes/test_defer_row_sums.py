"""Sums of rows that stay in parts: which may, and that the four threads of a row add theirs before anything reads the sum."""

from __future__ import annotations

import pytest

from cuir.lowering.ir.build_ir import build
from cuir.lowering.ir.ir_walk import every
from cuir.lowering.ir.row_parts import QuadSum
from cuir.lowering.passes import defer_row_sums
from cuir.lowering.validate import validate
from tests.lowering.conftest import kernel
from tests.lowering.passes.lowering import clean
from tests.strategies.typed import arguments

ROW = "P = Z[rows(64), cols(64)] * 0.5\n"


def defer_sums(body: str) -> tuple[bool, int]:
    """Return whether the stored `total` is a sum of parts, and the additions over the threads of a row.

    Results stay, but for roundings.
    """
    checked = kernel(ROW + body + "\nstore(Y[rows(64)], total)")
    result = build(checked)
    clean(result)
    for n in (0, 2):
        assert validate(result.clone(), [defer_row_sums], arguments(checked, {"M": 64}) | {"n": n, "scale": 0.5}) is None
    defer_row_sums.run(result)
    result.verify()
    clean(result)
    stored = [op.arg("tile").owner for op in every(result) if getattr(op, "op", "") == "store"]
    return isinstance(stored[-1], QuadSum), sum(isinstance(op, QuadSum) for op in every(result))


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        ("total = zeros(f32, [64, 1])\nfor i in range(n):\n    total = total * 0.5 + row_sum(P)", True),
        ("f = Y[rows(64)]\ntotal = zeros(f32, [64, 1])\nfor i in range(n):\n    total = f * total + row_sum(P) / f", True),
        ("z = zeros(f32, [64, 1])\ntotal = z * 0.5 + row_sum(P)", True),  # zero is the sum of its parts, too
        ("total = row_sum(P)\nif n > 0:\n    total = zeros(f32, [64, 1])", True),
        ("total = where(Y[rows(64)] > 0.0, row_sum(P), zeros(f32, [64, 1]))", True),
        ("total = full(f32, [64, 1], 1.0)\nfor i in range(n):\n    total = total + row_sum(P)", False),  # 1 would count four times
        ("total = row_sum(P)\nfor i in range(n):\n    total = total * total", False),  # not linear
        ("total = row_sum(P)\nfor i in range(n):\n    total = max(total, row_sum(P + 1.0))", False),
        ("total = zeros(f32, [64, 1])\nfor i in range(n):\n    total = total + 1.0", False),
        ("z = zeros(f32, [64, 1])\nif n > 0:\n    z = full(f32, [64, 1], 1.0)\ntotal = z + row_sum(P)", False),
        ("x = row_sum(P)\ntotal = 1.0 / x", False),
    ],
)
def test_sums_that_may_be_added_up_late(body: str, parts: bool) -> None:
    assert defer_sums(body)[0] == parts


def test_a_condition_needs_the_whole_sum() -> None:
    assert defer_sums("x = row_sum(P)\ntotal = where(x > 1.0, x, 0.0 * x)")[1] >= 1


@pytest.mark.parametrize(
    ("body", "sums"),
    [
        ("total = row_sum(P)\nstore(Y[rows(64)], total)\nx = log2(total)\nstore(Y[rows(64)], x)", 1),
        ("total = row_sum(P)\nstore(Y[rows(64)], total)\ntotal = total + row_sum(P * P)", 2),  # bound again
        ("total = zeros(f32, [64, 1])\nfor i in range(n):\n    total = total + row_sum(P)", 1),  # behind the loop
        (
            "total = row_sum(P)\nfor i in range(n):\n    store(Y[rows(64)], total)\n    total = total + row_sum(P * P)",
            2,
        ),  # in each turn, and behind the last
    ],
)
def test_a_sum_is_added_up_once_for_all_that_read_it(body: str, sums: int) -> None:
    assert defer_sums(body)[1] == sums
