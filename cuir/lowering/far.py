"""Which i32 values may be any number, so that arithmetic with them may leave 32 bits: those made of more than lengths, counters and places in a tile.

What is made of these alone is C++'s own arithmetic: launches for which it would leave 32 bits on the way to an index are refused (index_ranges.py). Other arithmetic is emitted so
that it wraps. `q - k <= window` is a limit on the column k once `q - window` is worked out, which wraps for a window of 2^31 - 1. Owns the data flow that says where that may be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..calls.index_ranges import judged
from ..checking.checked import Checked
from ..checking.decisions import definitions, expressions
from ..syntax.nodes import Expr, Literal, Name, Stmt
from ..syntax.types import I32, Scalar, TileType
from .flat import integer, operation

FAR = 2**24  # a number written in the text that is nearer to 0 is as good as a length

Ends = tuple[bool, bool]  # whether a value may lie near the lower, near the upper end of the range
NOWHERE, ANYWHERE = (False, False), (True, True)


class Reach:
    """Where the i32 values of one role may lie, worked out once a name."""

    def __init__(self, checked: Checked, body: tuple[Stmt, ...]):
        self.checked = checked
        self.bound: Mapping[str, Sequence[Expr]] = {**definitions(checked.declarations), **definitions(body)}
        self.numbers = {p.name for p in checked.scalars}
        self.ends: dict[str, Ends] = {n: NOWHERE if n in judged(checked) else ANYWHERE for n in self.numbers}
        left = dict.fromkeys(self.bound, NOWHERE)  # the least that holds: a name that depends on itself reaches no further for that
        while left:
            self.ends |= left
            left = {n: found for n, values in self.bound.items() if (found := _either([self.of(v) for v in values])) != self.ends[n]}

    def far(self, expr: Expr) -> bool:
        """Whether an i32 scalar or tile may lie near an end of the range."""
        return (isinstance(expr, Name) and expr.id in self.numbers) or self.reaches(expr)

    def reaches(self, expr: Expr) -> bool:
        """Whether arithmetic with it may leave the range. A parameter with which a launch computes indices is as good as a length: the launch has looked at it."""
        return any(self.of(expr))

    def near(self, e: Expr) -> bool:
        """Whether an expression is i32 arithmetic on what is far from the ends, and of products one by a number that is written."""
        t = self.checked.find_type(e)
        if not isinstance(t, (Scalar, TileType)) or t.dtype != I32 or isinstance(e, (Name, Literal)):
            return False
        op, args = operation(self.checked, e)
        if op == "*" and not any(abs(integer(a) or FAR) < FAR for a in args):
            return False
        return op in ("+", "-", "*", "neg", "cdiv") and not any(map(self.reaches, args))

    def of(self, expr: Expr) -> Ends:
        checked = self.checked
        if isinstance(expr, Literal):
            return int(expr.value) <= -FAR, int(expr.value) >= FAR
        if isinstance(expr, Name):
            return self.ends.get(expr.id, NOWHERE)
        op, args = operation(checked, expr)
        if op in ("gather", "element", "load") or (op == "cast" and _of_floats(checked, args[0])):
            return ANYWHERE
        parts = [self.of(a) for a in args if isinstance(checked.find_type(a), (Scalar, TileType))]
        if op == "+":
            return _either(parts)
        if op == "-":
            return _either([parts[0], parts[1][::-1]])
        if op == "neg":
            return parts[0][::-1]
        if op == "min":
            return any(p[0] for p in parts), all(p[1] for p in parts)
        if op == "max":
            return all(p[0] for p in parts), any(p[1] for p in parts)
        if op in ("//", "cdiv") and (integer(args[1]) or 0) > 0:
            return parts[0]
        if op == "%":
            return _anywhere(parts[1:])
        if op in ("where", "ifexp"):
            return _either(parts[1:])
        return _anywhere(parts)


def near(checked: Checked) -> frozenset[int]:
    """The i32 arithmetic of a kernel, by id, that is made of lengths, counters and places in a tile alone: it stays within 32 bits."""
    found = checked.made.get(near)
    if found is None:
        bodies = (checked.declarations, *(r.body for r in checked.roles))
        found = checked.made[near] = frozenset(
            id(e) for body in bodies for reach in (Reach(checked, body),) for e in expressions(body) if reach.near(e)
        )
    return found


def _of_floats(checked: Checked, expr: Expr) -> bool:
    t = checked.find_type(expr)
    return isinstance(t, (Scalar, TileType)) and t.dtype.is_float


def _either(parts: list[Ends]) -> Ends:
    return any(p[0] for p in parts), any(p[1] for p in parts)


def _anywhere(parts: list[Ends]) -> Ends:
    return ANYWHERE if any(map(any, parts)) else NOWHERE


__all__ = ["Reach", "near"]
