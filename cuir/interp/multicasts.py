"""Explanations of races of copies into another CTA of the cluster.

They name the arrivals that must cross to it, and their count. A worker waits on barriers of its own CTA alone, so what
orders the two is an arrival of the other CTA's workers there.
"""

from __future__ import annotations

from ..sync.accesses import describe_access
from .access_records import Record
from .arrival_counts import find_wrong_count
from .cause_chains import (
    Cause,
    find_idle_wait,
    find_second_arrival,
    find_unwaited_release,
    get_barrier_uses,
    get_ring,
    list_arrivals,
)
from .machine import Machine, Worker


def explain_multicast(m: Machine, new: Record, old: Record, cta: int) -> Cause:
    """Find the release that is missing or wrong before a multicast.

    `new`: a copy by a worker of another CTA than `cta`, whose bytes it writes.
    """
    checked = m.launch.checked
    barrier_uses, w = get_barrier_uses(checked), m.workers[new.worker]
    along = next((u.along for u in barrier_uses.find("lands", role=w.program.name) if u.span == new.span), True)
    spelling = f'cluster="{along}"' if isinstance(along, str) else "cluster=True"
    guard = barrier_uses.guards.get((w.program.name, new.span))
    if guard is None:
        return Cause(
            [],
            f"{w.label} waits before this copy on a barrier on which the readers of every CTA that it lands in call arrive({spelling})",
            1,
        )
    ring_names = dict.fromkeys([guard.name, *(u.name for u in barrier_uses.find("waits", role=w.program.name))])
    arrivals = {n: uses for n in ring_names if (uses := barrier_uses.find("arrives", n))}
    names = [n for n, uses in arrivals.items() if any(w.cta in checked.ctas(cta, u.along) for u in uses)]
    for name in names:
        cause = _find_wrong_phase(m, new, cta, name)
        if cause is not None:
            return cause
    for use in arrivals.get(guard.name, []):
        if w.cta in checked.ctas(cta, use.along):
            continue
        roles = {u.role for u in arrivals[guard.name]}
        count = sum(r.workers for r in checked.roles if r.name in roles) * len(checked.ctas(w.cta, along))
        ctas_text = f"the CTAs in line along {use.along}" if isinstance(use.along, str) else "its own CTA alone"
        return Cause(
            [
                (
                    f"this arrival on `{use.name}` releases the buffer to {ctas_text}, and the copy by {w.label} writes it in CTA {cta} too",
                    use.span,
                )
            ],
            f"arrive({spelling}); the count of `{use.name}` is then that of the workers that arrive in all CTAs that the copy lands in, mbarrier({count})",
            3,
        )
    cause = find_idle_wait(m, w.number, -1, 1 << 60)
    if cause is not None:
        return cause
    name = names[0] if names else guard.name
    ring, readers = get_ring(m, name, w.cta), _list_readers(m, cta, name)
    last = next((e for bar in ring for x in readers for e in list_arrivals(bar, worker=x.number)), None)
    return Cause(
        [(f"{last.label} arrives on `{name}` of CTA {w.cta} here", last.span)] if last is not None else [],
        f"the workers of CTA {cta} arrive on `{name}` of CTA {w.cta} by arrive({spelling}) once a phase, after {describe_access(old)} is over",
        1,
    )


def _list_readers(m: Machine, cta: int, name: str) -> list[Worker]:
    """Collect the workers of a CTA that arrive on a barrier."""
    roles = {u.role for u in get_barrier_uses(m.launch.checked).find("arrives", name)}
    return [x for x in m.workers if x.cta == cta and x.program.name in roles]


def _find_wrong_phase(m: Machine, new: Record, cta: int, name: str) -> Cause | None:
    """Find a phase that ended although workers of the other CTA had not arrived, or arrived too early."""
    for bar in get_ring(m, name, m.workers[new.worker].cta):
        cause = find_wrong_count(m, bar) or next((c for p in range(bar.phase + 1) if (c := find_second_arrival(bar, p)) is not None), None)
        if cause is not None:
            return cause
    return next((c for x in _list_readers(m, cta, name) if (c := find_unwaited_release(m, x.number, name, x.cta)) is not None), None)
