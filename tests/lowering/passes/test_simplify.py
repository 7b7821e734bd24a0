"""Equivalent spellings give the same IR."""

from __future__ import annotations

import pytest

from cuir.lowering.ir import ops
from cuir.lowering.ir.ir_types import dtype_of, is_scalar
from cuir.lowering.ir.ir_walk import every
from cuir.ops.traits import SUM
from tests.lowering.tile_ir import clean, program

TEXT = """
@kernel(arch="sm_90a")
def k(X: Global[f32, N, 64], Z: Global[f32, N, 64], n: i32, f: f32):
    with role("all", warpgroups=1):
        x = load(X[0:64, :])
        LINES
"""


def ir(*lines: str) -> str:
    return str(clean(program(TEXT.replace("LINES", "\n        ".join(lines)))))


@pytest.mark.parametrize(
    ("item", "second"),
    [
        ("exp2(x) * X[rows(64) + n, cols(64)]", "X[rows(64) + n, cols(64)] * exp2(x)"),
        ("x * f", "f * x"),
        ("x * 2.0", "2.0 * x"),
        ("where(x > f, x, f)", "where(f < x, x, f)"),
        ("where(~(x == f), x, f)", "where(x == f, f, x)"),
    ],
)
def test_operands_have_one_order(item: str, second: str) -> None:
    def list_operands(text: str) -> list[str]:
        kernel = clean(program(TEXT.replace("LINES", f"store(Z[0:64, :], {text})")))
        return [f"{op.op} of {[str(a.owner.name) for a in op.arguments]}" for op in every(kernel) if isinstance(op, ops.Apply)]  # type: ignore[union-attr]

    assert sorted(list_operands(item)) == sorted(list_operands(second))


@pytest.mark.parametrize("condition", ["(rows(64) < n) & (x > f)", "(x > f) & (rows(64) < n)"])
def test_integers_are_compared_before_floats(condition: str) -> None:
    kernel = clean(program(TEXT.replace("LINES", f"store(Z[0:64, :], where({condition}, x, f))")))
    (both,) = (op for op in every(kernel) if isinstance(op, ops.Apply) and op.kind.decided_by is False)
    assert [str(dtype_of(a.owner.operands[0])) for a in both.arguments] == ["i32", "f32"]  # type: ignore[union-attr]


@pytest.mark.parametrize("place", ["n * 2 + i * 64 + rows(64)", "n * 2 + (i * 64 + rows(64))", "rows(64) + i * 64 + n * 2"])
def test_scalars_are_added_before_numbers_of_rows(place: str) -> None:
    kernel = clean(program(TEXT.replace("LINES", f"for i in range(n):\n            store(Z[{place}, cols(64)], x)")))
    sums = [op for op in every(kernel) if isinstance(op, ops.Apply) and op.kind.linear == SUM]
    assert [is_scalar(op.result) for op in sums] == [True, False]


def test_a_loop_that_has_no_turn_goes() -> None:
    assert "tile.for" not in ir("for i in range(3, 3):", "    x = x + 1.0", "store(Z[0:64, :], x)")
    assert "tile.for" in ir("for i in range(3, 4):", "    x = x + f", "store(Z[0:64, :], x)")
