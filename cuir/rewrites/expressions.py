"""Other spellings of one expression: order of operands, grouping, negation. No float operation changes its operands: sums and products of floats are only turned round."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from ..ops.expressions import comparison, is_where, traits
from ..ops.traits import DIFFERENCE, SUM, opposite, turned
from ..syntax.nodes import Binary, Call, Expr, IfExp, Name, Unary
from ..syntax.walk import names_read
from .facts import Facts, Site
from .table import Rewrite, kind, replaced


def binaries(of: Facts) -> Iterator[tuple[Site, Binary]]:
    for s in of.expressions:
        if isinstance(s.node, Binary):
            yield s, s.node


def turnable(of: Facts, e: Binary) -> bool:
    """Whether the operands may be evaluated in the other order: one of them at most does something or reads memory."""
    return of.pure(e.left) or of.pure(e.right)


def by_word(of: Facts, e: Call) -> bool:
    """Whether a call by a word is of the primitive, not of a function that has its name."""
    return isinstance(e.func, Name) and e.func.id not in of.funcs


def extremum(of: Facts, e: Expr) -> str | None:
    """Which one of its operands an expression is, the least or the greatest, if it is a call of such a primitive by position."""
    return traits(e).extremum if isinstance(e, Call) and by_word(of, e) and not e.keywords else None


@kind("commute")
def commute(of: Facts) -> Iterator[Rewrite]:
    """`a + b` to `b + a`. Of several operands of min and max two neighbours."""
    for site, e in binaries(of):
        if traits(e).commutative and e.left != e.right and turnable(of, e):
            yield replaced(of, "commute", site, replace(e, left=e.right, right=e.left))
    for site in of.expressions:
        call = site.node
        if isinstance(call, Call) and extremum(of, call) and of.pure(call):
            for i, (a, b) in enumerate(itertools.pairwise(call.args)):
                if a != b:
                    yield replaced(of, "commute", site, replace(call, args=(*call.args[:i], b, a, *call.args[i + 2 :])))


@kind("commute logic")
def commute_logic(of: Facts) -> Iterator[Rewrite]:
    """`a and b` to `b and a` where either side is cheap and cannot fail; not where the consts decide one side and with it which branches there are."""
    known = {*of.checked.consts, *of.program.constants()}
    for site, e in binaries(of):
        if not traits(e).lazy or e.left == e.right:
            continue
        if all(of.scalar(side) and of.cheap_and_safe(side) and not names_read(side) <= known for side in (e.left, e.right)):
            yield replaced(of, "commute logic", site, replace(e, left=e.right, right=e.left))


@kind("mirror")
def mirror(of: Facts) -> Iterator[Rewrite]:
    """`a < b` to `b > a`, of floats too."""
    for site, e in binaries(of):
        t = traits(e)
        if t.compares and not t.commutative and turnable(of, e):
            yield replaced(of, "mirror", site, Binary(comparison(turned(t.compares)), e.right, e.left))


@kind("reassociate")
def reassociate(of: Facts) -> Iterator[Rewrite]:
    """`(a + b) + c` to `a + (b + c)` and back, on integers, which wrap; sums with differences, too; `&`, `|` and `^` on booleans as well."""
    for site, e in binaries(of):
        t = traits(e)
        logic = t.commutative and (t.decided_by is not None or t.involutive) and of.numbers(e)
        if not (logic or ((t.linear or t.multiplies) and of.integers(e))):
            continue
        for side in ("left", "right"):
            inner = getattr(e, side)
            if isinstance(inner, Binary) and (put := regrouped(e, inner, side)) is not None and (logic or of.integers(inner)):
                yield replaced(of, "reassociate", site, put)


def regrouped(e: Binary, inner: Binary, side: str) -> Binary | None:
    """`e`, of whose operands `inner` is one, with the other grouping."""
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


@kind("group extremum")
def group_extremum(of: Facts) -> Iterator[Rewrite]:
    """`max(a, b, c)` to `max(max(a, b), c)` and `max(a, max(b, c))`, and back: exact on floats, too, and NaN if an operand is."""
    for site in of.expressions:
        e = site.node
        if not (isinstance(e, Call) and (name := extremum(of, e))):
            continue
        if len(e.args) > 2:
            yield replaced(of, "group extremum", site, replace(e, args=(replace(e, args=e.args[:-1]), e.args[-1])))
            yield replaced(of, "group extremum", site, replace(e, args=(e.args[0], replace(e, args=e.args[1:]))))
        for i, a in enumerate(e.args):
            if isinstance(a, Call) and extremum(of, a) == name:
                yield replaced(of, "group extremum", site, replace(e, args=(*e.args[:i], *a.args, *e.args[i + 1 :])))


@kind("negate choice")
def negate_choice(of: Facts) -> Iterator[Rewrite]:
    """`where(c, a, b)` to `where(~c, b, a)`, `a if c else b` to `b if not c else a`."""
    for site in of.expressions:
        e = site.node
        if isinstance(e, IfExp) and of.numbers(e):
            yield replaced(of, "negate choice", site, IfExp(negated(e.cond, "not"), e.other, e.then))
        if isinstance(e, Call) and is_where(e) and by_word(of, e) and len(e.args) == 3 and of.pure(e):
            cond, a, b = e.args
            yield replaced(of, "negate choice", site, replace(e, args=(negated(cond, "~"), b, a)))


@kind("negate comparison")
def negate_comparison(of: Facts) -> Iterator[Rewrite]:
    """`a > b` to `not a <= b`, on a tile `~(a <= b)`, and back. Of integers alone: with a NaN both may be false."""
    for site in of.expressions:
        e = site.node
        if isinstance(e, Binary) and _compares_integers(of, e) and (of.scalar(e) or of.tile(e)):
            yield replaced(of, "negate comparison", site, Unary("not" if of.scalar(e) else "~", _opposite(e)))
        if isinstance(e, Unary) and traits(e).complements and isinstance(e.operand, Binary) and _compares_integers(of, e.operand):
            yield replaced(of, "negate comparison", site, _opposite(e.operand))


def _compares_integers(of: Facts, e: Binary) -> bool:
    return bool(traits(e).compares) and of.integers(e.left) and of.integers(e.right)


def _opposite(e: Binary) -> Binary:
    """The comparison that holds where this one does not."""
    return replace(e, op=comparison(opposite(traits(e).compares)))


def negated(cond: Expr, sign: str) -> Expr:
    return cond.operand if isinstance(cond, Unary) and cond.op == sign else Unary(sign, cond)
