"""Vector clocks: the accesses and phases that a worker knows to have happened before.

A clock is a list of integers: an entry for each worker of the cluster (its epoch, which advances at each release) and
for each mbarrier (its last phase known complete, -1 at first). Two run in parallel: what is known, and what is known
*and* fenced for the async proxy.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from .state import State

Event = tuple[int, int]  # an entry and its value: a worker's epoch, or a phase of an mbarrier


class Clock(State):
    """Vector clocks of one worker or barrier.

    Attributes:
        times: Accesses and phases that happened before.
        fenced: Those of `times` whose generic-proxy writes the tensor core and copy engine see too.
        progress: Accesses and phases that are complete, known or not. A copy that lands raises it as well, since its
            worker had come to its issue. It orders no access.
    """

    def __init__(self, workers: int, barriers: int):
        self.times = [0] * workers + [-1] * barriers
        self.fenced = [0] * workers + [-1] * barriers
        self.progress = [0] * workers + [-1] * barriers

    def copy(self) -> Clock:
        duplicate = Clock.__new__(Clock)
        duplicate.times, duplicate.fenced, duplicate.progress = self.times.copy(), self.fenced.copy(), self.progress.copy()
        return duplicate

    def join(self, source: Clock) -> None:
        """Raise each entry to the maximum of both clocks."""
        for into, known in ((self.times, source.times), (self.fenced, source.fenced), (self.progress, source.progress)):
            for i, x in enumerate(known):
                if x > into[i]:
                    into[i] = x

    def join_progress(self, source: Clock) -> None:
        """Join only the clock of complete accesses and phases, without happens-before."""
        for i, x in enumerate(source.progress):
            if x > self.progress[i]:
                self.progress[i] = x

    def without_own(self, worker: int) -> Clock:
        """Return what a worker has learned from others: its own accesses are over, and ordered by nothing."""
        duplicate = self.copy()
        duplicate.times[worker] = duplicate.fenced[worker] = 0
        return duplicate

    def is_before(self, event: Event) -> bool:
        """Return True if the event (entry, value) happened before."""
        return self.times[event[0]] >= event[1]

    def is_fenced(self, event: Event) -> bool:
        return self.fenced[event[0]] >= event[1]

    def is_over(self, event: Event) -> bool:
        return self.progress[event[0]] >= event[1]

    def learn(self, event: Event) -> None:
        entry, value = event
        self.times[entry] = self.fenced[entry] = self.progress[entry] = value


class WorkerClock(Clock):
    """The clock of a worker, whose current epoch no other clock holds yet.

    Attributes:
        entry: The worker's entry, which is its number.
        tensor_fences: Its epochs that ended with a fence for tensors too.
    """

    def __init__(self, entry: int, workers: int, barriers: int):
        super().__init__(workers, barriers)
        self.entry = entry
        self.tensor_fences: list[int] = []
        self.start_epoch()  # epoch 0 is known to all: nothing happens in it

    def event(self) -> Event:
        """Return the current epoch as an event; other workers learn of it through the next release."""
        return self.entry, self.times[self.entry]

    def start_epoch(self) -> None:
        """Start a new epoch: accesses from here on are not released to anyone yet."""
        self.times[self.entry] += 1
        self.progress[self.entry] = self.times[self.entry]

    def fence(self, tensors: bool) -> None:
        """Execute a proxy fence: asynchronous engines see the worker's earlier stores to shared memory.

        tensors: they see its stores to tensors in device memory, too.
        """
        now = self.times[self.entry]
        self.fenced[self.entry] = now
        if tensors:
            self.tensor_fences.append(now)
        self.start_epoch()


class TensorClock:
    """Order of a clock for accesses to tensors: only fences for tensors count."""

    def __init__(self, known: Clock, workers: Sequence[WorkerClock]):
        self.known, self.workers = known, workers
        self.is_before, self.is_over = known.is_before, known.is_over

    def is_fenced(self, event: Event) -> bool:
        """Return True if the clock knows of a tensor fence that the event's worker passed after it."""
        entry, epoch = event
        fences = self.workers[entry].tensor_fences
        n = bisect.bisect_left(fences, epoch)
        return n < len(fences) and self.known.times[entry] > fences[n]
