"""The evaluator's workers: their waits, barriers, and the work items that they get.

A worker that waits yields a `Wait`, and goes on when that is over. Barriers are those of the hardware: a wait for an
mbarrier looks at the parity of its phase alone, and bytes of a copy may land before they are expected.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...text.plurals import count_noun

Frame = list[Any]  # the worker, and its value of each SSA value of the IR
Waiting = Generator["Wait", None, None]


class Fault(Exception):
    """An operation that no valid program does, or a deadlock.

    The IR is wrong, since its program was free of faults. `located`: the message names the operation.
    """

    located = False


class Wait(Protocol):
    """The condition for which a worker waits."""

    def over(self) -> bool: ...
    def __str__(self) -> str: ...


@dataclass
class Worker:
    """Worker `index` of a role, in the CTA of rank `rank` of its cluster.

    `joint`: the barrier of all workers of the CTA.
    """

    label: str
    rank: int
    index: int
    joint: NamedBarrier
    frame: Frame = field(repr=False)
    wait: Wait | None = None


class Mbarrier:
    """An mbarrier: phases that end when `count` arrivals and all expected bytes have come.

    `cluster`: the same one of each CTA, by rank.
    """

    def __init__(self, text: str, count: int, cluster: list[Mbarrier]):
        self.text, self.count, self.cluster = text, count, cluster
        self.phase, self.pending, self.bytes = 0, count, 0

    def arrive(self, expected: int = 0) -> None:
        """Count an arrival that announces `expected` bytes. Raises Fault if all have come."""
        if not self.pending:
            raise Fault(f"`{self.text}` has all {count_noun(self.count, 'arrival')} of phase {self.phase}, and another one comes")
        self.pending -= 1
        self.bytes += expected
        self._end()

    def land(self, nbytes: int) -> None:
        """Count bytes of a copy that have landed."""
        self.bytes -= nbytes
        self._end()

    def _end(self) -> None:
        if self.pending:
            return
        if self.bytes < 0:
            raise Fault(f"{-self.bytes} bytes more than are expected landed in phase {self.phase} of `{self.text}`")
        if not self.bytes:
            self.phase, self.pending = self.phase + 1, self.count

    def missing(self) -> str:
        """Return the arrivals and bytes that the present phase misses, as text."""
        return f"phase {self.phase} with {self.count - self.pending} of {count_noun(self.count, 'arrival')}, {count_noun(self.bytes, 'byte')} missing"


@dataclass
class PhaseWait:
    """A wait for the end of a phase of this parity."""

    bar: Mbarrier
    parity: int

    def over(self) -> bool:
        """Return whether the barrier is in a phase of the other parity."""
        return self.bar.phase % 2 != self.parity

    def __str__(self) -> str:
        return f"parity {self.parity} of `{self.bar.text}`, which is in {self.bar.missing()}"


class NamedBarrier:
    """A reusable barrier of `count` workers: some of them wait, others only arrive."""

    def __init__(self, text: str, count: int):
        self.text, self.count = text, count
        self.generation, self.arrived = 0, 0

    def arrive(self) -> int:
        """Arrive, and return the generation that the arrival belongs to."""
        generation = self.generation
        self.arrived += 1
        if self.arrived == self.count:
            self.generation, self.arrived = generation + 1, 0
        return generation


@dataclass
class Meeting:
    """A wait for a generation of a named barrier."""

    bar: NamedBarrier
    generation: int

    def over(self) -> bool:
        """Return whether the generation has ended."""
        return self.bar.generation > self.generation

    def __str__(self) -> str:
        return f"`{self.bar.text}`, where {self.bar.arrived} of {self.bar.count} have arrived"


class Units:
    """The work items of a launch.

    Static: cluster c of G gets c, c + G, ...; dynamic: the first to ask gets the next.
    """

    def __init__(self, clusters: int, dynamic: bool):
        self.clusters, self.dynamic = clusters, dynamic
        self.count = 0
        self.next_unit = 0  # dynamic ones
        self.units_by_cluster: list[list[int]] = [[] for _ in range(clusters)]


@dataclass(frozen=True)
class UnitsOfCluster:
    """The work items of one cluster, the same sequence for all its workers."""

    units: Units
    cluster: int

    def sequence(self) -> Iterator[int]:
        """Yield the work items that the cluster gets, for one of its workers."""
        units, drawn = self.units, self.units.units_by_cluster[self.cluster]
        if not units.dynamic:
            yield from range(self.cluster, units.count, units.clusters)
            return
        k = 0
        while True:
            if k == len(drawn):
                if units.next_unit >= units.count:
                    return
                drawn.append(units.next_unit)
                units.next_unit += 1
            yield drawn[k]
            k += 1
