"""Asynchronous actions of engines and the groups in which a worker waits for them.

Bulk copies, cp.async, bulk stores and tensor-core products. Invariant: an action holds what its engine needs to act at
any time after its issue; operands are read when it acts (engines.py), and it acts once.
"""

from __future__ import annotations

import torch

from .access_records import Actor, Record
from .barrier_state import Mbarrier
from .clocks import Event
from .memory import SharedRef
from .shadows import Access
from .state import State
from .tensors import BoxRef, GatherRef


class Action(State):
    """An asynchronous action, which its engine performs once, at a time that the scheduler chooses."""

    def __init__(self, actor: Actor):
        self.actor = actor
        self.name = ""  # identifies the action in a written schedule
        self.acted = False
        self.records: list[Record] = []  # late accesses to shared memory, retired by a wait
        self.read: Access | None = None  # late access to a tensor that the kernel writes
        self.time = 0.0  # completion time by the cost model
        self.bar: Mbarrier | None = None  # the barrier that it completes on
        self.queue: list[Action] = []  # what its engine performs before it


class Copy(Action):
    """A copy of a box, or of gathered rows, into shared memory of one CTA, completing on a barrier or in an async group.

    The barrier belongs to that CTA, the group to the worker. A multicast is one copy for each CTA of the cluster.
    """

    def __init__(
        self, actor: Actor, box: BoxRef | GatherRef, target: SharedRef, bar: Mbarrier | None, proxy: str, awaited: str, name: str = ""
    ):
        super().__init__(actor)
        self.box, self.target, self.proxy, self.awaited, self.name = box, target, proxy, awaited, name
        self.bar = bar


class Store(Action):
    """A copy of a shared view to a box.

    Its source is read at any time until `store_wait` or the end.
    """

    def __init__(self, actor: Actor, source: SharedRef, box: BoxRef, add: bool, proxy: str):
        super().__init__(actor)
        self.source, self.box, self.add, self.proxy = source, box, add, proxy


class Product(Action):
    """A tensor-core product a @ b + c.

    As a value of a name it is in flight until retired; its registers may be taken over by a later product.
    """

    def __init__(
        self, actor: Actor, number: int, a: SharedRef | torch.Tensor, b: SharedRef, c: torch.Tensor | Product | None, names: tuple[str, ...]
    ):
        super().__init__(actor)
        self.number, self.a, self.b, self.c = number, a, b, c
        self.names = names  # names that hold register operands
        self.value: torch.Tensor | None = None
        self.over = False  # retired by a wait
        self.successor: Product | None = None


class Commit(Action):
    """An arrival at a barrier when all that a worker's queue holds is over, which is at an event."""

    def __init__(self, actor: Actor, bar: Mbarrier, event: Event, name: str):
        super().__init__(actor)
        self.bar, self.event, self.name = bar, event, name
        self.phase = -1  # of the barrier, once it has arrived


class ReclaimedRegisters(State):
    """The value of a name whose registers an asynchronous product overwrites: reading it is a fault."""

    def __init__(self, by: Product):
        self.by = by


class Groups(State):
    """The in-flight async groups of a worker: issued and not yet waited for."""

    def __init__(self) -> None:
        self.products: list[Product] = []  # in the order of issue
        self.operands: dict[str, Product] = {}  # names of register operands that the tensor core still reads
        self.open: list[Action] = []  # cp.async copies since the last commit
        self.closed: list[list[Action]] = []
        self.stores: list[Action] = []
        self.queue: list[Action] = []  # of an engine that acts in the order of issue: what it may not have performed yet
        self.queued = 0  # operations and commits issued to that engine

    def commit(self) -> None:
        """Close the group of cp.async copies issued since the last commit."""
        self.closed.append(self.open)
        self.open = []
