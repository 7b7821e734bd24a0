"""Happens-before checks on tensors in device memory, and checks that elements read were written.

Names no primitive. Additions commute with each other, and so do reads; nothing orders the clusters of a launch.
Invariant: each access to a tensor that has a shadow is entered in it, a box's when it is issued.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ..checking.tensor_modes import write_spans
from ..sync.accesses import commutes, get_rules, judge_pair
from ..sync.orders import Party, Scope, can_be_ordered
from .access_records import Actor
from .clocks import Event, TensorClock
from .faults import make_fault, make_finding_fault
from .machine import Machine
from .shadows import Access, Shadow
from .tensors import BoxRef, GatherRef, TensorArg, get_region


# ---- accesses
def enter_read(m: Machine, actor: Actor, box: BoxRef | GatherRef, proxy: str, completion: Event | None, awaited: str = "") -> Access | None:
    """Check a read of a part of a tensor for races with earlier accesses, and record it.

    completion: None while an engine may still do it. Returns the recorded access, if the tensor has a shadow.
    """
    if isinstance(box, GatherRef):
        return _enter_gather(m, actor, box, proxy, completion, awaited)
    return _enter_box(m, actor, box, "read", proxy, completion, awaited)


def enter_write(m: Machine, actor: Actor, box: BoxRef, add: bool, proxy: str, completion: Event | None) -> Access | None:
    """Check a write (or addition) of a box of a tensor for races with earlier accesses, and record it."""
    return _enter_box(m, actor, box, "add" if add else "write", proxy, completion)


def _enter_box(m: Machine, actor: Actor, box: BoxRef, mode: str, proxy: str, completion: Event | None, awaited: str = "") -> Access | None:
    shadow = box.tensor.shadow
    if shadow is None:
        return None
    if mode == "write" and box.lanes_overlap(len(m.clusters)):
        raise _make_overlap_fault(m, shadow, actor)
    access = shadow.enter(m.clusters, actor, mode, proxy, completion, awaited)
    entry = _Entry(m, shadow, actor, access)
    for lanes, part, offsets in box.pieces(shadow.strides):
        chosen = range(len(m.clusters))[lanes]
        for lane, offset in zip(chosen, offsets.tolist() if isinstance(offsets, np.ndarray) else [int(offsets)] * len(chosen)):
            entry.enter_region(lane, get_region(shadow.flat, shadow.strides, part, offset))
    return access


def _enter_gather(m: Machine, actor: Actor, gather: GatherRef, proxy: str, completion: Event | None, awaited: str) -> Access | None:
    shadow = gather.tensor.shadow
    if shadow is None:
        return None
    offset, inside, _ = gather.tensor.offsets(gather.indices, shadow.strides)
    inside = inside.expand(len(m.clusters), *inside.shape[1:])
    access = shadow.enter(m.clusters, actor, "read", proxy, completion, awaited)
    lane = torch.arange(len(m.clusters), device=inside.device).reshape(-1, 1, 1).expand(inside.shape)
    _Entry(m, shadow, actor, access).enter_elements_of_lanes(offset.expand(inside.shape)[inside], lane[inside])
    return access


def enter_elements(
    m: Machine,
    actor: Actor,
    tensor: TensorArg,
    indices: list[Any],
    inside: torch.Tensor,
    mode: str,
    offset: torch.Tensor | None = None,
    whole: bool = False,
) -> None:
    """Check an access of a worker to single elements, where `inside`, and enter it.

    offset: where they lie in memory, if that is known. whole: all are inside, which costs much less to enter.
    """
    shadow = tensor.shadow
    if shadow is None:
        return
    lanes = len(m.clusters)
    if offset is None or shadow.strides != tensor.strides:
        offset, _, _ = tensor.offsets(indices, shadow.strides)
    shape = (lanes, *inside.shape[1:])
    positions = offset.expand(shape)
    lane = torch.arange(lanes, device=positions.device).reshape(-1, 1, 1).expand(shape)
    if whole:
        positions, lane = positions.reshape(-1), lane.reshape(-1)
    else:
        inside = inside.expand(shape)
        positions, lane = positions[inside], lane[inside]
    access = shadow.enter(m.clusters, actor, mode, "generic", (actor.worker, actor.clock.times[actor.worker]))
    _Entry(m, shadow, actor, access).enter_elements_of_lanes(positions, lane)


# ---- order
class _Entry:
    """An access that is being recorded in the histories of the elements that it reaches."""

    def __init__(self, m: Machine, shadow: Shadow, actor: Actor, access: Access):
        self.m, self.shadow, self.actor, self.access = m, shadow, actor, access
        self.scope: Scope = "cluster" if shadow.between else "cta"
        self.needs_value = shadow.undefined and access.mode != "write"

    def enter_region(self, lane: int, region: torch.Tensor) -> None:
        """Enter an access of a lane to a region, a view of `flat`."""
        low, high = (int(x) for x in region.aminmax())
        if low == 0 and self.needs_value:
            first = (region == 0).nonzero()[0].tolist()
            raise self._make_unwritten_fault(lane, int(region[tuple(first)].storage_offset() - self.shadow.flat.storage_offset()))
        if low == high:
            region.fill_(self.extend_history(lane, low))
            return
        histories, inverse = torch.unique(region, return_inverse=True)
        new = [self.extend_history(lane, history) for history in histories.tolist()]
        region.copy_(torch.tensor(new, dtype=torch.int32, device=region.device)[inverse])

    def enter_elements_of_lanes(self, offsets: torch.Tensor, lane: torch.Tensor) -> None:
        """Enter an access to single elements, at `offsets` in `flat`, each by a lane.

        Several lanes may not write one element.
        """
        if not offsets.numel():
            return
        flat = self.shadow.flat
        histories = flat[offsets]
        if self.needs_value and not bool(histories.all()):
            first = int((histories == 0).nonzero()[0])
            raise self._make_unwritten_fault(int(lane[first]), int(offsets[first]))
        numbers = self._extend_histories(histories, lane)
        flat[offsets] = numbers
        if len(self.m.clusters) > 1 and not torch.equal(flat[offsets], numbers):
            if self.access.mode == "write":
                raise _make_overlap_fault(self.m, self.shadow, self.actor)
            flat[offsets] = histories
            for lane_number in torch.unique(lane).tolist():  # lanes meet: one after the other
                of_lane = lane == lane_number
                flat[offsets[of_lane]] = self._extend_histories(flat[offsets[of_lane]], lane[of_lane])

    def _extend_histories(self, histories: torch.Tensor, lane: torch.Tensor) -> torch.Tensor:
        if not bool(histories.any()):
            return (self.access.first + lane).to(torch.int32)
        lanes = len(self.m.clusters)
        # one number sorts much faster than a column of two
        pairs, inverse = torch.unique(histories.to(torch.int64) * lanes + lane, return_inverse=True)
        new = [self.extend_history(pair % lanes, pair // lanes) for pair in pairs.tolist()]
        return torch.tensor(new, dtype=torch.int32, device=histories.device)[inverse]

    def extend_history(self, lane: int, history: int) -> int:
        """Return the history of elements that had `history` before the access of a lane.

        Raises CuirError R402 (no order), R403 (no fence).
        """
        shadow, actor, access = self.shadow, self.actor, self.access
        number, cluster, mode = access.first + lane, int(access.clusters[lane]), access.mode
        if history == 0:
            return number
        members, replaces_own, clusters = [], False, set()
        for n in shadow.longer.get(history, (history,)):
            old, owner = shadow.find(n)
            completion = old.get_completion(owner)
            commute = commutes(mode, old.mode)
            ordered = (
                completion is not None
                and actor.clock.is_before(completion)
                and can_be_ordered(Party(cluster, actor.cta), Party(owner, old.cta), self.scope)
            )
            if not commute:
                self._judge(old, cluster, owner, completion, ordered)
            if ordered and (mode == "write" or commute):
                if mode == old.mode and completion == access.completion and old.proxy == access.proxy:
                    replaces_own = True  # an access of this worker in this epoch, not released since: it stands for both
                else:
                    continue  # an access that conflicts with it, unordered, also conflicts with this one
            members.append(n)
            if commute:
                clusters.add(owner)
        # with two clusters in the history, any access that conflicts with this one conflicts with one of them
        if not (replaces_own or len(clusters) > 1):
            members.append(number)
        return shadow.history(members)

    def _judge(self, old: Access, cluster: int, owner: int, completion: Event | None, ordered: bool) -> None:
        """Require that a conflicting pair breaks no rule.

        Raises CuirError R402 (no order), R403 (no fence).

        Args:
            old: the earlier access.
            cluster: of the new access.
            owner: the cluster of the earlier one.
            completion: at which the earlier one is over in its cluster.
            ordered: whether it happened before.
        """
        if not get_rules(self.access, old, ordered):
            return
        m = self.m
        owner_text = "" if owner == cluster else f" of another {'cluster' if m.launch.checked.cluster > 1 else 'CTA'} ({owner})"
        earlier = replace(old, label=old.label + owner_text, completion=completion)
        order = TensorClock(self.actor.clock, [w.clock for w in m.workers])
        finding = judge_pair(replace(self.access, text=self.shadow.name), earlier, order, ordered)
        if finding is None:
            return
        if finding.code != "R402":
            raise make_finding_fault(m, finding)
        raise make_finding_fault(m, finding, self._explain_race(old, cluster, owner, completion), [(f"{old.description} here", old.span)])

    # ---- reports
    def _explain_race(self, old: Access, cluster: int, owner: int, completion: Event | None) -> str:
        """Return what would order two accesses."""
        name, actor, access = self.shadow.name, self.actor, self.access
        if owner != cluster:
            hint = "nothing orders CTAs of a launch: each element belongs to one of them, or all add=True"
        elif completion is None and old.mode != "read":
            hint = "a bulk store is over when the kernel ends"
        elif completion is None:
            hint = f"{old.label} is over after {old.awaited}"
        elif actor.clock.is_before(completion):
            hint = f"the kernel only writes `{name}`: barriers order CTAs of a cluster in tensors that it accesses in more than one way; here each element belongs to one CTA"
        elif old.awaited:
            hint = f"{old.label} is over after {old.awaited}, and that wait must happen before this {access.mode}"
        else:
            hint = "a barrier must lie between the two"
            if old.cta != actor.cta:
                hint += ": of CTAs of a cluster one whose arrivals are arrive(cluster=True)"
        return hint

    def _make_unwritten_fault(self, lane: int, offset: int) -> Exception:
        m, name, actor, access = self.m, self.shadow.name, self.actor, self.access
        element = f"{name}[{', '.join(str(int(i)) for i in np.unravel_index(offset, self.shadow.shape))}]"
        unit = "cluster" if m.launch.checked.cluster > 1 else "CTA"
        unit_text = f", in {unit} {int(access.clusters[lane])}" if m.launch.grid > 1 else ""
        does = "adds to" if access.mode == "add" else "reads"
        stores = write_spans(m.launch.checked, name)
        notes = [(f"`{name}` is written here, which has not happened in this run before the {access.mode}", span) for span in stores[:3]]
        if m.launch.tensors[name].param.scratch:
            hint = f"`{name}` is scratch, and holds anything when a launch begins: store to the element first, with a barrier between the two if another worker does"
        else:
            hint = f"store to the element first, with a barrier between the two if another worker does; or ask for `{name}` by name in the reference, which makes what it holds before the launch an input"
        return make_fault(
            m, "M415", f"{actor.label} {does} `{element}`, which this launch has not written{unit_text}", actor.span, hint, notes
        )


def _make_overlap_fault(m: Machine, shadow: Shadow, actor: Actor) -> Exception:
    return make_fault(
        m,
        "R402",
        f"several CTAs write the same elements of `{shadow.name}` here",
        actor.span,
        "nothing orders CTAs of a launch: each element belongs to one of them, or all add=True",
    )
