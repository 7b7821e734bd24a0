"""Bounds of the i32 expressions of a tree, from the bounds of what they read.

For code that has no IR: a mod that no kernel has yet, and a launch. Building a kernel's IR takes 20 ms of CPU time, and
importing xDSL 130 ms, where the first launch of a cached kernel bounds its indices in 0.03 ms. The results are those of
`lowering/analyses/ranges.py`, which bounds the IR's values.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..syntax.nodes import Expr, Literal, Name, Subscript
from ..syntax.types import I32
from .base import Op
from .expressions import operation
from .meaning.intervals import Bounds


class ExpressionBounds:
    """Least and greatest values of i32 expressions; None where nothing is known.

    Subclasses bound names and reads, and refuse results.

    Attributes:
        ctas: The number of CTAs of a cluster.
    """

    ctas = 1

    def bound(self, e: Expr) -> Bounds:
        """Return the bounds of an expression."""
        if isinstance(e, Literal):
            return (int(e.value), int(e.value)) if isinstance(e.value, int) else None
        if isinstance(e, Name):
            return self.bound_name(e.id)
        match = self.find_operation(e)
        if match is None:
            return self.bound_read(e) if isinstance(e, Subscript) else None
        op, args = match
        if op.traits.converts:
            return self.bound(args[0]) if Name(I32.name) in args[1:] else None
        if op.traits.rank:
            return 0, self.ctas - 1
        operands = [self.bound(a) for a in args]
        if op.traits.index_of:
            return (0, operands[0][1] - 1) if operands[0] is not None else None
        return None if op.evaluate is None else self.bound_result(e, op, operands)

    def find_operation(self, e: Expr) -> tuple[Op, Sequence[Expr]] | None:
        """Return an operation and its operands; None for other expressions."""
        return operation(e)

    def bound_name(self, name: str) -> Bounds:
        """Return the bounds of a name."""
        raise NotImplementedError

    def bound_read(self, e: Subscript) -> Bounds:
        """Return the bounds of a read of a tensor."""
        return None

    def bound_result(self, e: Expr, op: Op, operands: Sequence[Bounds]) -> Bounds:
        """Return the bounds of an operation's result, by those of its operands."""
        assert op.evaluate is not None
        return op.evaluate.interval(*operands)


__all__ = ["ExpressionBounds"]
