"""NaNs in f32 tiles: which may have their sign bit set, so that the integer maximum of a row would lose them; and of which the whole row becomes NaN anyway.

Results of arithmetic and of products are NaNs with a clear sign bit, or no NaNs. What lies in memory may be any, and so may its negative; the compiler leaves out
arithmetic that changes no number, such as x * 1 and x + -0. Owns the data flow that says where such a value may come from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..checking.decisions import entry
from ..syntax.nodes import Assign, Expr, Literal, Name, Stmt
from ..syntax.types import Scalar, TileType
from .flat import names, operation, own_expressions, statements

if TYPE_CHECKING:
    from .role import RoleEmitter

CHOICES = ("where", "ifexp", "min", "max")
KEPT = ("cast", "abs", "neg", "tanh", "row_max")
ARITHMETIC = ("+", "-", "*")
MEMORY = ("element", "gather", "load")
SPREADING = (*ARITHMETIC, "/", "min", "max", "neg", "abs", "exp2", "log2", "tanh")  # a NaN in an operand gives one


class Nans:
    """What is known of the values of one role."""

    def __init__(self, role: RoleEmitter):
        self.role, self.checked = role, role.kernel.checked

    def negative(self, expr: Expr) -> bool:
        """Whether a value may hold a NaN with its sign bit set."""
        return self._negative(expr, frozenset())

    def _negative(self, expr: Expr, seen: frozenset[str]) -> bool:
        if isinstance(expr, Name):
            return self._of_name(expr, seen, self._negative)
        op, args = operation(self.checked, expr)
        if isinstance(expr, Literal) or not self._is_float(expr):
            return False
        if op in MEMORY:
            return True
        if op == "neg":
            return not isinstance(args[0], Literal) and args[0] != Name("inf")
        if op == "full":
            return any(self._negative(a, seen) for a in self._floats(args))
        if op in CHOICES or op in KEPT:
            return any(self._negative(a, seen) for a in self._floats(args))
        if op in ARITHMETIC:
            found = False
            for value, other in (args, args[::-1]):
                if self._constant(other, seen):  # the value itself, or its negative
                    turned = value is args[1] if op == "-" else op == "*" and not (isinstance(other, Literal) and other.value != -1)
                    found |= turned or self._negative(value, seen)
            return found
        return False

    def _constant(self, expr: Expr, seen: frozenset[str]) -> bool:
        """Whether a value, or what a choice makes of it, may be one that the compiler knows."""
        if isinstance(expr, Literal):
            return True
        if isinstance(expr, Name):
            return expr.id == "inf" or self._of_name(expr, seen, self._constant)
        op, args = operation(self.checked, expr)
        if op in ("zeros", "gather"):  # outside of the tensor it is 0
            return True
        values = [a for a in args if isinstance(self.checked.find_type(a), (Scalar, TileType))]
        if op in CHOICES:
            return any(self._constant(a, seen) for a in values)
        return op not in MEMORY and not op.startswith("mma") and bool(values) and all(self._constant(a, seen) for a in values)

    def spoils_row(self, name: str) -> bool:
        """Whether all that comes of a row of this full tile is NaN as soon as one of its elements is: it is summed, maximised or multiplied by rows, with arithmetic before."""
        return self._spoils(name, frozenset())

    def _spoils(self, name: str, seen: frozenset[str]) -> bool:
        if name in seen:
            return True
        for stmt in statements(self.role.role.body):
            for e in own_expressions(stmt):
                left = self._left(e, name)
                if left is not None and not (left and isinstance(stmt, Assign) and self._spoils(stmt.targets[0], seen | {name})):
                    return False
        return True

    def _left(self, e: Expr, name: str) -> bool | None:
        """None: what is read of the name goes into rows as a whole; True: element by element into the value of the expression; False: neither."""
        if name not in names(e):
            return None
        if isinstance(e, Name):
            return True
        op, args = operation(self.checked, e)
        found = [self._left(a, name) for a in args]
        what = entry(self.checked, e)
        if (
            what is not None and what[0].sums and len(what[0].params) > 1
        ):  # a product: the left operand by rows, the accumulator by elements
            return False if False in found or found[1] else None if not any(found[2:]) else True
        if False in found:
            return False
        if not any(found) or (what is not None and what[0].reduces):
            return None
        t = self.checked.find_type(e)
        return op in SPREADING or (op == "cast" and isinstance(t, TileType) and t.dtype.is_float)

    def _of_name(self, name: Name, seen: frozenset[str], ask: object) -> bool:
        if name.id in seen:
            return False
        bound: list[Stmt] = self.role.facts.definitions.get(name.id, [])
        values = [s.value for s in bound if isinstance(s, Assign)]
        if not bound:
            values = [s.value for s in self.checked.declarations if isinstance(s, Assign) and s.targets[0] == name.id]
        if not values:  # a parameter
            return ask == self._negative
        return any(ask(v, seen | {name.id}) for v in values)  # type: ignore[operator]

    def _is_float(self, expr: Expr) -> bool:
        t = self.checked.find_type(expr)
        return isinstance(t, (Scalar, TileType)) and t.dtype.is_float

    def _floats(self, args: list[Expr]) -> list[Expr]:
        return [a for a in args if self._is_float(a)]


__all__ = ["Nans"]
