"""The argument for a left-out choice: where its condition fails, both sides are one expression.

It is worked out from the definitions before it. `where(warp_any(m), where(m, x, y), y)` is `where(m, x, y)`: no row of
a warp that votes no has m.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..ops.expressions import is_where, traits
from ..ops.traits import DIFFERENCE
from ..syntax.nodes import Assign, Binary, Call, Expr, Func, Literal, Name
from ..syntax.printer import show
from ..syntax.rewrite import replace_node
from ..syntax.walk import count_assignments, names_read
from .mutant_comparison import Trial

_NAN = Binary("-", Name("inf"), Name("inf"))


def needless_choice(t: Trial) -> str | None:
    """Argue for `where(c, x, y)` that became x: where c does not hold, x is y by the definitions.

    A difference of equal values is 0 where they are finite, which runs of a kernel that gives NaN elsewhere show.
    """
    node, func = t.at.node, next((p for p in t.at.parents if isinstance(p, Func)), None)
    if func is None or not isinstance(node, Call) or not is_where(node) or len(node.args) != 3 or t.new != node.args[1]:
        return None
    statement = next((i for i, s in enumerate(func.body) if any(s is p for p in t.at.parents)), None)
    if statement is None:
        return None
    condition, chosen, alternative = node.args
    reduced = _Reduced(_list_definitions(func, statement), condition)
    if reduced.reduce(chosen) != reduced.reduce(alternative):
        return None
    reason = f"where `{show(condition)}` does not hold, `{show(chosen)}` is `{show(alternative)}` by the definitions before it"
    if not reduced.cancelled:
        return reason
    marked: Expr = node
    for x in reduced.cancelled:
        finite = Binary("==", Binary("-", x, x), Literal(0.0))
        marked = replace(node, args=(Binary("|", condition, finite), marked, _NAN))
    if not t.has_same_bits(replace_node(t.program, t.at.path, marked)):
        return None
    finite_values = ", ".join(f"`{show(x)}`" for x in reduced.cancelled)
    return f"{reason}; {finite_values} is finite there in {t.runs} runs (a program that gives NaN where it is not gives the same bits)"


def _list_definitions(func: Func, end: int) -> dict[str, Expr]:
    """Return the values of names that a function binds once, before a statement of its body.

    The names are bound outside of branches.
    """
    counts = count_assignments(func.body)
    before = [s for s in func.body[:end] if isinstance(s, Assign) and len(s.targets) == 1]
    return {s.targets[0]: s.value for s in before if counts[s.targets[0]] == 1 and _is_settled(s.value, counts)}


def _is_settled(e: Expr, counts: Mapping[str, int]) -> bool:
    """Return whether no name in an expression is bound again."""
    return all(counts[name] <= 1 for name in names_read(e))


class _Reduced:
    """Expressions under the assumption that a condition does not hold.

    cancelled: expressions of which a difference with themselves was taken for 0.
    """

    def __init__(self, definitions: Mapping[str, Expr], condition: Expr):
        self.definitions = definitions
        self.cancelled: list[Expr] = []
        self.false: list[Expr] = []
        self._assume_false(condition)

    def reduce(self, e: Expr) -> Expr:
        """Return the expression without choices that are decided, and with what follows from them."""
        if isinstance(e, Name):
            value = self.definitions.get(e.id)
            return self.reduce(value) if value is not None and self._is_decided(value) else e
        if self._is_decided(e):
            assert isinstance(e, Call)
            return self.reduce(e.args[2])
        if isinstance(e, Binary):
            left, right = self.reduce(e.left), self.reduce(e.right)
            if traits(e).linear == DIFFERENCE and left == right:
                if left not in self.cancelled:
                    self.cancelled.append(left)
                return Literal(0.0)
            return replace(e, left=left, right=right)
        if isinstance(e, Call):
            args: Sequence[Expr] = tuple(self.reduce(a) for a in e.args)
            if traits(e).exponential is not None and args == (Literal(0.0),):
                return Literal(1.0)
            return replace(e, args=tuple(args))
        return e

    def _assume_false(self, condition: Expr) -> None:
        """Record that a condition is false, and so are its definition and the operand of a vote."""
        while condition not in self.false:
            self.false.append(condition)
            if isinstance(condition, Name) and condition.id in self.definitions:
                condition = self.definitions[condition.id]
            elif isinstance(condition, Call) and traits(condition).votes and len(condition.args) == 1:
                condition = condition.args[0]

    def _is_decided(self, e: Expr) -> bool:
        """Return whether an expression is a choice whose condition does not hold."""
        return isinstance(e, Call) and is_where(e) and len(e.args) == 3 and e.args[0] in self.false


__all__ = ["needless_choice"]
