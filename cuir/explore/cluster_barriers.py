"""Conflicts between accesses of different clusters to one tensor.

Nothing orders clusters, so their conflicts need no schedule.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..sync.accesses import commutes
from ..text.diagnostics import Diagnostic, Note
from .skeleton import Skeleton, Touch


def find_cluster_conflict(skeletons: Sequence[Skeleton]) -> Diagnostic | None:
    """Find two clusters that access the same element, unless both read or both add (R402)."""
    if len(skeletons) < 2:
        return None
    accesses: dict[str, list[tuple[int, int, int, Touch]]] = {}
    for skeleton in skeletons:
        for worker in skeleton.workers:
            for touch in (t for part in (worker.lead, *(s.locals for s in worker.steps)) for t in part if isinstance(t, Touch)):
                region = skeleton.regions[touch.region]
                if isinstance(region.space, str):
                    accesses.setdefault(region.space, []).extend((lo, hi, skeleton.cluster, touch) for lo, hi in region.intervals)
    for tensor, touches in accesses.items():
        touches.sort(key=lambda a: a[:3])
        open_: list[tuple[int, int, int, Touch]] = []
        for now in touches:
            open_ = [a for a in open_ if a[1] > now[0]]
            for old in open_:
                if old[2] != now[2] and not commutes(old[3].mode, now[3].mode):
                    return Diagnostic(
                        "R402",
                        f"the {now[3].mode} of `{now[3].text}` and the {old[3].mode} of `{old[3].text}` reach the same elements of `{tensor}` in different CTAs",
                        now[3].span,
                        (Note("the other access", old[3].span), Note(f"in clusters {old[2]} and {now[2]}")),
                        "nothing orders CTAs of a launch: each element belongs to one of them, or all add=True",
                    )
            open_.append(now)
    return None
