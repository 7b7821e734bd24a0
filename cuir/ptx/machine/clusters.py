"""Clusters: addresses in the shared memory of another CTA, the barrier of a cluster, and the ends of its CTAs.

A CTA's shared memory is gone when the CTA ends, so each access of another one must be ordered before that. `mapa` puts the
rank of a CTA, plus one, into the upper bits of an address; without them it lies in the CTA of the thread.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .barrier_phases import Waiting
from .findings import describe_cta, describe_engine, describe_thread, make_span
from .groups import Group, list_distinct
from .operands import Array
from .program import CTA_STEP, SHARED_BASE


class Clusters:
    """The clusters of a machine.

    Attributes:
        size: CTAs of a cluster.
        arrivals, waits: How often each thread has arrived at the barrier of its cluster, and gone on behind it.
        over: Phases of each cluster's barrier that have ended.
        clocks: What the arrivals of a phase knew, by cluster and phase.
        accessed: By CTA, the tick of the last access of each thread of another CTA to its shared memory.
        init_fences: When each thread last ordered what it initialised (fence.mbarrier_init).
    """

    def __init__(self, machine: Any):  # the Machine, whose module imports this one
        self.machine = machine
        self.size = int(np.prod(machine.launch.cluster))
        self.arrivals, self.waits, self.init_fences = (np.zeros(machine.count, np.int64) for _ in range(3))
        self.over: dict[int, int] = {}
        self.clocks: dict[tuple[int, int], Array] = {}
        self.waiting: list[Waiting] = []
        self.accessed: dict[int, dict[int, int]] = {}

    # ---- shared memory of other CTAs
    def find_owners(self, g: Group, offsets: Array, place: int) -> tuple[Array, Array]:
        """Return offsets in shared memory without ranks, and the CTAs, counted among those of the machine, that they lie in.

        Raises CuirError for a CTA that there is not, or that has ended. Accesses to other CTAs are noted for their ends.
        """
        m = self.machine
        addresses = offsets + SHARED_BASE
        ranks = addresses // CTA_STEP - 1
        owners = np.where(ranks < 0, g.ctas, g.ctas // self.size * self.size + ranks)
        if int(ranks.max()) >= self.size:
            lane = int(ranks.argmax())
            who = describe_thread(m, int(g.slots[lane]) + m.knowledge.first)
            raise m.findings.stop(
                "M409", f"{who} accesses CTA {int(ranks[lane])} of its cluster, which has {self.size}", make_span(m, place)
            )
        for lane in np.flatnonzero(owners != g.ctas).tolist() if m.launch.detect else ():
            self.note_access(int(owners[lane]), int(g.slots[lane]), place)
        return addresses % CTA_STEP - SHARED_BASE, owners

    def note_access(self, owner: int, slot: int, place: int) -> None:
        """Note an access to the shared memory of a CTA by a thread of another one: it has the next tick."""
        m = self.machine
        self.check_landing(owner, slot, place)
        if describe_engine(m, place)[0]:
            return  # what an engine does is over when it lands
        self.accessed.setdefault(owner, {})[slot] = m.tick + 1

    def check_landing(self, owner: int, slot: int, place: int) -> None:
        """Report what lands in the shared memory of a CTA that has ended."""
        m = self.machine
        if self.size > 1 and not m.alive[owner * m.width : (owner + 1) * m.width].any():
            self._report_end(owner, slot, place)

    def end_ctas(self, slots: Array) -> None:
        """Check, for CTAs whose last threads have ended, that they know all accesses of others."""
        m = self.machine
        for cta in list_distinct(slots // m.width):
            own = np.arange(cta * m.width, (cta + 1) * m.width)
            if m.alive[own].any() or cta not in self.accessed:
                continue
            known = m.knowledge.take_snapshot(own, m.tick)
            for slot, tick in self.accessed.pop(cta).items():
                if known[slot + m.knowledge.first] < tick:
                    self._report_end(cta, slot, m.places[tick])

    def _report_end(self, cta: int, slot: int, place: int) -> None:
        """Report a CTA that may end before an access to its shared memory."""
        m = self.machine
        if not m.launch.detect:
            return
        who, ended = describe_thread(m, slot + m.knowledge.first), describe_cta(m, cta + m.ctas.start)
        m.findings.add(
            "R401",
            f"{ended} may end before {who} accesses its shared memory",
            make_span(m, place),
            "the CTA must wait for that access before it ends: at the barrier of the cluster, or for an arrival",
        )

    # ---- the barrier
    def arrive(self, slots: Array, releases: bool, place: int) -> None:
        """Let threads arrive; what they knew is published, without `.release` only what a fence has ordered."""
        m = self.machine
        if (self.arrivals[slots] != self.waits[slots]).any():
            who = describe_thread(m, int(slots[np.flatnonzero(self.arrivals[slots] != self.waits[slots])[0]]) + m.knowledge.first)
            raise m.findings.stop(
                "S406", f"{who} arrives twice at the barrier of its cluster", make_span(m, place), "barrier.cluster.wait comes between"
            )
        tick = m.next_tick(place)
        clusters = slots // m.width // self.size
        for cluster in list_distinct(clusters):
            mine = slots[clusters == cluster]
            key = cluster, self.over.get(cluster, 0)
            clock = m.knowledge.take_snapshot(mine, tick) if releases else self._collect_fenced(mine)
            self.clocks[key] = np.maximum(self.clocks[key], clock) if key in self.clocks else clock
        self.arrivals[slots] += 1
        self.settle()

    def _collect_fenced(self, slots: Array) -> Array:
        """Return the clock of what fences of threads have ordered."""
        m = self.machine
        clock = np.zeros(m.knowledge.size, np.int64)
        for slot in slots[m.fences[slots] > 0].tolist():
            np.maximum(clock, m.knowledge.take_snapshot(np.array([slot]), int(m.fences[slot])), out=clock)
        own = slots + m.knowledge.first
        clock[own] = np.maximum(clock[own], self.init_fences[slots])
        return clock

    def wait(self, slots: Array, following: int, block: int, place: int) -> None:
        """Let threads wait until all of their cluster have arrived; `settle` lets them go on."""
        m = self.machine
        if (self.arrivals[slots] == self.waits[slots]).any():
            who = describe_thread(m, int(slots[np.flatnonzero(self.arrivals[slots] == self.waits[slots])[0]]) + m.knowledge.first)
            raise m.findings.stop("S406", f"{who} waits at the barrier of its cluster and has not arrived there", make_span(m, place))
        self.waiting.append(Waiting(slots, following, block))

    def settle(self) -> None:
        """End the phases that are complete, and let who waited for them go on."""
        m = self.machine
        step = m.width * self.size
        for cluster in {c for c, _ in self.clocks}:
            part = slice(cluster * step, (cluster + 1) * step)
            alive = self.arrivals[part][m.alive[part]]
            if len(alive) and int(alive.min()) > self.over.get(cluster, 0):
                self.over[cluster] = self.over.get(cluster, 0) + 1
                self.clocks.pop((cluster, self.over[cluster] - 2), None)
        left, self.waiting = self.waiting, []
        for w in left:
            clusters = w.slots // step
            over = np.array([self.over.get(c, 0) for c in clusters.tolist()])
            ready = self.arrivals[w.slots] <= over
            if not ready.all():
                self.waiting.append(Waiting(w.slots[~ready], w.following, w.block))
            for cluster in np.unique(clusters[ready]).tolist():
                mine = w.slots[ready & (clusters == cluster)]
                m.knowledge.learn(mine, self.clocks[cluster, int(self.arrivals[mine[0]]) - 1])
                self.waits[mine] += 1
                m.place(w.following, mine)
