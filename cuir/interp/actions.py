"""What engines were told to do: bulk copies, cp.async, bulk stores and tensor-core products, and the groups in which a worker waits for them.

Invariant: an action holds what its engine needs to act at any time after its issue; operands are read when it acts (engines.py), and it acts once.
"""

from __future__ import annotations

import torch

from .barriers import Mbarrier
from .memory import SharedRef
from .records import Actor, Record
from .shadows import Access
from .state import State
from .tensors import BoxRef


class Action(State):
    """Something an engine does once, at a time of the scheduler's choice."""

    def __init__(self, actor: Actor):
        self.actor = actor
        self.name = ""  # by which a written schedule knows it
        self.acted = False
        self.records: list[Record] = []  # late accesses to shared memory, retired by a wait
        self.read: Access | None = None  # and of a tensor that the kernel writes
        self.time = 0.0  # when it is over, by the cost model


class Copy(Action):
    """A box into shared memory of one CTA, landing on a barrier of it or on a group of the worker. A multicast is a copy for each CTA of the cluster."""

    def __init__(self, actor: Actor, box: BoxRef, target: SharedRef, bar: Mbarrier | None, proxy: str, awaited: str, name: str = ""):
        super().__init__(actor)
        self.box, self.target, self.bar, self.proxy, self.awaited, self.name = box, target, bar, proxy, awaited, name


class Store(Action):
    """A shared view to a box; it reads its source at any time until store_wait or the end."""

    def __init__(self, actor: Actor, source: SharedRef, box: BoxRef, add: bool, proxy: str):
        super().__init__(actor)
        self.source, self.box, self.add, self.proxy = source, box, add, proxy


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


class Taken(State):
    """The value of a name whose registers a product took over."""

    def __init__(self, by: Product):
        self.by = by


class Groups(State):
    """What a worker issued and did not wait for yet."""

    def __init__(self) -> None:
        self.products: list[Product] = []  # in the order of issue
        self.operands: dict[str, Product] = {}  # names of register operands that the tensor core still reads
        self.open: list[Action] = []  # cp.async copies since the last commit
        self.closed: list[list[Action]] = []
        self.stores: list[Action] = []

    def commit(self) -> None:
        """The cp.async copies since the last commit are a group."""
        self.closed.append(self.open)
        self.open = []
