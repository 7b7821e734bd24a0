"""Checks of accesses to shared memory: happens-before order, and that the bytes read were written.

Uses declared memory effects, names no primitive. Invariant: an access that was entered is ordered after all records
that it conflicts with, unless detection is off.
"""

from __future__ import annotations

from ..ops.base import Op
from ..sync.accesses import Finding, drop_replaced_reads, find_races
from .access_records import Actor, Record
from .cause_chains import CauseNote
from .causes import explain_conflict, make_unwritten_fault
from .clocks import Event
from .faults import make_finding_fault
from .machine import Machine, Worker
from .memory import SharedRef
from .trace_times import record_earlier_access


def touch(
    op: Op,
    w: Worker,
    actor: Actor,
    refs: dict[str, SharedRef],
    completion: Event | None,
    awaited: str = "",
    needed: SharedRef | None = None,
) -> list[Record]:
    """Enter the accesses of a call to shared memory, as the table declares them.

    completion: None while an engine has them in flight. needed: the part of the read that matters, by default all of
    it. Raises CuirError R401 (race), R403 (missing fence), M401 (never written).
    """
    m, records = w.m, []
    for a in op.effects.accesses:
        ref = refs.get(a.arg)
        if ref is not None:
            records.append(access(m, actor, ref, a.mode, a.proxy, completion, awaited))
            if a.mode == "read" and m.launch.detect and m.shared[ref.cta].is_undefined(needed or ref):
                raise make_unwritten_fault(m, actor, ref)
    return records


def access(m: Machine, actor: Actor, ref: SharedRef, mode: str, proxy: str, completion: Event | None, awaited: str = "") -> Record:
    """Check a shared memory access for races with all earlier ones, and record it.

    Raises CuirError R401 (race) or R403 (missing fence).

    Args:
        mode: "read", "write" or another mode of an access.
        proxy: the proxy through which the access is made.
        completion: None while an engine may still make it.
    """
    tracker = m.trackers[ref.cta]
    record = Record(actor, mode, proxy, completion, ref.text, awaited)
    w = m.workers[actor.worker]
    record.tick, record.time, record.unit = m.tick, w.time, w.unit
    reads, detect = mode == "read", m.launch.detect
    for region, covered in tracker.overlapping(ref.intervals):
        if detect and region.records:
            for old, finding in find_races(record, region.records, actor.clock):
                raise _make_fault(m, record, old, finding, ref)
        if covered and not reads:
            region.records.clear()
    home = tracker.regions[ref.intervals]
    if reads:
        home.records = drop_replaced_reads(home.records, record, actor.clock)
    home.records.append(record)
    return record


def _make_fault(m: Machine, new: Record, old: Record, finding: Finding, ref: SharedRef) -> Exception:
    """Make the error of a broken rule; of a race with its cause, as the log of the run shows it."""
    if finding.code != "R401":
        return make_finding_fault(m, finding)
    records = (r for near, _ in m.trackers[ref.cta].overlapping(ref.intervals) for r in near.records)
    former = max((r.tick for r in records if r.worker == new.worker and r.mode == new.mode), default=-1)
    cause = explain_conflict(m, new, old, former, ref.cta)
    place = f" in line {new.span.line}" if new.span.line != old.span.line else ""
    notes: list[CauseNote] = [*cause.notes, (f"{old.description} here must be over before the {new.mode}{place}", old.span)]
    if -1 < old.unit != new.unit > -1:
        notes.append((describe_units(m, old.unit, new.unit), None))
    record_earlier_access(m, old)
    return make_finding_fault(m, finding, cause.hint, notes)


def describe_units(m: Machine, earlier: int, later: int) -> str:
    """Describe the two units of work that two accesses are of.

    This explains what only large problems show.
    """
    owner = "cluster" if m.launch.checked.cluster > 1 else "CTA"
    return (
        f"the two accesses are of two units of work of one {owner}, its units {earlier + 1} and {later + 1}: "
        f"this pair needs more units of work than {owner}s"
    )
