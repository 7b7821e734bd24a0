"""Coverage targets: sides, values at a boundary, and trip counts of each remainder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ...checking.checked import Checked
from ...checking.decisions import definitions
from ...ops.expressions import traits
from ...syntax.nodes import Assign, Binary, Call, Expr, For, Name
from ...syntax.nodes import Literal as Number
from ...syntax.printer import show
from ...syntax.walk import IdentityKey, names_read, walk
from .conditions import Condition, collect_conditions, list_boundary_numbers
from .scalar_program import Masks

ALL_REMAINDERS = 16  # every remainder of divisors up to this; 0, 1 and the last of larger ones
LARGEST_DIVISOR = 4096


@dataclass(frozen=True)
class Target:
    """A side of a condition, a difference at a boundary, or a remainder of a trip count.

    A difference -1, 0 or 1 is that of the compared values; the trip count is of an enclosing loop and at least one
    period. number: of the side, the difference, or the remainder. loop: number of the loop's condition, None for the
    loop over units of work.
    """

    kind: Literal["side", "near", "remainder"]
    condition: Condition
    number: int
    divisor: int = 1
    loop: int | None = None

    @property
    def required(self) -> bool:
        """Return whether the report names the target if no run meets it."""
        return self.kind == "side"

    def is_met(self, masks: Masks) -> bool:
        """Return whether an evaluation of a launch meets the target."""
        at = self.condition.number
        if self.kind == "side":
            return bool(masks.sides[at] >> self.number & 1)
        if self.kind == "near":
            return bool(masks.near[at] >> self.number + 1 & 1)
        return self.is_met_by_counts(masks.units if self.loop is None else masks.turns[self.loop])

    def is_met_by_counts(self, counts: set[int]) -> bool:
        """Return whether one of the trip counts, at least one period, leaves the remainder."""
        return any(n >= self.divisor and n % self.divisor == self.number for n in counts)


def list_unseen_sides(conditions: Sequence[Condition], masks: Sequence[int]) -> list[Target]:
    """List sides that no run has taken."""
    return [Target("side", c, side) for c in conditions for side in range(len(c.sides)) if not masks[c.number] >> side & 1]


def list_unseen_remainders(checked: Checked, counts: Mapping[IdentityKey, set[int]]) -> list[Target]:
    """List remainders that no trip count of a loop has left.

    counts: the trip counts of each loop, in all runs.
    """
    conditions, missing = collect_conditions(checked), dict[tuple[str, int, int], Target]()
    numbers = {IdentityKey(c.node): c.number for c in conditions if isinstance(c.node, For)}
    for c in conditions:
        divisor = compute_period(c)
        if not 2 <= divisor <= LARGEST_DIVISOR or c.tile:
            continue
        for loop in find_counting_loops(checked, c):
            number = numbers.get(IdentityKey(loop)) if isinstance(loop.iter, Call) else None
            if number is None and isinstance(loop.iter, Call):
                continue  # the trip count is constant
            for remainder in range(divisor) if divisor <= ALL_REMAINDERS else (0, 1, divisor - 1):
                target = Target("remainder", c, remainder, divisor, number)
                if not target.is_met_by_counts(counts.get(IdentityKey(loop), set())):
                    missing.setdefault((show(loop.iter), divisor, remainder), target)
    return list(missing.values())


def list_boundary_targets(conditions: Sequence[Condition]) -> Iterator[Target]:
    """Yield differences of -1, 0 and 1 from the number in a comparison."""
    for c in conditions:
        if c.kind == "comparison" and not c.tile and list_boundary_numbers(c):
            yield from (Target("near", c, d) for d in (-1, 0, 1))


def compute_period(c: Condition) -> int:
    """Return after how many steps of a counter a condition repeats; 0 if the text does not tell."""
    if c.kind == "bits":
        return c.by + 1 if c.by > 0 and c.by & c.by + 1 == 0 else 0
    if c.kind not in ("remainder", "quotient"):
        return 0
    inner, divisor = c.operands[0], c.by
    if isinstance(inner, Binary) and traits(inner).rounds is not None and isinstance(inner.right, Number):
        divisor *= int(inner.right.value)
    return divisor


def find_counting_loops(checked: Checked, c: Condition) -> list[For]:
    """Return the enclosing loops whose counters the condition's operand is computed from.

    Only by sums, multiples and quotients by numbers.
    """
    if not c.loops or not c.operands or c.role < 0:
        return []
    bound_values = definitions(checked.roles[c.role].body)
    names = _find_counters(c.operands[0], bound_values)
    return [loop for loop in c.loops if loop.target in names or names & _find_carried_names(loop)]


def _find_counters(e: Expr, bound_values: Mapping[str, Sequence[Expr]], depth: int = 8) -> set[str]:
    """Return the names of which an expression is a sum, a multiple or a quotient by a number.

    Empty where it is anything else.
    """
    if isinstance(e, Name):
        bound = bound_values.get(e.id, [])
        return {e.id, *(_find_counters(bound[0], bound_values, depth - 1) if len(bound) == 1 and depth else ())}
    if isinstance(e, Binary) and isinstance(e.right, Number) and (traits(e).linear or traits(e).multiplies or traits(e).rounds):
        return _find_counters(e.left, bound_values, depth)
    if isinstance(e, Binary) and traits(e).linear:
        return _find_counters(e.left, bound_values, depth) | _find_counters(e.right, bound_values, depth)
    return set()


def trace_names(e: Expr, bound_values: Mapping[str, Sequence[Expr]]) -> set[str]:
    """Return the names that an expression reads, and those that these are computed from."""
    names, pending = set[str](), [e]
    while pending:
        for name in names_read(pending.pop()) - names:
            names.add(name)
            pending += bound_values.get(name, [])
    return names


def _find_carried_names(loop: For) -> set[str]:
    """Return loop-carried names: a turn computes them from their previous value."""
    return {n.targets[0] for s in loop.body for n in walk(s) if isinstance(n, Assign) and n.targets[0] in names_read(n.value)}


__all__ = [
    "Target",
    "compute_period",
    "find_counting_loops",
    "list_boundary_targets",
    "list_unseen_remainders",
    "list_unseen_sides",
    "trace_names",
]
