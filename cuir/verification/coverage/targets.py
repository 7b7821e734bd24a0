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
from ...syntax.walk import Itself, names_read, walk
from .conditions import Condition, boundary, collect_conditions
from .scalar_program import Masks

ALL_REMAINDERS = 16  # of a divisor up to this each remainder is wanted, of larger ones 0, 1 and the last
LARGEST_DIVISOR = 4096


@dataclass(frozen=True)
class Target:
    """A side of a condition; a difference -1, 0 or 1 of what it compares; or a number of turns of a loop around it that leaves a remainder after at least one whole round.

    number: of the side, the difference, or the remainder. loop: number of the loop's condition, None for the loop over units of work.
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
        """Return whether one of the trip counts leaves the remainder after at least one whole round."""
        return any(n >= self.divisor and n % self.divisor == self.number for n in counts)


def sides_left(conditions: Sequence[Condition], seen: Sequence[int]) -> list[Target]:
    """Sides that no run has taken."""
    return [Target("side", c, side) for c in conditions for side in range(len(c.sides)) if not seen[c.number] >> side & 1]


def remainders_left(checked: Checked, counts: Mapping[Itself, set[int]]) -> list[Target]:
    """Remainders that no loop's number of turns has left. counts: the numbers of turns of each loop, in all runs."""
    conditions, left = collect_conditions(checked), dict[tuple[str, int, int], Target]()
    numbers = {Itself(c.node): c.number for c in conditions if isinstance(c.node, For)}
    for c in conditions:
        divisor = period(c)
        if not 2 <= divisor <= LARGEST_DIVISOR or c.tile:
            continue
        for loop in loops_that_count(checked, c):
            number = numbers.get(Itself(loop)) if isinstance(loop.iter, Call) else None
            if number is None and isinstance(loop.iter, Call):
                continue  # as many turns in every launch
            for remainder in range(divisor) if divisor <= ALL_REMAINDERS else (0, 1, divisor - 1):
                target = Target("remainder", c, remainder, divisor, number)
                if not target.is_met_by_counts(counts.get(Itself(loop), set())):
                    left.setdefault((show(loop.iter), divisor, remainder), target)
    return list(left.values())


def boundaries_left(conditions: Sequence[Condition]) -> Iterator[Target]:
    """Differences of -1, 0 and 1 of what is compared with a number."""
    for c in conditions:
        if c.kind == "comparison" and not c.tile and boundary(c):
            yield from (Target("near", c, d) for d in (-1, 0, 1))


def period(c: Condition) -> int:
    """After how many turns of a counter that grows by one a condition repeats itself; 0 if the text does not say."""
    if c.kind == "bits":
        return c.by + 1 if c.by > 0 and c.by & c.by + 1 == 0 else 0
    if c.kind not in ("remainder", "quotient"):
        return 0
    inner, divisor = c.operands[0], c.by
    if isinstance(inner, Binary) and traits(inner).rounds is not None and isinstance(inner.right, Number):
        divisor *= int(inner.right.value)
    return divisor


def loops_that_count(checked: Checked, c: Condition) -> list[For]:
    """The loops around a condition whose counters its operand is made of, by sums, multiples and quotients by numbers alone."""
    if not c.loops or not c.operands or c.role < 0:
        return []
    made = definitions(checked.roles[c.role].body)
    names = _counters(c.operands[0], made)
    return [loop for loop in c.loops if loop.target in names or names & _carried(loop)]


def _counters(e: Expr, made: Mapping[str, Sequence[Expr]], depth: int = 8) -> set[str]:
    """Names of which an expression is a sum, a multiple or a quotient by a number; nothing where it is anything else."""
    if isinstance(e, Name):
        bound = made.get(e.id, [])
        return {e.id, *(_counters(bound[0], made, depth - 1) if len(bound) == 1 and depth else ())}
    if isinstance(e, Binary) and isinstance(e.right, Number) and (traits(e).linear or traits(e).multiplies or traits(e).rounds):
        return _counters(e.left, made, depth)
    if isinstance(e, Binary) and traits(e).linear:
        return _counters(e.left, made, depth) | _counters(e.right, made, depth)
    return set()


def names_behind(e: Expr, made: Mapping[str, Sequence[Expr]]) -> set[str]:
    """The names that an expression reads, and those that these are made of."""
    names, left = set[str](), [e]
    while left:
        for name in names_read(left.pop()) - names:
            names.add(name)
            left += made.get(name, [])
    return names


def _carried(loop: For) -> set[str]:
    """Names that a turn makes of their value before it."""
    return {n.targets[0] for s in loop.body for n in walk(s) if isinstance(n, Assign) and n.targets[0] in names_read(n.value)}


__all__ = ["Target", "boundaries_left", "loops_that_count", "names_behind", "period", "remainders_left", "sides_left"]
