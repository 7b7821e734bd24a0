"""The main loop: choose who acts next by the schedule, until all workers end and all engines rest.

Invariant: a blocked worker is tried again only when something has changed since it blocked; where nobody can act, that
is a deadlock.
"""

from __future__ import annotations

from ..sync.phases import find_unawaited_copy
from .actions import Commit
from .async_groups import drain_stores, finish
from .barrier_state import Mbarrier
from .deadlocks import make_deadlock_error
from .engines import act
from .faults import make_finding_fault
from .machine import BLOCK, Machine, Worker
from .trace_times import record_deadlock, record_steps
from .values import Diverge


def run(m: Machine) -> None:
    """Run to the end of all workers.

    Raises Diverge when lanes take different branches (see Machine.split), CuirError on a fault.
    """
    picker, trace = m.picker, m.launch.trace
    replays = m.launch.schedule.kind == "replay"
    while True:
        version = m.version
        runnable = [w.number for w in m.workers if not w.finished and (w.block is None or w.blocked_at != version)]
        if not runnable and not m.pending:
            if all(w.finished for w in m.workers):
                break
            record_deadlock(m)
            raise make_deadlock_error(m)
        replayed = _pick_replayed(m, runnable) if replays else None
        kind, n = replayed or picker.pick(runnable, len(m.pending))
        if kind == "worker":
            _advance(m, m.workers[n], picker.until_blocked)
        else:
            action = m.pending.pop(n)
            act(m, action)
            m.mark_change()
        if trace is not None:
            record_steps(m)
    _finish(m)


def _pick_replayed(m: Machine, runnable: list[int]) -> tuple[str, int] | None:
    """Return the next step of a recorded schedule, or None."""
    step = m.picker.replay_step([m.workers[n].label for n in runnable], [a.name for a in m.pending])
    return step if step is None or step[0] == "engine" else ("worker", runnable[step[1]])


def _advance(m: Machine, w: Worker, until_blocked: bool) -> None:
    """Run a worker until it blocks, ends, or reaches a point where the schedule may choose anew."""
    code, last = w.code, len(w.code)
    pc = w.pc
    try:
        while True:
            pc = w.pc
            if pc == last:
                finish(w)
                w.finished = True
                return
            w.pc = pc + 1
            signal = code[pc](w)
            if signal:
                if signal == BLOCK:
                    w.pc = pc
                    w.blocked_at = m.version
                    return
                w.block = None
                if not until_blocked:
                    return
    except Diverge:
        w.pc = pc
        raise


def _finish(m: Machine) -> None:
    """Complete bulk stores at the end of all workers, and check that no copy is still in flight."""
    for w in m.workers:
        drain_stores(w, 0)
    rounds = m.launch.rounds
    for (name, _), ring in m.barriers.items():
        for bar in ring:
            if isinstance(bar, Mbarrier):
                rounds[name] = max(rounds.get(name, 0), bar.phase)
    if not m.launch.detect:
        return
    orders = [w.clock for w in m.workers]
    findings = [
        find_unawaited_copy(bar, bar.used_phase, (bar.entry, bar.used_phase), orders, bar.user.span, bar.user.label)
        for ring in m.barriers.values()
        for bar in ring
        if isinstance(bar, Mbarrier) and bar.user is not None
    ]
    for commit in (w.groups.queue[-1] for w in m.workers if w.groups.queue):
        assert isinstance(commit, Commit) and commit.bar is not None
        findings.append(find_unawaited_copy(commit.bar, commit.phase, commit.event, orders, commit.actor.span, commit.actor.label))
    if (finding := next((f for f in findings if f is not None), None)) is not None:
        raise make_finding_fault(m, finding)
