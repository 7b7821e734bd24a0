"""Engines: the effect of each action, from issue until retired; late effects happen late.

Without detection a copy poisons its destination until it acts. Who must wait is checked by the records (races.py) and
the groups (async_groups.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from ..ops.meaning.tiles import add_by_engine
from . import protocol
from .actions import Action, Commit, Copy, Product, Store
from .clocks import Event
from .machine import Machine
from .memory import SharedRef
from .noise import Noise
from .tensor_races import enter_read, enter_write
from .values import POISON


# ---- issue
def enter_copy(m: Machine, copy: Copy) -> None:
    """Issue a copy, and record its write of the destination from now on.

    An early reader meets the race before it has a value; without detection it gets poison.
    """
    ref = copy.target
    copy.read = enter_read(m, copy.actor, copy.box, copy.proxy, None, copy.awaited)
    if not m.launch.detect and m.launch.data:
        ref.values(m.shared).fill_(POISON[ref.alloc.dtype])
    m.shared[ref.cta].wrote(ref)
    if copy.bar is not None:
        copy.records[0].bar = copy.bar
        protocol.note_issue(m, copy.bar, ref.nbytes, copy.actor)


def enter_store(m: Machine, store: Store) -> None:
    """Issue a bulk store: its write of the tensor counts as begun."""
    enter_write(m, store.actor, store.box, store.add, store.proxy, None)


def issue(m: Machine, action: Action) -> None:
    """Issue an action to its engine; the schedule decides when it acts."""
    timing = m.picker.timing
    if timing == "early":
        act(m, action)
    elif timing == "any" or action.bar is not None:
        m.pending.append(action)


# ---- acting
Perform = Callable[[Machine, Any], None]
P = TypeVar("P", bound=Perform)
PERFORMS: dict[type[Action], Perform] = {}


def performs(kind: type[Action]) -> Callable[[P], P]:
    """Register the function by which an engine performs a kind of action."""

    def register(function: P) -> P:
        PERFORMS[kind] = function
        return function

    return register


def act(m: Machine, action: Action) -> None:
    """Perform an action, once."""
    if action.acted:
        return
    action.acted = True
    for earlier in action.queue:
        act(m, earlier)
        _remove_pending(m, earlier)
    action.queue = []
    PERFORMS[type(action)](m, action)


@performs(Store)
def _perform_store(m: Machine, store: Store) -> None:
    if m.launch.data:
        store.box.tensor.deliver(store.box, store.source.values(m.shared), m.lanes, add_by_engine if store.add else None)


@performs(Commit)
def _perform_commit(m: Machine, commit: Commit) -> None:
    _remove_pending(m, commit)
    assert commit.bar is not None
    commit.phase = protocol.arrive_late(m, commit.bar, commit.actor, commit.event, commit.time)


@performs(Copy)
def _perform_copy(m: Machine, copy: Copy) -> None:
    if m.launch.data:
        copy.box.fetch(copy.target.values(m.shared))
    if copy.bar is not None:
        event = protocol.land(m, copy.bar, copy.target.nbytes, copy.actor, copy.time)
        copy.records[0].completion = event
        if copy.read is not None:
            copy.read.retire(m.clusters, event)
        _remove_pending(m, copy)


@performs(Product)
def _multiply(m: Machine, p: Product) -> None:
    if not m.launch.data:
        p.value, p.c = torch.zeros((1, 1, 1)), None
        return
    c = p.c
    if isinstance(c, Product):
        act(m, c)
        c = c.value
    a = p.a.values(m.shared) if isinstance(p.a, SharedRef) else p.a
    p.value = compute_product(a, p.b.values(m.shared), c, m.lanes, m.launch.noise)
    p.c = None


def retire(m: Machine, action: Action, event: Event) -> None:
    """Complete an action, ordering its accesses before whoever knows the event."""
    act(m, action)
    for r in action.records:
        r.completion = event
    if action.read is not None:
        action.read.retire(m.clusters, event)
    _remove_pending(m, action)


def _remove_pending(m: Machine, action: Action) -> None:
    if action in m.pending:
        m.pending.remove(action)


def compute_product(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, lanes: int, noise: Noise | None = None) -> torch.Tensor:
    """Compute a [lanes or 1, R, K] @ b [lanes or 1, K, C] + c in float32; c is consumed.

    noise: sum in another order.
    """
    if noise is not None:
        order = noise.order(a.shape[2]).to(a.device)
        a, b = a[:, :, order], b[:, order, :]
    if a.stride(2) != 1:  # a tile's layout may depend on the number of lanes, and the last bit of a sum on the layout
        a = a.contiguous()
    n = max(a.shape[0], b.shape[0], 1 if c is None else c.shape[0])
    a, b = a.expand(n, -1, -1), b.expand(n, -1, -1)
    if c is None:
        return torch.bmm(a, b)
    if c.shape[0] == n and c.is_contiguous():
        return torch.baddbmm(c, a, b, out=c)
    return torch.baddbmm(c.expand(n, -1, -1), a, b)
