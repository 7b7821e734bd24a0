"""Engines: bulk copies, cp.async, bulk stores and tensor-core products, from issue until retired. Late effects happen late.

An action holds what it needs to act at any time after its issue, and reads its operands when it acts. Without detection a copy poisons its destination until then.
Owns no rule about who must wait: that is the tracker's (races.py) and the group's (groups.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import torch

from .barriers import Mbarrier
from .memory import SharedRef
from .races import Actor, Event, Record
from .shadows import Access
from .state import State
from .tensors import BoxRef
from .values import POISON

if TYPE_CHECKING:
    from .machine import Machine
    from .noise import Noise


class Action(State, ABC):
    """Something an engine does once, at a time of the scheduler's choice. `done` once it has acted."""

    def __init__(self, actor: Actor):
        self.actor = actor
        self.name = ""  # by which a written schedule knows it
        self.acted = False
        self.records: list[Record] = []  # late accesses to shared memory, retired by a wait
        self.read: Access | None = None  # and of a tensor that the kernel writes
        self.time = 0.0  # when it is over, by the cost model

    def act(self, m: Machine) -> None:
        if not self.acted:
            self.acted = True
            self.perform(m)

    @abstractmethod
    def perform(self, m: Machine) -> None:
        """What the engine does."""

    def retire(self, m: Machine, event: Event) -> None:
        """Whoever knows the event knows that the accesses are over."""
        self.act(m)
        for r in self.records:
            r.done = event
        if self.read is not None:
            self.read.retire(m, event)
        m.retired(self)


class Copy(Action):
    """A box into shared memory of one CTA, landing on a barrier of it or on a group of the worker. A multicast is a copy for each CTA of the cluster."""

    def __init__(self, actor: Actor, box: BoxRef, target: SharedRef, bar: Mbarrier | None, proxy: str, awaited: str, name: str = ""):
        super().__init__(actor)
        self.box, self.target, self.bar, self.proxy, self.awaited, self.name = box, target, bar, proxy, awaited, name

    def issue(self, m: Machine) -> None:
        """Writing the destination counts as done: who reads it early is told of the race, before it has a value; without detection it gets poison."""
        ref = self.target
        self.read = self.box.tensor.enter_read(m, self.actor, self.box, self.proxy, None, self.awaited)
        if not m.launch.detect:
            ref.values(m).fill_(POISON[ref.alloc.dtype])
        m.shared[ref.cta].wrote(ref)
        if self.bar is not None:
            self.records[0].bar = self.bar
            self.bar.issued(m, ref.nbytes, self.actor.worker, self.actor.label, self.actor.span)

    def perform(self, m: Machine) -> None:
        self.box.tensor.fetch(self.box, self.target.values(m))
        if self.bar is not None:
            event = self.bar.land(m, self.target.nbytes, self.actor.worker, self.actor.label, self.actor.span, self.time)
            self.records[0].done = event
            if self.read is not None:
                self.read.retire(m, event)
            m.retired(self)


class Store(Action):
    """A shared view to a box; it reads its source at any time until store_wait or the end."""

    def __init__(self, actor: Actor, source: SharedRef, box: BoxRef, add: bool, proxy: str):
        super().__init__(actor)
        self.source, self.box, self.add, self.proxy = source, box, add, proxy

    def issue(self, m: Machine) -> None:
        self.box.tensor.enter_write(m, self.actor, self.box, self.add, self.proxy, None)

    def perform(self, m: Machine) -> None:
        self.box.tensor.deliver(self.box, self.source.values(m), m.lanes, self.add)


class Product(Action):
    """a @ b + c on the tensor core. As a value of a name it is in flight until retired; its registers may be taken over by a later product."""

    def __init__(
        self, actor: Actor, number: int, a: SharedRef | torch.Tensor, b: SharedRef, c: torch.Tensor | Product | None, names: tuple[str, ...]
    ):
        super().__init__(actor)
        self.number, self.a, self.b, self.c = number, a, b, c
        self.names = names  # that hold register operands
        self.value: torch.Tensor | None = None
        self.over = False  # retired by a wait
        self.taken: Product | None = None

    def perform(self, m: Machine) -> None:
        c = self.c
        if isinstance(c, Product):
            c.act(m)
            c = c.value
        a = self.a.values(m) if isinstance(self.a, SharedRef) else self.a
        self.value = product(a, self.b.values(m), c, m.lanes, m.launch.noise)
        self.c = None


class Taken(State):
    """The value of a name whose registers a product took over."""

    def __init__(self, by: Product):
        self.by = by


def product(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, lanes: int, noise: Noise | None = None) -> torch.Tensor:
    """a [lanes or 1, R, K] @ b [lanes or 1, K, C] + c, in float32; c is consumed. noise: summed in another order."""
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
