"""Explanations of conflicts and broken barrier protocols: the wait, arrival, count or bytes at fault.

Each question goes back along the chain that should have ordered two accesses: the barrier that the earlier party
arrives on (or that its copy lands on), the wait of the later party there, the phase that this wait was for, and what
ended that phase. Faults are detected elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..sync.accesses import Finding
from ..text.source import Span
from .access_records import Actor, Record
from .arrival_counts import find_crowded_barrier, find_return_ring, find_short_phase, find_wrong_count
from .barrier_state import Event, Mbarrier
from .cause_chains import (
    Cause,
    CauseNote,
    describe_immediate_wait,
    find_announcement,
    find_extra_arrival,
    find_idle_wait,
    find_place,
    find_second_arrival,
    find_sibling_wait,
    find_stray_event,
    find_torn_copy,
    find_unwaited_release,
    find_wrong_bytes,
    format_labels,
    get_barrier_uses,
    get_ring,
    hint_parity,
    list_all_waits,
    list_arrivals,
    list_mbarriers,
    list_waits,
)
from .faults import make_fault, make_finding_fault
from .late_waits import LateWait, find_late_barrier_wait, find_late_group_wait, find_lax_group_wait
from .machine import Machine, Worker
from .memory import SharedRef
from .multicasts import explain_multicast


def _explain_overwrite(m: Machine, copy: Record, reader: Worker, wait: Event) -> Cause | None:
    """Explain why bytes that a reader waited for have been written over before its read.

    Returns why whoever refilled the buffer did not wait for the reader, or None if the log does not show it.
    """
    bar, uses = copy.bar, get_barrier_uses(m.launch.checked)
    assert bar is not None
    filler = m.workers[copy.worker]
    name, stage, _ = find_place(m, bar)
    guard = uses.guards.get((filler.program.name, copy.span))
    rings = [guard.name] if guard is not None else []
    rings = [n for n in rings if reader.program.name in {u.role for u in uses.find("arrives", n)}]
    issue = next((e for e in bar.events() if e.kind == "issue" and e.span == copy.span and e.tick > wait.tick), None)
    issue_tick = issue.tick if issue is not None else 1 << 60
    if not rings:
        shared_names = [
            n for n in {u.name for u in uses.find("arrives", role=reader.program.name)} if uses.find("waits", n, filler.program.name)
        ]
        barrier_text = f"`{shared_names[0]}`" if len(shared_names) == 1 else "a barrier that the reader arrives on"
        equal_rings = [n for n in shared_names if len(m.barriers[n, filler.cta]) == len(m.barriers[name, find_place(m, bar).cta])]
        barrier_text = f"`{equal_rings[0]}`" if len(equal_rings) == 1 and len(shared_names) > 1 else barrier_text
        unguarded = Cause(
            [("this copy writes over what is still read", copy.span)],
            f"no wait by {filler.label} on {barrier_text} lies before this copy, which writes over what {reader.label} is still to read",
            1,
        )
        late_waits = [_find_late_wait(m, filler, copy.span, n) for n in equal_rings or shared_names]
        return _blame_late_wait(unguarded, next(filter(None, late_waits), None), "copy", copy.span)
    ring = get_ring(m, rings[0], filler.cta)
    last_wait = max(
        ((e, b) for b in ring for e in list_waits(b, filler.number) if e.tick < issue_tick), key=lambda x: x[0].tick, default=None
    )
    if last_wait is None:
        return None
    e, b = last_wait
    if e.at_once and (e.phase >= 0 or any(o.tick < e.tick for o in list_waits(b, filler.number))):
        return Cause([(describe_immediate_wait(b, e), e.span)], hint_parity(m, b, e.phase + 1), 2)
    second_arrival = find_second_arrival(b, e.phase)
    if second_arrival is not None:
        return second_arrival
    count = find_wrong_count(m, b)
    if count is not None:
        return count
    for x in {a.worker for a in list_arrivals(b, e.phase)} | {reader.number}:
        cause = find_unwaited_release(m, x, rings[0], filler.cta)
        if cause is not None:
            return cause
    if len(ring) > 1 and ring.index(b) != stage and len(ring) == len(m.barriers[name, find_place(m, bar).cta]):
        return Cause(
            [(f"{filler.label} waits on `{b.text}` here, and its copy lands on `{bar.text}`: another stage", e.span)],
            "the wait, the copy and the array's view have the same stage",
            1,
        )
    early_arrivals = list_arrivals(b, e.phase, reader.number)
    return _explain_early_arrival(reader, b, early_arrivals[0], filler) if early_arrivals else None


def _explain_early_arrival(reader: Worker, bar: Mbarrier, arrival: Event, filler: Worker) -> Cause:
    return Cause(
        [(f"{reader.label} arrives on `{bar.text}` here, before its read: that lets {filler.label} write over it", arrival.span)],
        f"{reader.label} arrives on `{bar.text}` after its last read",
        2,
    )


def _get_position(at: Event | Record) -> tuple[int, int]:
    """Return line and column of an event's statement."""
    return at.span.line, at.span.column


def explain_conflict(m: Machine, new: Record, old: Record, former: int, cta: int) -> Cause:
    """Explain why an access is not ordered after an earlier one to bytes of a CTA.

    former: the tick of the last access of the same kind that the new party made to these bytes, or -1.
    """
    if new.worker == old.worker and old.bar is None:
        after = f": {old.label} is over after {old.awaited}" if old.awaited else ""
        lax = find_lax_group_wait(m.launch.checked, m.workers[new.worker].program.name, new.span, old.span)
        if lax is not None:
            wait, remaining = lax
            note = f"this {wait.text()} leaves the last {remaining} in flight, {old.label} among them"
            return Cause([(note, wait)], f"wait for {old.label} before the {new.mode}: leave fewer than {remaining} in flight", 1)
        late = find_late_group_wait(m.launch.checked, m.workers[new.worker].program.name, new.span, old.span)
        hint = (
            after.removeprefix(": ") if late is not None else f"{m.workers[new.worker].label} must wait for its own earlier access{after}"
        )
        return _blame_late_wait(Cause([], hint), late, new.mode, new.span)
    arrives_here = old.bar is None and any(
        find_place(m, bar).cta == m.workers[new.worker].cta for bar in list_mbarriers(m) if list_arrivals(bar, worker=old.worker)
    )
    if m.workers[new.worker].cta != cta and not arrives_here:
        return explain_multicast(m, new, old, cta)
    cause = _explain_copy(m, new, old, former) if old.bar is not None else _explain_release(m, new, old, former)
    return cause


def _explain_copy(m: Machine, new: Record, old: Record, former: int) -> Cause:
    """Explain a conflict with a copy, which is complete when its phase of a barrier is."""
    bar, w = old.bar, m.workers[new.worker]
    assert bar is not None
    issue = next((e for e in bar.events() if e.kind == "issue" and e.span == old.span and e.tick >= old.tick), None)
    if issue is None:
        issue = next((e for e in bar.events() if e.kind == "issue" and e.span == old.span), None)
    landing_phase = old.completion[1] if old.completion is not None else None
    announcement = find_announcement(bar.events(), issue) if issue is not None else None
    expected_phase = (
        announcement.phase
        if announcement is not None
        else issue.phase
        if issue is not None
        else landing_phase
        if landing_phase is not None
        else bar.phase
    )
    place = find_place(m, bar)
    torn_cause = find_torn_copy(m, place.ring, place.cta)
    if torn_cause is not None:
        return torn_cause
    waits = list_waits(bar, new.worker)
    wait = waits[0] if waits else None
    sibling = find_sibling_wait(m, bar, new.worker, max(former, wait.tick if wait else -1))
    landing = f"the copy lands in phase {expected_phase if landing_phase is None else landing_phase}"
    if (
        wait is not None
        and wait.at_once
        and wait.phase < (expected_phase if landing_phase is None else landing_phase)
        and wait.tick > former
    ):
        return Cause(
            [(f"{describe_immediate_wait(bar, wait)}; {landing}", wait.span)],
            hint_parity(m, bar, expected_phase if landing_phase is None else landing_phase),
            2,
        )
    if wait is not None and wait.phase >= expected_phase:
        bytes_cause = find_wrong_bytes(bar, wait.phase) or find_wrong_bytes(bar, expected_phase)
        if bytes_cause is not None:
            text, at = bytes_cause.notes[0]
            return Cause([(f"{text}: the phase ended before this copy had landed", at)], bytes_cause.hint, 2)
        extra_arrival = find_extra_arrival(bar, wait.phase)
        if extra_arrival is not None:
            return extra_arrival
        return Cause(
            [(f"this wait returned when phase {wait.phase} of `{bar.text}` was over, which ended before the copy landed", wait.span)],
            "the phase must expect the bytes of this copy: expect(nbytes(view))",
        )
    release_name = next((n for n, p in get_barrier_uses(m.launch.checked).pairs.items() if p == find_place(m, bar).ring), None)
    ring = get_ring(m, release_name or "", w.cta)
    # the buffer was released since: the wait was for the previous turn
    if wait is not None and len(ring) == len(m.barriers[find_place(m, bar).ring, find_place(m, bar).cta]):
        releases = list_arrivals(ring[find_place(m, bar).stage], worker=new.worker)
        early = next((e for e in releases if e.tick > wait.tick and _get_position(wait) < _get_position(e) < _get_position(new)), None)
        if early is not None and new.mode == "read" and wait.phase == (expected_phase if landing_phase is None else landing_phase) - 1:
            return _explain_early_arrival(w, ring[find_place(m, bar).stage], early, m.workers[old.worker])
        former = max([former, *(e.tick for e in releases if e.tick > wait.tick)])
        sibling = find_sibling_wait(m, bar, new.worker, max(former, wait.tick))
    if wait is not None and wait.tick > former and new.mode == "read":
        overwrite = _explain_overwrite(m, old, w, wait)
        if overwrite is not None:
            return overwrite
    if sibling is not None:
        return Cause(
            [
                (
                    f"{w.label} waits on `{sibling[1].text}` here, and the copy lands on `{bar.text}`: no wait on that one lies before this {new.mode}",
                    sibling[0].span,
                )
            ],
            "wait on the barrier of the stage that is used: the i-th use is of stage i % n",
            1,
        )
    notes = [(f"{w.label} waited on `{bar.text}` here for phase {wait.phase}; {landing}", wait.span)] if wait is not None else []
    cause = Cause(
        notes,
        f"no wait by {w.label} on `{bar.text}` lies before this {new.mode}: wait there for phase {landing_phase if landing_phase is not None else expected_phase}, parity {(landing_phase if landing_phase is not None else expected_phase) % 2}, in which the copy lands",
        1,
    )
    return _blame_late_wait(cause, _find_late_wait(m, w, new.span, place.ring), new.mode, new.span)


def _explain_release(m: Machine, new: Record, old: Record, former: int) -> Cause:
    """Explain a conflict with an access after which a worker arrives on a barrier.

    The access is the worker's, or an engine's that the worker waits for.
    """
    uses, w, owner = get_barrier_uses(m.launch.checked), m.workers[new.worker], m.workers[old.worker]
    completion_epoch = old.completion[1] if old.completion is not None and old.completion[0] == old.worker else None
    local_barriers = [bar for bar in list_mbarriers(m) if find_place(m, bar).cta == w.cta]  # those that `w` can wait on
    arrivals = sorted(((e, bar) for bar in local_barriers for e in list_arrivals(bar, worker=old.worker)), key=lambda x: x[0].tick)
    awaited_names = {u.name for u in uses.find("waits", role=w.program.name)}
    shared_arrivals = [(e, bar) for e, bar in arrivals if find_place(m, bar).ring in awaited_names]
    later_arrivals = [
        (e, bar) for e, bar in shared_arrivals if completion_epoch is not None and e.epoch >= completion_epoch and e.tick > old.tick
    ]
    finished = f"its {old.mode} is over" if not old.awaited else f"its {old.mode} is over ({old.awaited})"
    if not shared_arrivals and not later_arrivals:
        return _explain_missing_barrier(m, new, old)
    guard = uses.guards.get((w.program.name, new.span))
    guard_name = guard.name if guard is not None and guard.name in {find_place(m, b).ring for _, b in shared_arrivals} else None
    guard_arrivals = [(e, bar) for e, bar in later_arrivals if find_place(m, bar).ring == guard_name]
    guard_waits = [
        (e, b) for b in list_mbarriers(m) if find_place(m, b).ring == guard_name for e in list_waits(b, new.worker) if e.tick > former
    ]
    if guard_arrivals and guard_waits and (newest := max(guard_waits, key=lambda x: x[0].tick))[1] is not guard_arrivals[0][1]:
        stray_release = find_unwaited_release(m, old.worker, str(guard_name), w.cta)
        early_arrivals = list_arrivals(newest[1], newest[0].phase, old.worker)
        if stray_release is None and early_arrivals and early_arrivals[0].tick <= old.tick:
            return _describe_early_release(owner, newest[1], early_arrivals[0], old, new, finished)
        return stray_release or Cause(
            [
                (
                    f"{w.label} waits on `{newest[1].text}` here, and {owner.label} gives these bytes back by arriving on `{guard_arrivals[0][1].text}`",
                    newest[0].span,
                ),
                (f"{owner.label} arrives here", guard_arrivals[0][0].span),
            ],
            "wait and arrive on the barrier of the stage that is used: the i-th use is of stage i % n",
            1,
        )
    if guard_arrivals or (later_arrivals and guard_name is None):
        arrival, bar = _choose_arrival(m, guard_arrivals or later_arrivals, new.worker)
        needed_phase = arrival.phase
    else:
        later_arrivals = []
        candidates = [(e, bar) for e, bar in shared_arrivals if guard_name in (None, find_place(m, bar).ring)]
        arrival, bar = max(candidates, key=lambda x: max((e.tick for e in list_waits(x[1], new.worker)), default=-1))
        arrival = next(e for e in list_arrivals(bar, worker=old.worker))
        needed_phase = arrival.phase + 1
    waits = list_waits(bar, new.worker)
    wait = waits[0] if waits else None
    count = find_wrong_count(m, bar)
    if wait is not None and wait.tick > former and wait.phase >= 0 and count is not None:
        return count
    if (
        wait is not None
        and wait.tick > former
        and wait.at_once
        and wait.phase < needed_phase
        and (wait.phase >= 0 or any(o.tick < wait.tick for o in waits) or not _finds_buffer_free(m, bar, new))
    ):
        return Cause(
            [(f"{describe_immediate_wait(bar, wait)}; {owner.label} arrives for phase {needed_phase} after {finished}", wait.span)],
            hint_parity(m, bar, needed_phase),
            2,
        )
    if wait is None or wait.tick < former:
        sibling = find_sibling_wait(m, bar, new.worker, former)
        if sibling is not None and sibling[0].tick > max(former, 0):
            return Cause(
                [
                    (
                        f"{w.label} waits on `{sibling[1].text}` here, and {owner.label} gives these bytes back by arriving on `{bar.text}`",
                        sibling[0].span,
                    )
                ],
                "wait on the barrier of the stage that is used: the i-th use is of stage i % n",
                1,
            )
        notes = [(f"{owner.label} arrives on `{bar.text}` here after {finished}", arrival.span)] if later_arrivals else []
        cause = Cause(
            notes,
            f"no wait by {w.label} on `{bar.text}` lies before this {new.mode}: wait there for phase {needed_phase}, parity {needed_phase % 2}",
            1,
        )
        return _blame_late_wait(cause, _find_late_wait(m, w, new.span, find_place(m, bar).ring), new.mode, new.span)
    second_arrival = find_second_arrival(bar, wait.phase)
    if second_arrival is not None:
        return second_arrival
    phase_arrivals = list_arrivals(bar, wait.phase, old.worker)
    if phase_arrivals:
        idle_cause = find_idle_wait(m, old.worker, phase_arrivals[0].tick, old.tick) or next(
            (
                f
                for x in {e.worker for e in list_arrivals(bar, wait.phase)}
                if (f := find_unwaited_release(m, x, find_place(m, bar).ring, w.cta))
            ),
            None,
        )
        if idle_cause is not None and new.mode != "read":
            return idle_cause
        return _describe_early_release(owner, bar, phase_arrivals[0], old, new, finished)
    ending_arrivals = list_arrivals(bar, wait.phase)
    return Cause(
        [
            (
                f"this wait was for phase {wait.phase} of `{bar.text}`, which ended with the arrivals of {format_labels(ending_arrivals)}, without {owner.label}",
                wait.span,
            )
        ],
        f"{owner.label} arrives on `{bar.text}` after {finished}, once a phase, and the count takes its arrival in",
    )


def _describe_early_release(owner: Worker, bar: Mbarrier, arrival: Event, old: Record, new: Record, finished: str) -> Cause:
    """Describe an arrival before the access that let the later party go on."""
    completion_text = f": after {old.awaited}" if old.awaited else ""
    cause = Cause(
        [(f"{owner.label} arrives on `{bar.text}` here, which is what the {new.mode} waited for, and not after {finished}", arrival.span)],
        f"{owner.label} arrives on `{bar.text}` when its last access to these bytes is over{completion_text}",
        2,
    )
    late = find_late_group_wait(owner.m.launch.checked, owner.program.name, arrival.span, old.span)
    if late is not None and late.can_move:
        return _blame_late_wait(cause, late, "arrival", arrival.span)
    uses, program = get_barrier_uses(owner.m.launch.checked), owner.m.workers[new.worker].program.name
    rings = dict.fromkeys(u.name for u in uses.find("arrives", role=program))  # by which the other party lets the owner go on
    late = next((x for n in rings if (x := _find_late_wait(owner.m, owner, old.span, n)) is not None), None)
    return _blame_late_wait(cause, late, old.mode, old.span)


def _find_late_wait(m: Machine, w: Worker, at: Span, ring: str) -> LateWait | None:
    return find_late_barrier_wait(m.launch.checked, w.program.name, at, ring)


def _blame_late_wait(cause: Cause, late: LateWait | None, access: str, at: Span) -> Cause:
    """Add a wait that follows an access instead of preceding it to the cause; without one, return `cause`.

    Args:
        access: "write", "read" or another noun.
        at: place of the access.
    """
    if late is None:
        return cause
    hint, notes = late.add_to(cause.hint, cause.notes, access, at)
    return Cause(notes, hint, max(cause.sure, 1))


def _finds_buffer_free(m: Machine, bar: Mbarrier, new: Record) -> bool:
    """Return True if a first wait for phase -1 is how the worker finds the buffer free.

    It is the wait behind which a copy lands.
    """
    return find_place(m, bar).ring in get_barrier_uses(m.launch.checked).pairs and new.mode != "read"


def _choose_arrival(m: Machine, arrivals: list[tuple[Event, Mbarrier]], worker: int) -> tuple[Event, Mbarrier]:
    """Choose the first of a worker's arrivals after an access at a barrier that the other worker waits on.

    Falls back to the first arrival at any barrier.

    Args:
        worker: the other worker.
    """
    return next(((e, bar) for e, bar in arrivals if list_waits(bar, worker)), arrivals[0])


def _explain_missing_barrier(m: Machine, new: Record, old: Record) -> Cause:
    """Explain a conflict in which the earlier party never arrived where the later one waits."""
    uses, w, owner = get_barrier_uses(m.launch.checked), m.workers[new.worker], m.workers[old.worker]
    crowded_cause = find_crowded_barrier(m, old.worker, new.worker)
    if crowded_cause is not None:
        return crowded_cause
    idle_cause = find_idle_wait(m, new.worker, -1, 1 << 60) or find_short_phase(m, new.worker, -1, 1 << 60)
    if idle_cause is not None:
        return idle_cause
    shared_names = [u.name for u in uses.find("arrives", role=owner.program.name) if uses.find("waits", u.name, w.program.name)]
    waits = list_all_waits(m, new.worker)
    if shared_names:
        name = shared_names[0]
        notes = [
            (f"{w.label} waited on `{b.text}` here for phase {e.phase}, the last time on `{name}`", e.span)
            for e, b in waits
            if find_place(m, b).ring == name
        ][:1]
        cause = Cause(
            notes,
            f"no wait by {w.label} on `{name}`, for a phase in which {owner.label} arrives after its {old.mode}, lies before this {new.mode}",
        )
        return _blame_late_wait(cause, _find_late_wait(m, w, new.span, name), new.mode, new.span)
    completion_text = f" ({old.awaited})" if old.awaited else ""
    return Cause(
        [],
        f"a barrier must lie between: {owner.label} arrives on it after its {old.mode} is over{completion_text}, and {w.label} waits for that phase before this {new.mode}",
    )


def _explain_unwritten(m: Machine, actor: Actor, ref: SharedRef) -> Cause:
    """Explain why a read finds nothing written: the wait that is missing."""
    uses, w = get_barrier_uses(m.launch.checked), m.workers[actor.worker]
    rings = list(dict.fromkeys(u.name for u in uses.find("lands", array=ref.alloc.name)))
    copies = uses.find("lands", array=ref.alloc.name)
    waits = [(e, bar) for e, bar in list_all_waits(m, actor.worker) if find_place(m, bar).ring in rings]
    if waits:
        wait, bar = waits[0]
        if wait.at_once:
            return Cause(
                [(f"{describe_immediate_wait(bar, wait)}; the copy lands in phase {wait.phase + 1}", wait.span)],
                hint_parity(m, bar, wait.phase + 1),
                2,
            )
        cause = find_wrong_bytes(bar, wait.phase) or find_extra_arrival(bar, wait.phase)
        if cause is not None:
            return cause
        landings = [e for e in bar.events() if e.kind == "land" and e.phase == wait.phase]
        if landings:
            return Cause(
                [
                    (
                        f"phase {wait.phase} of `{bar.text}`, which {w.label} waited for, ended with this copy: it wrote other bytes",
                        landings[0].span,
                    )
                ],
                "the copy's view, its barrier and the view that is read have the same stage: the i-th use is of stage i % n",
                1,
            )
    if copies:
        unwaited = Cause(
            [(f"this copy fills `{ref.alloc.name}`, and lands on `{copies[0].name}`", copies[0].span)],
            f"no wait by {w.label} on `{copies[0].name}` lies before this read: wait there for the phase in which the copy lands",
            1,
        )
        return _blame_late_wait(unwaited, _find_late_wait(m, w, actor.span, copies[0].name), "read", actor.span)
    cause = (
        find_idle_wait(m, actor.worker, -1, 1 << 60)
        or find_short_phase(m, actor.worker, -1, 1 << 60)
        or find_crowded_barrier(m, actor.worker)
    )
    return cause or Cause([], "write it before, on every path and in every tile, and let a barrier lie between if another worker writes it")


# ---- faults
def make_unwritten_fault(m: Machine, actor: Actor, ref: SharedRef) -> Exception:
    """Make M401: a read of bytes that were never written, or were last written through an array over them."""
    aliases = [a.name for a in m.shared[ref.cta].aliases[ref.alloc.name]]
    alias_text = f", or was overwritten through {' or '.join(f'`{n}`' for n in aliases)}" if aliases else ""
    cause = _explain_unwritten(m, actor, ref)
    return make_fault(
        m,
        "M401",
        f"{actor.label} reads `{ref.text}`, which was never written{alias_text}",
        actor.span,
        cause.hint,
        [*cause.notes, (f"`{ref.alloc.name}` is declared here", ref.alloc.span)],
    )


def make_excess_arrival_fault(m: Machine, bar: Mbarrier, w: Worker, excess: Finding) -> Exception:
    """Make S402: an arrival for a phase that has all of its arrivals, and not its bytes."""
    arrived = list_arrivals(bar, bar.phase)
    mine = next((e for e in arrived if e.worker == w.number), None)
    cause = find_second_arrival(bar, bar.phase)
    if cause is None and (mine is None or len({e.worker for e in arrived} | {w.number}) > bar.count):
        cause = find_wrong_count(m, bar)
    if cause is None and mine is not None:
        landed = sum(e.value for e in bar.events() if e.kind == "land" and e.phase == bar.phase)
        issued = sum(e.value for e in bar.events() if e.kind == "issue" and e.phase == bar.phase and e.tick > mine.tick)
        if issued <= landed:
            cause = find_stray_event(m, bar) or find_wrong_bytes(bar, bar.phase)
        cause = cause or find_idle_wait(m, w.number, mine.tick, 1 << 60) or find_short_phase(m, w.number, mine.tick, 1 << 60)
        if cause is None and not any(e.tick > mine.tick for e, _ in list_all_waits(m, w.number)):
            cause = Cause(
                [(f"{w.label} arrived for this phase here, and no wait of its own lies between the two", mine.span)],
                f"arrive for the next phase only after a wait that knows this one over{_hint_return(m, bar, w)}",
                1,
            )
    if cause is None:
        cause = Cause(
            [(f"{e.label} arrived here", e.span) for e in reversed(arrived)][:2],
            "arrive for the next phase only after a wait that knows this one over; the count is the number of workers that arrive in a phase",
        )
    return make_finding_fault(m, excess, cause.hint, cause.notes)


def _hint_return(m: Machine, bar: Mbarrier, w: Worker) -> str:
    """Return a hint to wait on the ring that signals `w` free stages; empty unless there is one such ring."""
    back = find_return_ring(m, bar, w)
    if back is None:
        return ""
    roles = sorted({u.role for u in get_barrier_uses(m.launch.checked).find("arrives", back)})
    stage = "of the same stage " if len(get_ring(m, back, w.cta)) > 1 else ""
    return f": here a wait on `{back}` {stage}before it, on which `{'`, `'.join(roles)}` arrives when it has read"


def make_early_arrival_fault(m: Machine, bar: Mbarrier, w: Worker, early: Finding) -> Exception:
    """Make S402: an arrival that could come while the phase before has its arrivals, and not its bytes."""
    mine = next(iter(list_arrivals(bar, worker=w.number)), None)
    since = mine.tick if mine is not None else -1
    cause = find_idle_wait(m, w.number, since, 1 << 60) or find_short_phase(m, w.number, since, 1 << 60)
    if cause is None:
        arrival_notes = [(f"{w.label} arrived for phase {mine.phase} here", mine.span)] if mine is not None else []
        back = next((n for n, p in get_barrier_uses(m.launch.checked).pairs.items() if p == find_place(m, bar).ring), None)
        on = f", or on `{back}`, by which the buffer is given back" if back is not None else ""
        cause = Cause(arrival_notes, f"{early.hint}{on}", 1)
    return make_finding_fault(m, early, cause.hint, cause.notes)


def make_excess_bytes_fault(m: Machine, bar: Mbarrier, excess: Finding) -> Exception:
    """Make S403: a copy lands in a phase that has all of its arrivals, and expects less."""
    expects = list(reversed(list_arrivals(bar, bar.phase)))
    other_copies = list(dict.fromkeys(e.span for e in bar.events() if e.kind == "land" and e.phase == bar.phase and e.span != excess.span))
    announcement = (
        "this announces the bytes of the phase: {}" if expects and expects[0].value else "this arrival announces no bytes of the phase: {}"
    ).format(f"{bar.expected:,}")
    notes: Sequence[CauseNote] = [(f"{announcement}, and {bar.landed:,} have landed", expects[0].span)] if expects else []
    if bar.phase and expects and bar.expected and bar.landed > bar.expected:
        before = find_wrong_bytes(bar, bar.phase - 1)
        if before is not None:
            notes = before.notes
    notes = [*notes, *(("this copy landed in the same phase", s) for s in other_copies[:1])]
    return make_finding_fault(m, excess, "expect(nbytes(view)), summed over the views that are copied on the barrier in one phase", notes)
