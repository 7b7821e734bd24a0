"""Rewrites of one expression: order of operands, grouping, negation.

Float operations keep their operands: sums and products of floats are only commuted.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from ..ops.expressions import comparison, is_where, traits
from ..ops.traits import DIFFERENCE, SUM, exchange_operands, invert_comparison
from ..syntax.nodes import Binary, Call, Expr, IfExp, Name, Unary
from ..syntax.walk import names_read
from .facts import Facts, Site
from .rewrites_table import Rewrite, register_kind, replace_node


def list_binaries(facts: Facts) -> Iterator[tuple[Site, Binary]]:
    """Yield each binary expression with its place."""
    for s in facts.expressions:
        if isinstance(s.node, Binary):
            yield s, s.node


def can_exchange_operands(facts: Facts, e: Binary) -> bool:
    """Return whether the operands may be evaluated in the other order: at least one of them is pure."""
    return facts.is_pure(e.left) or facts.is_pure(e.right)


def is_primitive_call(facts: Facts, e: Call) -> bool:
    """Return whether a call by name is of the primitive, not of a function that has its name."""
    return isinstance(e.func, Name) and e.func.id not in facts.funcs


def get_extremum(facts: Facts, e: Expr) -> str | None:
    """Return "min" or "max" (the trait) if an expression is such a call with positional arguments alone."""
    return traits(e).extremum if isinstance(e, Call) and is_primitive_call(facts, e) and not e.keywords else None


@register_kind("commute")
def commute(facts: Facts) -> Iterator[Rewrite]:
    """Yield `a + b` -> `b + a`; for min and max exchange two neighbouring operands."""
    for site, e in list_binaries(facts):
        if traits(e).commutative and e.left != e.right and can_exchange_operands(facts, e):
            yield replace_node(facts, "commute", site, replace(e, left=e.right, right=e.left))
    for site in facts.expressions:
        call = site.node
        if isinstance(call, Call) and get_extremum(facts, call) and facts.is_pure(call):
            for i, (a, b) in enumerate(itertools.pairwise(call.args)):
                if a != b:
                    yield replace_node(facts, "commute", site, replace(call, args=(*call.args[:i], b, a, *call.args[i + 2 :])))


@register_kind("commute logic")
def commute_logic(facts: Facts) -> Iterator[Rewrite]:
    """Yield `a and b` -> `b and a` where either side is cheap and cannot fail.

    Not where the consts decide one side, and with it which branches exist.
    """
    constants = {*facts.checked.consts, *facts.program.constants()}
    for site, e in list_binaries(facts):
        if not traits(e).lazy or e.left == e.right:
            continue
        if all(facts.is_scalar(side) and facts.is_speculatable(side) and not names_read(side) <= constants for side in (e.left, e.right)):
            yield replace_node(facts, "commute logic", site, replace(e, left=e.right, right=e.left))


@register_kind("mirror")
def mirror(facts: Facts) -> Iterator[Rewrite]:
    """Yield `a < b` -> `b > a`, for floats too."""
    for site, e in list_binaries(facts):
        t = traits(e)
        if t.compares and not t.commutative and can_exchange_operands(facts, e):
            yield replace_node(facts, "mirror", site, Binary(comparison(exchange_operands(t.compares)), e.right, e.left))


@register_kind("reassociate")
def reassociate(facts: Facts) -> Iterator[Rewrite]:
    """Yield `(a + b) + c` -> `a + (b + c)` and back, for integers, which wrap.

    Sums with differences too; `&`, `|` and `^` for booleans as well.
    """
    for site, e in list_binaries(facts):
        t = traits(e)
        logic = t.commutative and (t.decided_by is not None or t.involutive) and facts.is_number(e)
        if not (logic or ((t.linear or t.multiplies) and facts.is_integer(e))):
            continue
        for side in ("left", "right"):
            inner = getattr(e, side)
            if isinstance(inner, Binary) and (replacement := regroup(e, inner, side)) is not None and (logic or facts.is_integer(inner)):
                yield replace_node(facts, "reassociate", site, replacement)


def regroup(e: Binary, inner: Binary, side: str) -> Binary | None:
    """Return `e`, one of whose operands is `inner`, with the other grouping; None if there is none."""
    outer, within = traits(e), traits(inner)
    if e.op == inner.op and outer.commutative:
        if side == "left":
            return Binary(e.op, inner.left, Binary(e.op, inner.right, e.right))
        return Binary(e.op, Binary(e.op, e.left, inner.left), inner.right)
    if side == "left" and (outer.linear, within.linear) == (DIFFERENCE, SUM):  # (a + b) - c
        return Binary("+", inner.left, Binary("-", inner.right, e.right))
    if side == "left" and (outer.linear, within.linear) == (SUM, DIFFERENCE):  # (a - b) + c
        return Binary("-", inner.left, Binary("-", inner.right, e.right))
    if side == "right" and (outer.linear, within.linear) == (SUM, DIFFERENCE):  # a + (b - c)
        return Binary("-", Binary("+", e.left, inner.left), inner.right)
    if side == "right" and (outer.linear, within.linear) == (DIFFERENCE, DIFFERENCE):  # a - (b - c)
        return Binary("+", Binary("-", e.left, inner.left), inner.right)
    return None


@register_kind("group extremum")
def group_extremum(facts: Facts) -> Iterator[Rewrite]:
    """Yield `max(a, b, c)` -> `max(max(a, b), c)` and `max(a, max(b, c))`, and back.

    Exact for floats too: the result is NaN if an operand is.
    """
    for site in facts.expressions:
        e = site.node
        if not (isinstance(e, Call) and (name := get_extremum(facts, e))):
            continue
        if len(e.args) > 2:
            yield replace_node(facts, "group extremum", site, replace(e, args=(replace(e, args=e.args[:-1]), e.args[-1])))
            yield replace_node(facts, "group extremum", site, replace(e, args=(e.args[0], replace(e, args=e.args[1:]))))
        for i, a in enumerate(e.args):
            if isinstance(a, Call) and get_extremum(facts, a) == name:
                yield replace_node(facts, "group extremum", site, replace(e, args=(*e.args[:i], *a.args, *e.args[i + 1 :])))


@register_kind("negate choice")
def negate_choice(facts: Facts) -> Iterator[Rewrite]:
    """Yield `where(c, a, b)` -> `where(~c, b, a)`, and `a if c else b` -> `b if not c else a`."""
    for site in facts.expressions:
        e = site.node
        if isinstance(e, IfExp) and facts.is_number(e):
            yield replace_node(facts, "negate choice", site, IfExp(negate(e.cond, "not"), e.other, e.then))
        if isinstance(e, Call) and is_where(e) and is_primitive_call(facts, e) and len(e.args) == 3 and facts.is_pure(e):
            cond, a, b = e.args
            yield replace_node(facts, "negate choice", site, replace(e, args=(negate(cond, "~"), b, a)))


@register_kind("negate comparison")
def negate_comparison(facts: Facts) -> Iterator[Rewrite]:
    """Yield `a > b` -> `not a <= b` (for a tile `~(a <= b)`), and back.

    For integers alone: with a NaN both may be false.
    """
    for site in facts.expressions:
        e = site.node
        if isinstance(e, Binary) and _compares_integers(facts, e) and (facts.is_scalar(e) or facts.is_tile(e)):
            yield replace_node(facts, "negate comparison", site, Unary("not" if facts.is_scalar(e) else "~", _make_opposite(e)))
        if isinstance(e, Unary) and traits(e).complements and isinstance(e.operand, Binary) and _compares_integers(facts, e.operand):
            yield replace_node(facts, "negate comparison", site, _make_opposite(e.operand))


def _compares_integers(facts: Facts, e: Binary) -> bool:
    return bool(traits(e).compares) and facts.is_integer(e.left) and facts.is_integer(e.right)


def _make_opposite(e: Binary) -> Binary:
    """Return the comparison that holds where this one does not."""
    return replace(e, op=comparison(invert_comparison(traits(e).compares)))


def negate(cond: Expr, sign: str) -> Expr:
    """Return the negation of a condition; an existing negation is removed."""
    return cond.operand if isinstance(cond, Unary) and cond.op == sign else Unary(sign, cond)
