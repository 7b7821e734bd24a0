"""Bounds of a tree's expressions are those that the analysis of the IR gives its values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cuir.lowering.analyses.ranges import LEAST, MOST, Ranges
from cuir.lowering.ir.build_ir import build_for_analyses
from cuir.ops import Op
from cuir.ops.expression_bounds import ExpressionBounds
from cuir.ops.meaning.intervals import Bounds, Interval
from cuir.syntax.nodes import Call, Expr, Name, Subscript
from cuir.syntax.walk import IdentityKey, walk
from tests.lowering.tile_ir import program

TEXT = """
@kernel(arch="sm_80")
def bounded(X: Global[f32, L], Y: Global[f32, M], m: i32, n: i32):
    with role("all", warps=1):
        a = min(max(m, {}), {})
        b = min(max(n, {}), {})
        store(Y[0], X[max(a, {})])
"""
FORMS = ["({} + {})", "({} - {})", "({} * {})", "({} // max(1, {}))", "({} % max(1, {}))", "min({}, {})", "max({}, {})"]
MORE = [
    "cdiv({}, max(1, {}))",
    "({1} if {0} > 5 else {0})",
    "abs({} - {})",
    "({} & {})",
    "({} | {})",
    "cast(a < {}, i32) * {}",
    "(~{} + {})",
]
TERMS = st.recursive(
    st.sampled_from(["a", "b", "3", "64"]),
    lambda inner: st.builds(lambda form, x, y: form.format(x, y), st.sampled_from(FORMS + MORE), inner, inner),
    max_leaves=6,
)
INTERVALS = st.tuples(st.integers(-1000, 1000), st.integers(0, 1000)).map(lambda pair: (pair[0], sum(pair)))


class Given(ExpressionBounds):
    """Bounds of expressions of two names. `unsure`: a part of one is unbounded, or may leave 32 bits."""

    def __init__(self, names: Mapping[str, Interval]):
        self.names, self.unsure = names, False

    def bound_name(self, name: str) -> Bounds:
        return self.names.get(name)

    def bound_result(self, e: Expr, op: Op, operands: Sequence[Bounds]) -> Bounds:
        result = super().bound_result(e, op, operands)
        self.unsure |= result is None or result[0] < LEAST or result[1] > MOST
        return result


def bound_both_ways(text: str, a: Interval, b: Interval) -> tuple[Bounds, Bounds, bool]:
    """The bounds of an expression by the tree and by the IR, and whether a part of it has none, or may wrap."""
    checked = program(TEXT.format(*a, *b, text))
    reads = (n for stmt in checked.roles[0].body for n in walk(stmt) if isinstance(n, Subscript) and n.value == Name("X"))
    ((index,),) = (read.indices for read in reads)
    assert isinstance(index, Call)
    _, expr = index.args
    tree = Given({"a": a, "b": b})
    bounds, built = tree.bound(expr), build_for_analyses(checked)
    found = Ranges(built.kernel)[built.values[IdentityKey(expr)]]
    return bounds, (found.least, found.most), tree.unsure


@given(TERMS, INTERVALS, INTERVALS)
def test_the_tree_and_the_ir_give_the_same_bounds(text: str, a: Interval, b: Interval) -> None:
    tree, ir, unsure = bound_both_ways(text, a, b)
    assume(not unsure)
    assert tree == ir


@pytest.mark.parametrize(
    ("text", "bounds"),
    [("a * b", (-10, 15)), ("cast(a < b, i32)", (0, 1)), ("~a", (-6, 2)), ("b // 2 - a", (-6, 4)), ("a if b > 0 else 9", (-3, 9))],
)
def test_bounds(text: str, bounds: Interval) -> None:
    assert bound_both_ways(text, (-3, 5), (-2, 3))[:2] == (bounds, bounds)
