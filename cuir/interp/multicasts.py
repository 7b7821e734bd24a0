"""Explanations of races of copies into another CTA of the cluster.

They name the arrivals that must cross to it, and their count. A worker waits on barriers of its own CTA alone, so what
orders the two is an arrival of the other CTA's workers there.
"""

from __future__ import annotations

from .chains import Cause, arrivals_of, came_twice, idle_wait, ring_of, text_of, unwaited, wrong_count
from .machine import Machine, Worker
from .records import Record


def of_multicast(m: Machine, new: Record, old: Record, cta: int) -> Cause:
    """Find the release that is missing or wrong before a multicast.

    `new`: a copy by a worker of another CTA than `cta`, whose bytes it writes.
    """
    checked = m.launch.checked
    text, w = text_of(checked), m.workers[new.worker]
    along = next((u.along for u in text.of("lands", role=w.program.name) if u.span == new.span), True)
    spelling = f'cluster="{along}"' if isinstance(along, str) else "cluster=True"
    guard = text.guards.get((w.program.name, new.span))
    if guard is None:
        return Cause(
            [],
            f"{w.label} waits before this copy on a barrier on which the readers of every CTA that it lands in call arrive({spelling})",
            1,
        )
    ring_names = dict.fromkeys([guard.name, *(u.name for u in text.of("waits", role=w.program.name))])
    arrivals = {n: uses for n in ring_names if (uses := text.of("arrives", n))}
    names = [n for n, uses in arrivals.items() if any(w.cta in checked.ctas(cta, u.along) for u in uses)]
    for name in names:
        cause = _of_count(m, new, cta, name)
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
    cause = idle_wait(m, w.number, -1, 1 << 60)
    if cause is not None:
        return cause
    name = names[0] if names else guard.name
    ring, readers = ring_of(m, name, w.cta), _readers(m, cta, name)
    last = next((e for bar in ring for x in readers for e in arrivals_of(bar, worker=x.number)), None)
    return Cause(
        [(f"{last.label} arrives on `{name}` of CTA {w.cta} here", last.span)] if last is not None else [],
        f"the workers of CTA {cta} arrive on `{name}` of CTA {w.cta} by arrive({spelling}) once a phase, after {old.words()} is over",
        1,
    )


def _readers(m: Machine, cta: int, name: str) -> list[Worker]:
    """Collect the workers of a CTA that arrive on a barrier."""
    roles = {u.role for u in text_of(m.launch.checked).of("arrives", name)}
    return [x for x in m.workers if x.cta == cta and x.program.name in roles]


def _of_count(m: Machine, new: Record, cta: int, name: str) -> Cause | None:
    """Find a phase that ended without an arrival of the other CTA's workers, or with one too early."""
    for bar in ring_of(m, name, m.workers[new.worker].cta):
        cause = wrong_count(m, bar) or next((c for p in range(bar.phase + 1) if (c := came_twice(bar, p)) is not None), None)
        if cause is not None:
            return cause
    return next((c for x in _readers(m, cta, name) if (c := unwaited(m, x.number, name, x.cta)) is not None), None)
