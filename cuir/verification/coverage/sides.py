"""Sides of conditions by their place in the text: what inlining and unrolling repeat counts once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .conditions import Condition
from .coverage_loop import Coverage
from .origins import NUMBERS
from .targets import Target

Place = tuple[object, ...]


@dataclass(frozen=True)
class Side:
    """A side of a condition at its place in the text.

    instances: those that a launch may take. unseen: those that no run has taken.
    """

    instances: tuple[Target, ...]
    unseen: tuple[Target, ...]

    @property
    def condition(self) -> Condition:
        """The condition of the first instance."""
        return self.instances[0].condition

    @property
    def by_data(self) -> bool:
        """Return whether data decide every instance."""
        return all(t.condition.level > NUMBERS for t in self.instances)

    @property
    def is_seen(self) -> bool:
        """True if no instance is unseen."""
        return not self.unseen


def collect_sides(coverage: Coverage) -> list[Side]:
    """Collect the sides that a launch may take, each place of the text once.

    A side is seen if a run has taken one of its instances, and no other instance has a problem that was found and not
    run.
    """
    masks, instances = coverage.observed.masks(), dict[Place, list[Target]]()
    for c in coverage.observed.conditions:
        possible = c.all_sides & ~(coverage.impossible[c.number] & ~masks[c.number])
        for side in range(len(c.sides)):
            if possible >> side & 1:
                instances.setdefault((*make_place_key(c), side), []).append(Target("side", c, side))
    return [Side(tuple(targets), _list_unseen_instances(coverage, masks, targets)) for targets in instances.values()]


def _list_unseen_instances(coverage: Coverage, masks: list[int], targets: Sequence[Target]) -> tuple[Target, ...]:
    unseen = [t for t in targets if not masks[t.condition.number] >> t.number & 1]
    with_problem = [t for t in unseen if coverage.case_of(t) is not None]
    return tuple(with_problem or unseen) if with_problem or len(unseen) == len(list(targets)) else ()


def make_place_key(c: Condition) -> Place:
    """Return the key of the place in the text of a condition, the same for all inlined copies."""
    span = c.span
    return span.source, span.line, span.column, span.end_line, span.end_column, c.kind


__all__ = ["Side", "collect_sides", "make_place_key"]
