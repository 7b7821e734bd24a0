"""Rows of a timeline for barriers: their phases over time.

They have a tick for each arrival and each copy that lands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..interp.event_trace import SyncStep
from .schedule_steps import BarrierState, sort_key


@dataclass
class BarrierRow:
    """Row of an mbarrier.

    Attributes:
        phases: First and last cycle of each phase; the last one may still be under way.
        ticks: Cycle and description of what arrived or landed.
    """

    name: str
    phases: list[tuple[float, float]] = field(default_factory=list)
    ticks: list[tuple[float, str, int]] = field(default_factory=list)


def make_barrier_rows(steps: Sequence[SyncStep], end: float) -> list[BarrierRow]:
    """Return a row for each mbarrier that is used, in the order of names. end: last cycle of the picture."""
    rows: dict[str, BarrierRow] = {}
    states: dict[str, BarrierState] = {}
    begun: dict[str, float] = {}
    for step in steps:
        if step.kind not in ("arrive", "land"):
            continue
        row = rows.setdefault(step.target, BarrierRow(step.target))
        before = states.get(step.target, BarrierState())
        after = states[step.target] = before.after(step)
        row.ticks.append((step.cycle, f"{step.actor} {'arrives' if step.kind == 'arrive' else 'lands'}, phase {before.phase}", step.line))
        if after.phase != before.phase:
            start = begun.get(step.target, 0.0)
            row.phases.append((start, max(step.cycle, start)))
            begun[step.target] = max(step.cycle, start)
    for name, row in rows.items():
        row.phases.append((begun.get(name, 0.0), max(end, begun.get(name, 0.0))))
    return sorted(rows.values(), key=lambda row: sort_key(row.name))
