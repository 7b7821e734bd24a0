"""The order that machines bring: what a worker, or whoever has waited at a barrier, knows to have happened before.

An event is what a machine makes it: an epoch of a worker, the end of a phase. `E` is its type.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple, Protocol, Self, TypeVar

E = TypeVar("E")
E_co = TypeVar("E_co", covariant=True)
E_contra = TypeVar("E_contra", contravariant=True)
Scope = Literal["cta", "cluster", "device"]


class Order(Protocol[E_contra]):
    """Events that are known to have happened before."""

    def is_before(self, event: E_contra, /) -> bool:
        """Return True if the event happened before."""
        ...

    def is_fenced(self, event: E_contra, /) -> bool:
        """Return True if the event happened before, and a proxy fence of its worker lies between."""
        ...

    def is_over(self, event: E_contra, /) -> bool:
        """Return True if the event is over, whether or not accesses are ordered by that."""
        ...


class Joinable(Order[E_contra], Protocol[E_contra]):
    """An order that grows at arrivals and waits."""

    def copy(self) -> Self: ...

    def learn(self, event: E_contra, /) -> None:
        """Add an event."""
        ...

    def join(self, source: Self, /) -> None:
        """Add all that another order knows."""
        ...

    def join_progress(self, source: Self, /) -> None:
        """Add what another order knows to be over, without happens-before."""
        ...


class Party(NamedTuple):
    """Where in a launch an access is made."""

    cluster: int
    cta: int


def can_be_ordered(a: Party, b: Party, scope: Scope) -> bool:
    """Return True if barriers may order accesses of two parties; scope: the widest one that they act in."""
    return scope == "device" or (a.cluster == b.cluster and (scope == "cluster" or a.cta == b.cta))


def is_known(event: E, orders: Iterable[Order[E]]) -> bool:
    """Return True if the event happened before in one of the orders."""
    return any(order.is_before(event) for order in orders)
