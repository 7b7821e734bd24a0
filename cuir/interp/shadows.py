"""Who accessed which element of a tensor in device memory, and whether a new access is ordered after all of them that it conflicts with.

Each element has a *history*: the accesses that a later one could still conflict with without conflicting with a later access too. Elements with one
history share its number, so that a box is one comparison and one fill. Additions commute with each other, and so do reads; nothing orders the clusters of a
launch. A tensor of which all accesses commute has no shadow. Knows events and clocks, names no primitive.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .faults import fault
from .races import Actor, Event

if TYPE_CHECKING:
    from .machine import Machine


@dataclass
class Access:
    """One access of a batch to a tensor; in histories the number of its lane l is `first + l`.

    event: at which it was over in all lanes; None for an engine's, which is over in each cluster at an event of its own, if ever.
    """

    first: int
    clusters: np.ndarray
    worker: int
    cta: int
    label: str
    what: str
    span: Any
    mode: str
    proxy: str
    event: Event | None
    awaited: str  # what has to be waited for before an engine's access is over, for reports
    over: dict[int, Event] = field(default_factory=dict)

    def done(self, cluster: int) -> Event | None:
        return self.event if self.event is not None else self.over.get(cluster)

    def retire(self, m: Machine, event: Event) -> None:
        """Whoever knows the event knows, in the clusters of this batch, that the access is over."""
        for cluster in m.clusters.tolist():
            self.over[cluster] = event


class Shadow:
    """The histories of a tensor's elements.

    between: whether barriers order accesses to it of different CTAs of a cluster, too (see docs/semantics.md, Clusters).
    """

    def __init__(self, name: str, shape: tuple[int, ...], device: torch.device, between: bool):
        self.name, self.between = name, between
        size = int(np.prod(shape, dtype=np.int64))
        self.flat = torch.zeros(size, dtype=torch.int32, device=device)  # of each element the number of its history; 0: none
        self.shape = shape
        self.strides = tuple(int(np.prod(shape[i + 1 :], dtype=np.int64)) for i in range(len(shape)))
        self.log: list[Access] = []
        self.firsts: list[int] = []
        self.next = 1  # numbers of accesses, which are histories of one, and of longer histories
        self.longer: dict[int, tuple[int, ...]] = {}
        self.numbers: dict[tuple[int, ...], int] = {}

    # ---- histories
    def enter(self, m: Machine, actor: Actor, mode: str, proxy: str, event: Event | None, awaited: str = "") -> Access:
        access = Access(self.next, m.clusters, actor.worker, actor.cta, actor.label, actor.what, actor.span, mode, proxy, event, awaited)
        self.log.append(access)
        self.firsts.append(self.next)
        self.next += len(m.clusters)
        return access

    def _find(self, number: int) -> tuple[Access, int]:
        access = self.log[bisect.bisect_right(self.firsts, number) - 1]
        return access, int(access.clusters[number - access.first])

    def _history(self, members: list[int]) -> int:
        if len(members) == 1:
            return members[0]
        key = tuple(members)
        number = self.numbers.get(key)
        if number is None:
            number = self.numbers[key] = self.next
            self.longer[number] = key
            self.next += 1
        return number

    def after(self, m: Machine, actor: Actor, access: Access, lane: int, history: int) -> int:
        """The history of elements that had `history` before the access of a lane. Raises CuirError R402 (no order), R403 (no fence)."""
        number, cluster, mode = access.first + lane, int(access.clusters[lane]), access.mode
        if history == 0:
            return number
        kept, same, clusters = [], False, set()
        for n in self.longer.get(history, (history,)):
            old, owner = self._find(n)
            done = old.done(owner)
            commute = mode == old.mode and mode != "write"
            ordered = owner == cluster and done is not None and actor.clock.has(done) and (self.between or old.cta == actor.cta)
            if not commute:
                if not ordered:
                    raise self._race(m, actor, access, old, cluster, owner, done)
                assert done is not None
                if (
                    access.proxy == "async"
                    and old.proxy == "generic"
                    and old.mode != "read"
                    and not m.workers[old.worker].showed(done, actor.clock)
                ):
                    raise self._unfenced(m, actor, access, old)
            if ordered and (mode == "write" or commute):
                if mode == old.mode and done == access.event and old.proxy == access.proxy:
                    same = True  # the worker's own, and nobody was told anything since: it stands for both
                else:
                    continue  # who conflicts with it, unordered, does so with this access
            kept.append(n)
            if commute:
                clusters.add(owner)
        if not (
            same or len(clusters) > 1
        ):  # with two clusters in the history, whoever conflicts with this access conflicts with one of them
            kept.append(number)
        return self._history(kept)

    # ---- accesses
    def region(self, m: Machine, actor: Actor, access: Access, lane: int, region: torch.Tensor) -> None:
        """An access of a lane to a region, a view of `flat`."""
        low, high = (int(x) for x in region.aminmax())
        if low == high:
            region.fill_(self.after(m, actor, access, lane, low))
            return
        seen, inverse = torch.unique(region, return_inverse=True)
        new = [self.after(m, actor, access, lane, history) for history in seen.tolist()]
        region.copy_(torch.tensor(new, dtype=torch.int32, device=region.device)[inverse])

    def elements(self, m: Machine, actor: Actor, access: Access, where: torch.Tensor, lane: torch.Tensor) -> None:
        """An access to single elements, `where` in `flat`, each by a lane. Several lanes may not write one element."""
        if not where.numel():
            return
        seen = self.flat[where]
        numbers = self._after_all(m, actor, access, seen, lane)
        self.flat[where] = numbers
        if len(m.clusters) > 1 and not torch.equal(self.flat[where], numbers):
            if access.mode == "write":
                raise self.overlapping_lanes(m, actor)
            self.flat[where] = seen
            for one in torch.unique(lane).tolist():  # lanes meet: one after the other
                mine = lane == one
                self.flat[where[mine]] = self._after_all(m, actor, access, self.flat[where[mine]], lane[mine])

    def _after_all(self, m: Machine, actor: Actor, access: Access, seen: torch.Tensor, lane: torch.Tensor) -> torch.Tensor:
        if not bool(seen.any()):
            return (access.first + lane).to(torch.int32)
        pairs, inverse = torch.unique(torch.stack((seen.to(torch.int64), lane)), dim=1, return_inverse=True)
        new = [self.after(m, actor, access, one, history) for history, one in pairs.T.tolist()]
        return torch.tensor(new, dtype=torch.int32, device=seen.device)[inverse]

    # ---- reports
    def overlapping_lanes(self, m: Machine, actor: Actor) -> Exception:
        return fault(m, "R402", f"several CTAs write the same elements of `{self.name}` here", actor.span,
                     "nothing orders CTAs of a launch: each element belongs to one of them, or all add=True")  # fmt: skip

    def _race(self, m: Machine, actor: Actor, access: Access, old: Access, cluster: int, owner: int, done: Event | None) -> Exception:
        whose = "" if owner == cluster else f" of another {'cluster' if m.launch.checked.cluster > 1 else 'CTA'} ({owner})"
        if owner != cluster:
            hint = "nothing orders CTAs of a launch: each element belongs to one of them, or all add=True"
        elif done is None and old.mode != "read":
            hint = "a bulk store is over when the kernel ends"
        elif done is None:
            hint = f"{old.label} is over after {old.awaited}"
        elif actor.clock.has(done):
            hint = f"the kernel only writes `{self.name}`: barriers order CTAs of a cluster in tensors that it accesses in more than one way; here each element belongs to one CTA"
        elif old.awaited:
            hint = f"{old.label} is over after {old.awaited}, and that wait must happen before this {access.mode}"
        else:
            hint = "a barrier must lie between the two"
            if old.cta != actor.cta:
                hint += ": of CTAs of a cluster one whose arrivals are arrive(cluster=True)"
        return fault(m, "R402", f"the {access.mode} of `{self.name}` by {actor.label} is not ordered after the {old.mode} by {old.label}{whose}", actor.span, hint,
                     [(f"{old.what} here", old.span)])  # fmt: skip

    def _unfenced(self, m: Machine, actor: Actor, access: Access, old: Access) -> Exception:
        rest = "" if old.worker == actor.worker else " and before the barrier that orders the two"
        message = f"the {access.mode} of `{self.name}` by {actor.label} may miss the {old.mode} by {old.label}: what is stored to a tensor the ordinary way reaches the copy engine after a fence"
        return fault(m, "R403", message, actor.span, f"{old.label} calls fence_async(tensors=True) after its {old.mode}{rest}; fence_async() alone is for shared memory",
                     [(f"{old.what} here", old.span)])  # fmt: skip
