"""Arrivals that a phase of a barrier gets in a run, and faults of its count.

Workers either all use each stage of a ring, or take turns on the stages. The text does not tell which, the logs of the
waits that begin uses do.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

from ..text.phrases import count_noun
from .barrier_state import Event, Mbarrier, NamedBarrier
from .cause_chains import (
    Cause,
    CauseNote,
    find_place,
    find_second_arrival,
    get_barrier_uses,
    get_ring,
    list_all_waits,
    list_arrivals,
    list_waits,
)
from .machine import Machine, Worker


# ---- uses of the stages of a ring
class Use(NamedTuple):
    """A use of a stage of a ring by a worker, from a wait to an arrival.

    The arrival is None if the use has not ended.
    """

    stage: int
    phase: int
    worker: Worker
    arrival: Event | None


def find_partner(m: Machine, name: str) -> str | None:
    """Return the ring whose waits begin the uses that end with arrivals on a ring.

    That is the other of two rings that hand a buffer to and fro, stage by stage; None if the text does not tell.
    """
    uses, barriers = get_barrier_uses(m.launch.checked), m.launch.checked.barriers
    pairs = [{*pair} for pair in uses.pairs.items() if name in pair]
    roles = {u.role for u in uses.find("arrives", name)}
    names = {n for pair in pairs for n in pair - {name}} or {
        n for n in barriers if n != name and roles and all(uses.find("waits", n, role) for role in roles)
    }
    names = {n for n in names if not barriers[n].hardware and barriers[n].stages == barriers[name].stages}
    return names.pop() if len(names) == 1 else None


def list_uses(m: Machine, name: str, cta: int) -> list[Use]:
    """Return the uses of the stages of a ring that the logs show.

    They are uses by workers of the roles that arrive on it.
    """
    partner, roles = find_partner(m, name), {u.role for u in get_barrier_uses(m.launch.checked).find("arrives", name)}
    if partner is None:
        return []
    uses = []
    for w in (w for w in m.workers if w.program.name in roles):
        for stage, (bar, began) in enumerate(zip(get_ring(m, name, cta), get_ring(m, partner, w.cta), strict=True)):
            waits, arrivals = list_waits(began, w.number), list_arrivals(bar, worker=w.number)
            for wait, end in zip(waits, [1 << 60, *(e.tick for e in waits)]):
                arrival = next((a for a in arrivals if wait.tick < a.tick < end), None)
                uses.append(Use(stage, wait.phase, w, arrival))
    return uses


def find_turns(uses: list[Use]) -> bool | None:
    """Return True if workers alternate on the stages of a ring, False if each worker uses each stage.

    The result is None if that is unknown. Workers that all use each stage do so in one order, so that what one has used
    is a part of what another has.
    """
    places: dict[int, set[tuple[int, int]]] = {}
    for use in uses:
        places.setdefault(use.worker.number, set()).add((use.stage, use.phase))
    by_size = sorted(places.values(), key=len)
    if len(by_size) < 2:
        return None
    return any(not small <= large for small, large in itertools.pairwise(by_size))


def wait_in_turn(m: Machine, w: Worker, ring: list[Mbarrier]) -> bool:
    """Return whether the workers of a role have waited in turn for the phases of a ring's stages.

    No two of them have then waited for the same phase of a stage, and others than `w` have waited for some.
    """
    numbers = {x.number for x in m.workers if x.program is w.program and x.cta == w.cta}
    waits = {(n, e.phase, e.worker) for n, bar in enumerate(ring) for e in bar.events() if e.kind == "wait" and e.worker in numbers}
    return len({wait[:2] for wait in waits}) == len(waits) and any(worker != w.number for *_, worker in waits)


def list_users(uses: list[Use], stage: int) -> list[Worker]:
    """Return the workers that use a stage in the phase in which most do.

    Those that never end a use by an arrival are left out.
    """
    idle = {u.worker.number for u in uses} - {u.worker.number for u in uses if u.arrival is not None}
    idle &= {number for number in idle if sum(u.worker.number == number for u in uses) > 1}
    phases: dict[int, list[Worker]] = {}
    for use in uses:
        if use.stage == stage and use.worker.number not in idle:
            phases.setdefault(use.phase, []).append(use.worker)
    return max(phases.values(), key=len, default=[])


def find_return_ring(m: Machine, bar: Mbarrier, w: Worker) -> str | None:
    """Return the ring on which readers of a barrier's ring signal `w` that its stages are free.

    The result is None if there is no such ring, or more than one.
    """
    uses, barriers, name = get_barrier_uses(m.launch.checked), m.launch.checked.barriers, find_place(m, bar).ring
    readers = {u.role for u in uses.find("waits", name)} - {w.program.name}
    names = {u.name for u in uses.find("arrives") if u.role in readers and u.name != name}
    names = {n for n in names if not barriers[n].hardware and barriers[n].stages == barriers[name].stages}
    names = {n for n in names if uses.pairs.get(n, name) == name}
    return names.pop() if len(names) == 1 else None


# ---- faults of the count
def _list_arrivers(m: Machine, bar: Mbarrier | NamedBarrier) -> tuple[int, list[str]]:
    """Return the number of workers that arrive in a phase of a barrier, and the labels of the known ones."""
    barrier_uses, (name, stage, cta) = get_barrier_uses(m.launch.checked), find_place(m, bar)
    labels = [m.workers[n].label for n in bar.came]
    if m.launch.checked.barriers[name].hardware:
        return max(len(labels), barrier_uses.count_sure_arrivals(name)), labels
    workers = {w.number for w in m.workers if w.cta == cta and barrier_uses.find("arrives", name, w.program.name)}
    if len(workers) > 1 and len(get_ring(m, name, cta)) > 1 and find_partner(m, name) is not None:
        uses = list_uses(m, name, cta)
        turns = find_turns(uses)
        if turns is not False:
            users = [w.label for w in list_users(uses, stage)] if turns else []
            return len(users), users
    return max(len(labels), barrier_uses.count_arriving(name)), labels


def find_wrong_count(m: Machine, bar: Mbarrier | NamedBarrier) -> Cause | None:
    """Return the cause if more workers arrive than a phase takes."""
    name = find_place(m, bar).ring
    hardware = m.launch.checked.barriers[name].hardware
    possible_arrivals, arrived_labels = _list_arrivers(m, bar)
    if possible_arrivals <= bar.count:
        return None
    roles = sorted({u.role for u in get_barrier_uses(m.launch.checked).find("arrives", name)})
    arrivers = ", ".join(arrived_labels) if len(arrived_labels) == possible_arrivals else f"the workers of role `{'`, `'.join(roles)}`"
    groups, remainder = divmod(possible_arrivals, bar.count)
    if hardware and bar.count > 1 and not remainder:
        explanation = f"{groups} groups of {bar.count} workers share `{bar.text}`: {arrivers}; the hardware knows nobody by name, so a phase ends after any {count_noun(bar.count, 'arrival')}, of whichever group"
        return Cause(
            [(explanation, bar.span)],
            f"a named barrier for each group: a ring of them, named_barrier({bar.count}, stages={groups}), or one under a name of its own",
            2,
        )
    return Cause(
        [
            (
                f"the count of `{bar.text}` is {bar.count}, and {possible_arrivals} workers arrive on it: {arrivers}; a phase ends after {count_noun(bar.count, 'arrival')}, before the others have come",
                bar.span,
            )
        ],
        f"the count is the number of workers that arrive in a phase, here {possible_arrivals}",
        2,
    )


def find_crowded_barrier(m: Machine, *workers: int) -> Cause | None:
    """Find a named barrier with more arriving workers than its count, one of `workers` among them."""
    for (name, _), ring in m.barriers.items():
        if m.launch.checked.barriers[name].hardware:
            for bar in ring:
                cause = find_wrong_count(m, bar) if any(n in bar.came for n in workers) else None
                if cause is not None:
                    return cause
    return None


def find_short_phase(m: Machine, worker: int, since: int, until: int, without: int | None = None) -> Cause | None:
    """Find a wait of a worker, between two ticks, for a phase that ended too early.

    Reasons: its count, a second arrival, or bytes.
    """
    for e, bar in list_all_waits(m, worker):
        if since < e.tick < until and e.phase >= 0:
            cause = find_wrong_count(m, bar) or find_second_arrival(bar, e.phase)
            if cause is not None:
                return cause
    return None


def find_missing_users(m: Machine, bar: Mbarrier) -> Cause | None:
    """Return a cause if a phase counts more arrivals than a stage has users, as workers take turns.

    Args:
        bar: the barrier of a stage of a ring.
    """
    name, stage, cta = find_place(m, bar)
    uses = list_uses(m, name, cta)
    users = list_users(uses, stage)
    most = max((len(list_users(uses, s)) for s in {u.stage for u in uses}), default=0)
    arrived = {e.worker for e in list_arrivals(bar, bar.phase)}
    if not find_turns(uses) or most >= bar.count or arrived != {w.number for w in users}:
        return None
    explanation = f"the count of `{bar.text}` is {bar.count}, and {count_noun(most, 'worker')} {'uses' if most == 1 else 'use'} a stage in a phase, here {', '.join(w.label for w in users)}: the workers take turns"
    return Cause([(explanation, bar.span)], f"the count is the number of workers that arrive in a phase, here {most}", 4)


def find_skipped_phase(m: Machine, bar: Mbarrier, w: Worker, phase: int) -> Cause | None:
    """Return a cause if a wait is a lap behind because another worker took the waiter's turn in a ring.

    The turn was on the stage before.

    phase: the one that the waiter never waited for.
    """
    place, workers = find_place(m, bar), w.program.workers
    ring = get_ring(m, place.ring, place.cta)
    peers = {x.number for x in m.workers if x.program is w.program and x.cta == w.cta and x is not w}
    taker = next((e for e in bar.events() if e.kind == "wait" and e.phase == phase and e.worker in peers), None)
    began = any(list_waits(b, w.number) for b in ring if b is not bar)
    ending = next(iter(list_arrivals(bar, phase)), None)
    if (
        len(ring) < 2
        or not wait_in_turn(m, w, ring)
        or taker is None
        or not began
        or any(e.phase == phase for e in list_waits(bar, w.number))
    ):
        return None
    explanation = f"phase {phase} of `{bar.text}` was the turn of {taker.label}, and {w.label} never waited for it"
    notes: list[CauseNote] = [
        *(
            [(f"{ending.label} arrives here for phase {phase} of `{bar.text}`, and does not wait for {w.label}", ending.span)]
            if ending
            else []
        ),
        (f"{explanation}: it takes this wait({(phase + 1) % 2}) to mean phase {phase - 1}", taker.span),
    ]
    multiple = f", such as {-(-len(ring) // workers) * workers}" if len(ring) % workers else ""
    return Cause(
        notes,
        f"a worker waits for every phase of the stages that it uses: the {workers} workers of `{w.program.name}` take turns on {len(ring)} stages; "
        f"let each have stages of its own, by a number of stages that is a multiple of {workers}{multiple}",
        3,
    )
