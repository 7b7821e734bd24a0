"""Skeleton of a cluster's program: for each worker a straight line of synchronisations and accesses.

A worker's trace is cut into steps at the points where the schedule may choose anew, the same points as in the
interpreter. What follows a point up to the next one (ordinary accesses, fences, waits for products) is local: no other
worker can observe when it happens except through what orders it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal

from ..sync.byte_ranges import Intervals, covers, is_overlapping
from ..text.source import Span

Kind = Literal["wait", "arrive", "copy", "join", "pass", "named arrive", "take", "point"]
NOW = -1  # the engine of an access that the worker makes itself


@dataclass(frozen=True, slots=True)
class Touch:
    """An access to a region: by the worker at once, or by an engine until a wait for the engine is over."""

    region: int
    mode: str  # read, write, add
    proxy: str  # generic, async
    engine: int  # NOW, or which of the worker's engines
    span: Span
    text: str
    operation: str  # "the load"
    awaited: str  # the wait that completes the access, for reports
    point: bool  # made by the point itself, not after it
    array: str = ""  # of shared memory


@dataclass(frozen=True, slots=True)
class Fence:
    """A fence: earlier ordinary writes of the worker become visible to the async proxy.

    tensors: those to tensors too, not only to shared memory.
    """

    tensors: bool = False


@dataclass(frozen=True, slots=True)
class Retire:
    """A wait of the worker until the work of these engines is complete."""

    engines: tuple[int, ...]


Local = Touch | Fence | Retire


@dataclass(frozen=True, slots=True)
class Landing:
    """The landing of a bulk copy in one CTA, or the late arrival of an engine: a separate agent with one step."""

    number: int
    name: str
    worker: int
    engines: tuple[int, ...]  # of that worker, whose work is over then
    bar: int
    nbytes: int
    span: Span
    arrivals: int = 0  # at the barrier


@dataclass(slots=True)
class Step:
    """A point of a worker, and its local effects after it."""

    kind: Kind
    span: Span
    bars: tuple[int, ...] = ()
    value: int = 0  # the parity waited for, or the bytes expected
    landings: tuple[Landing, ...] = ()
    locals: list[Local] = field(default_factory=list)


@dataclass(slots=True)
class Trace:
    """The steps of one worker, from its start to its end."""

    label: str
    takes: bool  # whether it takes units of work
    warps: int
    lead: list[Local] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    cta: int = 0  # of its cluster

    def without(self, kind: Kind) -> Trace:
        """Return the trace without steps of a kind; their local effects move to the step before."""
        trace = Trace(self.label, self.takes, self.warps, list(self.lead), cta=self.cta)
        for step in self.steps:
            if step.kind != kind:
                trace.steps.append(replace(step, locals=list(step.locals)))
            else:
                for effect in step.locals:
                    trace.add_local(effect)
        return trace

    def add_local(self, effect: Local) -> None:
        """Append a local effect after the last step."""
        (self.steps[-1].locals if self.steps else self.lead).append(effect)


@dataclass(frozen=True, slots=True)
class Bar:
    """A barrier of one CTA."""

    text: str
    count: int
    warps: int  # of a named barrier: warps of the arrivals that complete a phase
    span: Span | None
    named: bool


@dataclass(frozen=True, slots=True)
class Region:
    """Bytes of a CTA's shared memory (`space` is the CTA), or elements of a tensor (`space` is its name)."""

    space: int | str
    intervals: Intervals


@dataclass(slots=True)
class Skeleton:
    """One cluster of a launch."""

    cluster: int
    clusters: int  # of the launch
    units: tuple[int, ...] | None  # units of work of the cluster, if they are handed out dynamically
    lockstep: bool  # whether units of work can be handed out in lockstep
    workers: list[Trace] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    landings: list[Landing] = field(default_factory=list)
    regions: list[Region] = field(default_factory=list)
    # regions that overlap each, and whether it covers them
    near: list[list[tuple[int, bool]]] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)  # of each region of shared memory, a bit for some of them
    aliases: dict[str, tuple[str, ...]] = field(default_factory=dict)  # arrays over the same bytes as another
    handed: frozenset[str] = frozenset()  # tensors in which barriers order the CTAs of a cluster, too

    def at_once(self) -> Skeleton:
        """Return the cluster with all units of work handed out at the start, so that taking a unit is no step."""
        return replace(self, workers=[w.without("take") for w in self.workers])

    @property
    def size(self) -> int:
        """Number of steps of a complete run."""
        return sum(len(w.steps) for w in self.workers) + len(self.landings)

    def connect(self) -> None:
        """Compute the regions that overlap, and the bytes of each."""
        spaces: dict[int | str, list[int]] = {}
        for number, region in enumerate(self.regions):
            spaces.setdefault(region.space, []).append(number)
        self.near = [
            [
                (o, covers(r.intervals, self.regions[o].intervals))
                for o in spaces[r.space]
                if is_overlapping(r.intervals, self.regions[o].intervals)
            ]
            for r in self.regions
        ]
        unit = math.gcd(*(x for r in self.regions if isinstance(r.space, int) for pair in r.intervals for x in pair)) or 1
        self.bytes = [
            sum((1 << (hi - lo) // unit) - 1 << lo // unit for lo, hi in r.intervals) if isinstance(r.space, int) else 0
            for r in self.regions
        ]
