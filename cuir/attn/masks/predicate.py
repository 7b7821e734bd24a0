"""A mask's predicate as a union of key intervals.

It is a disjunctive normal form over linear bounds of k, q and values that are uniform in a tile. Nonlinear parts are
kept as "maybe", which is right for needed and for unmasked blocks alike.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from ...ops.expressions import comparison, is_where, traits
from ...syntax.nodes import Binary, Call, Expr, Literal, Name, Subscript, Unary
from ...syntax.walk import names_read, walk

MAX_TERMS = 48
Signs = tuple[int, ...]  # of x - y, in ascending order: those for which a comparison of x and y holds


@dataclass(frozen=True)
class Linear:
    """A linear form: q * `q` + k * `k` + sum of coefficient * term + `const`.

    Terms are expressions without k: without q, or steps such as q // c, which never fall as q grows (for c > 0).
    """

    terms: frozenset[tuple[Expr, int]] = frozenset()
    q: int = 0
    k: int = 0
    const: int = 0

    def plus(self, addend: Linear, sign: int = 1) -> Linear:
        terms = dict(self.terms)
        for term, n in addend.terms:
            terms[term] = terms.get(term, 0) + sign * n
        return Linear(_terms(terms), self.q + sign * addend.q, self.k + sign * addend.k, self.const + sign * addend.const)

    def times(self, n: int) -> Linear:
        return Linear(_terms({t: c * n for t, c in self.terms}), self.q * n, self.k * n, self.const * n)

    def shift(self, n: int) -> Linear:
        return Linear(self.terms, self.q, self.k, self.const + n)

    def minus_is_const(self, subtrahend: Linear) -> int | None:
        """Return self - other, if that is a number."""
        d = self.plus(subtrahend, -1)
        return d.const if not d.terms and d.q == 0 and d.k == 0 else None


def _terms(terms: Mapping[Expr, int]) -> frozenset[tuple[Expr, int]]:
    return frozenset((t, c) for t, c in terms.items() if c)


def linear(e: Expr) -> Linear | None:
    """Return an integer expression as a linear form, or None."""
    if isinstance(e, Literal) and isinstance(e.value, int) and not isinstance(e.value, bool):
        return Linear(const=e.value)
    if e == Name("q"):
        return Linear(q=1)
    if e == Name("k"):
        return Linear(k=1)
    op_traits = traits(e)
    if isinstance(e, Unary) and op_traits.linear:
        inner = linear(e.operand)
        return inner.times(-1) if inner else None
    if isinstance(e, Binary) and (op_traits.linear or "y" in op_traits.factors):
        left, right = linear(e.left), linear(e.right)
        if left is not None and right is not None and op_traits.linear:
            return left.plus(right, op_traits.linear[1])
        for x, y in ((left, right), (right, left)):
            if x is not None and y is not None and x == Linear(const=x.const):
                return y.times(x.const)
        for x, by in ((left, e.right), (right, e.left)):  # steps times what is the same in a tile
            if x is not None and x.q == x.k == 0 and has_steps(x) and not names_read(by) & {"q", "k"}:
                scaled: dict[Expr, int] = {Binary("*", term, by): n for term, n in x.terms}
                return Linear(_terms(scaled)).plus(Linear(_terms({by: x.const})))
    if isinstance(e, Binary) and op_traits.rounds and positive(e.right):
        inner = linear(e.left)
        if inner is not None and inner.q > 0 and inner.k == 0 and not has_steps(inner):
            return Linear(_terms({e: 1}))
    if not names_read(e) & {"q", "k"}:
        return Linear(_terms({e: 1}))
    return None


def has_steps(x: Linear) -> bool:
    return any("q" in names_read(term) for term, _ in x.terms)


def positive(divisor: Expr) -> bool:
    """Return True for an expression that is positive: positive literals, captured numbers and n // 8.

    Sums, products and quotients of positive expressions count too; captured divisors of positions are assumed positive.
    """
    if isinstance(divisor, Literal):
        return isinstance(divisor.value, int) and divisor.value > 0
    if isinstance(divisor, Binary):
        op_traits = traits(divisor)
        grows = op_traits.linear == (1, 1) or "y" in op_traits.factors or op_traits.rounds
        return bool(grows) and positive(divisor.left) and positive(divisor.right)
    return isinstance(divisor, Name) and divisor.id not in ("q", "k")


@dataclass(frozen=True)
class Bound:
    """A bound: k <= at if `upper`, else k >= at, with `at` linear in q.

    A bound of rows is on q instead, and `at` is uniform.
    """

    upper: bool
    at: Linear
    rows: bool = False


@dataclass(frozen=True)
class Uniform:
    """A condition that is the same for all pairs of a tile."""

    cond: Expr
    holds: bool


Atom = Bound | Uniform
Term = frozenset[Atom]


def implies(a: Atom, b: Atom) -> bool:
    """Return True if every pair for which a holds certainly fulfils b."""
    if isinstance(a, Bound) and isinstance(b, Bound) and (a.upper, a.rows) == (b.upper, b.rows):
        d = a.at.minus_is_const(b.at)
        return d is not None and (d <= 0 if a.upper else d >= 0)
    return a == b


@dataclass
class Normal:
    """A normal form: pairs lie in at least one of `terms`, each the conjunction of its atoms.

    Without `exact` the union may be too large.
    """

    terms: list[Term] = field(default_factory=list)
    exact: bool = True


def normal(e: Expr, holds: bool = True) -> Normal:
    """Return the pairs for which a bool expression of q and k is true (`holds`) or false."""
    result = Normal()
    result.terms = _simplify(_dnf(e, holds, result))
    return result


def _dnf(e: Expr, holds: bool, out: Normal) -> list[Term]:
    if isinstance(e, Literal) and isinstance(e.value, bool):
        return [frozenset()] if e.value == holds else []
    op_traits = traits(e)
    if isinstance(e, Unary) and op_traits.complements:
        return _dnf(e.operand, not holds, out)
    if isinstance(e, Binary) and op_traits.decided_by is not None:
        parts = [_dnf(x, holds, out) for x in (e.left, e.right)]
        if op_traits.decided_by is not holds:  # both true, or not either
            return _conjoin(parts[0], parts[1], out)
        return _simplify([*parts[0], *parts[1]])
    if isinstance(e, Binary) and op_traits.compares:
        return _comparison(op_traits.compares if holds else _opposite(op_traits.compares), e.left, e.right, out, not holds)
    if not names_read(e) & {"q", "k"}:
        return [frozenset([Uniform(e, holds)])]
    return _maybe(out)


def _maybe(out: Normal) -> list[Term]:
    out.exact = False
    return [frozenset()]


def _conjoin(a: list[Term], b: list[Term], out: Normal) -> list[Term]:
    if len(a) * len(b) > MAX_TERMS:
        out.exact = False
        return min(a, b, key=len)  # leaving out a condition keeps more pairs
    return _simplify([x | y for x, y in itertools.product(a, b)])


def _opposite(signs: Signs) -> Signs:
    return tuple(s for s in (-1, 0, 1) if s not in signs)


def _comparison(signs: Signs, left: Expr, right: Expr, out: Normal, negated: bool = False) -> list[Term]:
    """Return the terms of a comparison.

    `negated` says that it is the opposite of the written one, as is valid for integers; for floats both are false where
    one is a NaN.
    """
    ordered = signs not in ((0,), (-1, 1))
    for x, y, holds in ((left, right, signs), (right, left, tuple(-s for s in reversed(signs)))):
        op_traits = traits(x)
        if (
            isinstance(x, Binary)
            and op_traits.rounds
            and "k" in names_read(x.left)
            and positive(x.right)
            and not names_read(x.right) & {"q", "k"}
        ):
            return _chunk(holds, x, y, out)
        if isinstance(x, Call) and names_read(x) & {"q", "k"} and ordered:
            if op_traits.extremum or op_traits.magnitude:
                choices = (x.args[0], Unary("-", x.args[0])) if op_traits.magnitude else x.args
                parts = [_comparison(holds, c, y, out, negated) for c in choices]
                every = (op_traits.extremum == "min") == (1 in holds)  # min(..) >= y needs all of them
                terms = parts[0]
                for p in parts[1:]:
                    terms = _conjoin(terms, p, out) if every else _simplify([*terms, *p])
                return terms
            if is_where(x):
                cond, then, otherwise = x.args
                first = _conjoin(_dnf(cond, True, out), _comparison(holds, then, y, out, negated), out)
                return _simplify([*first, *_conjoin(_dnf(cond, False, out), _comparison(holds, otherwise, y, out, negated), out)])
    if not (names_read(left) | names_read(right)) & {"q", "k"}:
        if negated and (_perhaps_float(left) or _perhaps_float(right)):
            return [frozenset([Uniform(Binary(comparison(_opposite(signs)), left, right), False)])]
        return [frozenset([Uniform(Binary(comparison(signs), left, right), True)])]
    a, b = linear(left), linear(right)
    if a is None or b is None:
        return _maybe(out)
    d = a.plus(b, -1)
    least = 0 if 0 in signs else 1  # d < 0 is d + 1 <= 0
    low, high = d.shift(least), d.times(-1).shift(least)
    atoms = [_at_most_zero(w) for w, s in ((low, 1), (high, -1)) if not (ordered and s in signs)]
    if signs == (-1, 1):
        return _maybe(out) if None in atoms else [frozenset([x]) for x in atoms if x is not None]
    if None in atoms:
        out.exact = False  # leaving out a condition keeps more pairs
    return [frozenset(x for x in atoms if x is not None)]


def _perhaps_float(e: Expr) -> bool:
    """Return True if an expression reads a captured tensor, which may hold NaN.

    Number arguments of a kernel are never NaN.
    """
    return any(isinstance(n, Subscript) for n in walk(e))


def _chunk(signs: Signs, quotient: Binary, y: Expr, out: Normal) -> list[Term]:
    """Return the terms of a comparison of x // c: x // c < y is x < y * c, for c > 0.

    x // c <= y is x // c < y + 1.
    """
    x, c = quotient.left, quotient.right
    if signs == (0,):
        return _conjoin(_chunk((0, 1), quotient, y, out), _chunk((-1, 0), quotient, y, out), out)
    if signs == (-1, 1):
        return _simplify([*_chunk((-1,), quotient, y, out), *_chunk((1,), quotient, y, out)])
    below = -1 in signs
    limit = Binary("*", Binary("+", y, Literal(1)) if below == (0 in signs) else y, c)
    return _comparison((-1,) if below else (0, 1), x, limit, out)


def _at_most_zero(d: Linear) -> Atom | None:
    """Return d <= 0 as a bound of k, or of q; None if the coefficient is not 1."""
    if d.k in (1, -1):
        rest = Linear(d.terms, d.q, 0, d.const)
        return Bound(True, rest.times(-1)) if d.k == 1 else Bound(False, rest)
    if d.k == 0 and d.q in (1, -1) and not has_steps(d):
        rest = Linear(d.terms, 0, 0, d.const)
        return Bound(True, rest.times(-1), True) if d.q == 1 else Bound(False, rest, True)
    return None


def _simplify(terms: Iterable[Term]) -> list[Term]:
    """Drop atoms that others of their term imply, impossible terms, and terms that lie in others."""
    possible = [frozenset(_weakest_out(list(term), implies)) for term in terms if not _impossible(term)]
    return _weakest_out(list(dict.fromkeys(possible)), lambda a, b: _covers(a, b))


T = TypeVar("T")


def _weakest_out(items: list[T], beats: Callable[[T, T], bool]) -> list[T]:
    """Return the items that no other beats; of equals, one."""
    undominated: list[T] = []
    for item in items:
        if not any(beats(k, item) for k in undominated):
            undominated = [k for k in undominated if not beats(item, k)] + [item]
    return undominated


def _impossible(term: Iterable[Atom]) -> bool:
    for a, b in itertools.permutations(term, 2):
        if isinstance(a, Bound) and isinstance(b, Bound) and a.rows == b.rows and not a.upper and b.upper:
            gap = a.at.minus_is_const(b.at)
            if gap is not None and gap > 0:
                return True
        if isinstance(a, Uniform) and isinstance(b, Uniform) and a.cond == b.cond and a.holds != b.holds:
            return True
    return False


def _covers(wide: Term, narrow: Term) -> bool:
    """Return True if every pair of `narrow` lies in `wide`."""
    return all(any(implies(a, w) for a in narrow) for w in wide)


__all__ = ["Atom", "Bound", "Linear", "Normal", "Term", "Uniform", "linear", "normal"]
