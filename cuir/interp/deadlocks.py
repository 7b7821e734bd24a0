"""Reports of deadlocks: why each blocked worker waits for ever, and which worker to report first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ..checking.checked import Barrier
from ..text.diagnostics import CuirError
from ..text.phrases import count_noun
from .arrival_counts import find_missing_users, wait_in_turn
from .barrier_state import Handout, Mbarrier, NamedBarrier
from .cause_chains import (
    Cause,
    CauseNote,
    find_place,
    find_second_arrival,
    find_stray_event,
    find_unwaited_release,
    find_wrong_bytes,
    get_barrier_uses,
    get_ring,
    list_all_waits,
    list_arrivals,
    list_waits,
)
from .faults import make_diagnostic
from .machine import Machine, Worker


def sort_by_cause(workers: Sequence[Worker], barriers: Mapping[str, Barrier]) -> list[Worker]:
    """Sort the workers by how likely each is the cause.

    First those that miss bytes, then those that wait for a barrier at which nobody can arrive any more, then roles
    that wait for each other in a circle (among them first those whose barrier nobody ever arrived at), then those that
    wait for one of these.
    """
    waits: dict[str, set[str]] = {}  # role -> the roles whose arrivals it waits for
    for w in workers:
        role = _find_arriving_role(w, barriers)
        if role is not None:
            waits.setdefault(w.program.name, set()).add(role)
    alive = {w.program.name for w in workers if not w.finished}

    def rank(w: Worker) -> int:
        bar = w.block.barrier if w.block is not None else None
        if isinstance(bar, Mbarrier) and bar.bytes > 0:
            return 0
        if isinstance(bar, Mbarrier) and _find_arriving_role(w, barriers) not in alive:
            return 1
        if w.program.name not in _collect_awaited_roles(w.program.name, waits):
            return 4
        return 2 if isinstance(bar, Mbarrier) and bar.last is None else 3

    return sorted(workers, key=rank)


def _find_arriving_role(w: Worker, barriers: Mapping[str, Barrier]) -> str | None:
    """Return the role that arrives on the mbarrier that a worker waits for.

    None if no text does, or it waits for something else.
    """
    bar = w.block.barrier if w.block is not None else None
    name = re.match(r"\w+", bar.text) if isinstance(bar, Mbarrier) else None
    return barriers[name[0]].arrivers if name and name[0] in barriers else None


def _collect_awaited_roles(role: str, waits: Mapping[str, set[str]]) -> set[str]:
    """Return all roles that a role waits for, directly or through others."""
    awaited: set[str] = set()
    todo = [role]
    while todo:
        new = waits.get(todo.pop(), set()) - awaited
        awaited |= new
        todo += new
    return awaited


# ---- causes
def explain_block(m: Machine, w: Worker) -> Cause:
    """Explain why a worker that waits at a barrier will wait for ever."""
    assert w.block is not None
    bar = w.block.barrier
    if isinstance(bar, Mbarrier):
        return _explain_wait(m, w, bar, w.block.phase)
    assert isinstance(bar, NamedBarrier)
    return _explain_meeting(m, bar)


def _explain_wait(m: Machine, w: Worker, bar: Mbarrier, phase: int) -> Cause:
    barrier_uses, (name, stage, cta) = get_barrier_uses(m.launch.checked), find_place(m, bar)
    roles = {u.role for u in barrier_uses.find("arrives", name)}
    if not roles:
        return Cause(
            [(f"no statement arrives on `{name}`", bar.span)],
            "every wait needs an arrival: arrive(), or expect(nbytes(view)) for copies",
            4,
        )
    if bar.pending == 0 and bar.bytes > 0:
        cause = find_stray_event(m, bar) or find_wrong_bytes(bar, bar.phase)
        if cause is not None:
            return Cause(cause.notes, cause.hint, 4)
    if bar.bytes < 0 and bar.user is not None:
        return Cause(
            [(f"this copy landed on `{bar.text}`, and no arrival by expect() announces its bytes in phase {bar.phase}", bar.user.span)],
            "expect(nbytes(view)) once for each phase that copies land in",
            4,
        )
    possible_arrivals, arrivals = barrier_uses.count_arriving(name), list_arrivals(bar, bar.phase)
    role_text = f"role{'s' if len(roles) > 1 else ''} `{'`, `'.join(sorted(roles))}`"
    if possible_arrivals < bar.count:
        return Cause(
            [
                (
                    f"the count of `{bar.text}` is {bar.count}, and only {count_noun(possible_arrivals, 'worker')} of {role_text} can arrive on it, once a phase each",
                    bar.span,
                )
            ],
            f"the count is the number of workers that arrive in a phase, here {possible_arrivals}",
            4,
        )
    missing_users = find_missing_users(m, bar)
    if missing_users is not None:
        return missing_users
    second_arrival = find_second_arrival(bar, bar.phase)
    if name in barrier_uses.pairs:
        for x in m.workers:
            cause = (
                find_unwaited_release(m, x.number, name, cta)
                if x.program.name in roles and (x.cta == cta or possible_arrivals > 1)
                else None
            )
            if cause is not None:
                return Cause(cause.notes, cause.hint, 3)
    missed_cause = _find_missed_phase(m, w, bar, phase)
    if missed_cause is not None:
        return missed_cause
    stray_cause = find_stray_event(m, bar)
    if stray_cause is not None:
        return Cause(stray_cause.notes, stray_cause.hint, 3)
    missing_workers = [
        x
        for x in m.workers
        if x.program.name in roles and all(e.worker != x.number for e in arrivals) and (x.cta == cta or possible_arrivals > 1)
    ]
    finished_workers = [x for x in missing_workers if x.finished]
    if finished_workers:
        x = finished_workers[0]
        arrival_count = sum(b.came.get(x.number, 0) for b in get_ring(m, name, cta))
        waits = 1 + sum(1 for b in get_ring(m, name, cta) for e in list_waits(b, w.number))
        last = next(iter(list_arrivals(bar, worker=x.number)), None) or max(
            (e for b in get_ring(m, name, cta) for e in list_arrivals(b, worker=x.number)),
            key=lambda e: e.tick,
            default=None,
        )
        at = last.span if last is not None else next(u.span for u in barrier_uses.find("arrives", name))
        return Cause(
            [
                (
                    f"{x.label} has arrived {count_noun(arrival_count, 'time')} on `{name}`, {'the last time ' if last else ''}here, and is at its end: nobody can arrive for phase {phase} any more",
                    at,
                )
            ],
            f"{w.label} waits on `{name}` more often than {x.label} arrives there: both make the same number of turns"
            + (f", this is wait {waits} at least" if waits > arrival_count else ""),
            3,
        )
    if second_arrival is not None:
        return second_arrival
    partner = barrier_uses.pairs.get(name)
    for x in missing_workers:
        last_arrival = next(iter(list_arrivals(bar, worker=x.number)), None)
        last_tick = last_arrival.tick if last_arrival is not None else -1
        awaited_rings = {partner} if partner else {u.name for u in barrier_uses.find("lands", role=w.program.name)}
        passed_waits = [
            (e, b)
            for e, b in list_all_waits(m, x.number)
            if e.tick > last_tick
            and find_place(m, b).ring in awaited_rings
            and (find_place(m, b).stage == stage or len(get_ring(m, name, cta)) == 1)
        ]
        if passed_waits:
            e, b = passed_waits[-1]
            return Cause(
                [(f"{x.label} passed `{b.text}` here, and no arrival of its own on `{bar.text}` has followed", e.span)],
                f"on every path, {x.label} arrives on `{name}` once for each use",
                2,
            )
    if bar.last is None and phase == 0:
        circle = any(x.block is not None and x.block.barrier is not bar for x in missing_workers)
        hint = "nobody has arrived yet: wait(0) waits for the first arrivals, while a first wait(1) returns at once (how a producer finds an empty ring free)"
        blocked_notes = [(f"{x.label}, which arrives on it, waits here", x.block.span) for x in missing_workers if x.block is not None][:1]
        giver = any(
            u.role == w.program.name
            for x in missing_workers
            if x.block is not None
            for u in barrier_uses.find("arrives", _get_block_name(m, x))
        )
        return Cause(
            [
                (
                    f"`{bar.text}` has had no arrival when {w.label} waits here for the first time, for phase 0",
                    w.block.span if w.block else None,
                ),
                *blocked_notes,
            ]
            if giver
            else blocked_notes,
            hint,
            2 if circle and giver else 1,
        )
    notes: list[CauseNote] = (
        [(f"{bar.last.label} arrived last, here", bar.last.span)] if bar.last is not None else [("nobody ever arrived", bar.span)]
    )
    return Cause(notes, "every wait needs its arrivals (and bytes) on every path, for empty tiles too")


def _find_missed_phase(m: Machine, w: Worker, bar: Mbarrier, phase: int) -> Cause | None:
    """Detect a wait at the wrong stage of a ring.

    Another stage has a phase that is complete and that the worker never waited for.
    """
    name = find_place(m, bar).ring
    ring = get_ring(m, name, w.cta)
    if wait_in_turn(m, w, ring):
        return None  # another worker's turn
    for sibling in ring:
        last_phase = max((e.phase for e in list_waits(sibling, w.number)), default=-1)
        if (
            sibling is not bar
            and sibling.phase - 1 > last_phase
            and last_phase < phase
            and get_barrier_uses(m.launch.checked).find("lands", name)
        ):
            return Cause(
                [
                    (
                        f"phase {last_phase + 1} of `{sibling.text}` is over, which {w.label} has not waited for: it waits on `{bar.text}` here, another stage",
                        w.block.span if w.block else None,
                    )
                ],
                "wait on the stages in the order in which they are filled: the i-th use is of stage i % n",
                3,
            )
    return None


def _get_block_name(m: Machine, x: Worker) -> str | None:
    assert x.block is not None
    bar = x.block.barrier
    return next((name for (name, _), ring in m.barriers.items() if any(b is bar for b in ring)), "")


def _explain_meeting(m: Machine, bar: NamedBarrier) -> Cause:
    """Explain a named barrier, or the join of a CTA, that does not fill."""
    visitors = [m.workers[n] for n in bar.came]
    if bar.span is not None:
        barrier_uses, name = get_barrier_uses(m.launch.checked), find_place(m, bar).ring
        possible_arrivals = barrier_uses.count_arriving(name)
        if len(visitors) < bar.count:
            shortage = (
                f"{', '.join(x.label for x in visitors)} ever came"
                if possible_arrivals >= bar.count
                else f"{count_noun(possible_arrivals, 'worker')} can come to it"
            )
            return Cause(
                [(f"the count of `{bar.text}` is {bar.count}, and only {shortage}", bar.span)],
                "the count of a named barrier is the number of workers that come to it, those that only arrive() too",
                4 if possible_arrivals < bar.count else 0,
            )
    present = set(bar.arrivals)
    missing_workers = [x for x in visitors if x.label not in present]
    if missing_workers:
        x = missing_workers[0]
        state = "is at its end" if x.finished else f"waits at `{x.block.barrier.text}`" if x.block is not None else "has not come"
        return Cause(
            [
                (
                    f"no arrival of {x.label} on `{bar.text}` has come for this turn: it has come {count_noun(bar.came[x.number], 'time')}, and {state}",
                    x.block.span if x.block is not None else None,
                )
            ],
            f"the workers of `{bar.text}` come to it equally often, on every path",
            1 + x.finished,
        )
    return Cause(
        [(f"{bar.last.label} arrived last, here", bar.last.span)] if bar.last is not None else [],
        "the workers of a named barrier come to it equally often, on every path",
    )


def rank_causes(m: Machine, blocked: Iterable[Worker]) -> Iterator[tuple[Worker, Cause]]:
    """Yield each blocked worker with its cause, the surest first; ties keep the order of `blocked`."""
    yield from sorted(((w, explain_block(m, w)) for w in blocked), key=lambda x: -x[1].sure)


def _list_following(m: Machine, ranked: Sequence[tuple[Worker, Cause]]) -> list[Worker]:
    """Return the blocked workers that depend on the first one, which has the surest cause.

    They wait for it directly or through others. There are none if the cause of the first is no more than likely.
    """
    if not ranked or ranked[0][1].sure < 3:
        return []
    uses, programs = get_barrier_uses(m.launch.checked), {w.program.name for w in m.workers}
    waits: dict[str, set[str]] = {name: set() for name in programs}
    for w, _ in ranked:
        waits[w.program.name] |= {u.role for u in uses.find("arrives", _get_block_name(m, w))}
    first, sure = ranked[0][0], ranked[0][1].sure
    return [w for w, cause in ranked[1:] if cause.sure < sure and first.program.name in _collect_awaited_roles(w.program.name, waits)]


# ---- the report
def make_deadlock_error(m: Machine) -> CuirError:
    """Make one report for each blocked worker, the likely causes first: the rest often only wait for them."""
    diagnostics, order = [], sort_by_cause(m.workers, m.launch.checked.barriers)
    blocked = [w for w in order if not w.finished and w.block is not None]
    ranked = list(rank_causes(m, [w for w in blocked if w.block is not None and not isinstance(w.block.barrier, Handout)]))
    following = _list_following(m, ranked)
    for w, cause in ranked:
        if w in following:
            continue
        b = w.block
        assert b is not None
        bar = b.barrier
        if isinstance(bar, Mbarrier):
            message = f"deadlock: {w.label} waits for phase {b.phase} of `{bar.text}`, which is in phase {bar.phase} with {bar.missing()}"
        else:
            assert isinstance(bar, NamedBarrier)
            message = f"deadlock: {w.label} waits at `{bar.text}`, where {len(bar.arrivals)} of {bar.count} have arrived"
        notes = [*cause.notes[:2]]
        ended = [x.label for x in m.workers if x.finished]
        if ended:
            notes.append((f"already at their end: {', '.join(ended)}", None))
        if following and w is ranked[0][0]:
            blocks = ((x.label, x.block) for x in following)
            waits = ", ".join(f"{label} for phase {at.phase} of `{at.barrier.text}`" for label, at in blocks if at is not None)
            notes.append((f"other waits follow from this: {waits}", None))
        diagnostics.append(make_diagnostic(m, "D401", message, b.span, cause.hint, notes))
    for w in blocked:
        b = w.block
        if b is not None and isinstance(b.barrier, Handout):
            late_workers = ", ".join(m.workers[n].label for n in b.barrier.behind(b.phase))
            message = f"deadlock: {w.label} waits for its next unit of work, which is handed out when all workers have taken the one before; {late_workers} has not"
            hint = "no worker may need, before it takes a unit of work, what another one does after the next"
            diagnostics.append(make_diagnostic(m, "D401", message, b.span, hint, [("the units of work are declared here", b.barrier.span)]))
    return CuirError(diagnostics)
