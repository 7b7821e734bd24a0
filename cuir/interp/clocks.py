"""Vector clocks: the accesses and phases that a worker knows to have happened before.

A clock is a list of integers: an entry for each worker of the cluster (its epoch, which advances at each release) and
for each mbarrier (its last phase known complete, -1 at first). Two run in parallel: what is known, and what is known
*and* fenced for the async proxy.
"""

from __future__ import annotations

from .state import State

Event = tuple[int, int]  # an entry and its value: a worker's epoch, or a phase of an mbarrier


def join(into: list[int], source: list[int]) -> None:
    """Raise each entry of `into` to the maximum of both clocks, in place."""
    for i, x in enumerate(source):
        if x > into[i]:
            into[i] = x


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
        join(self.times, source.times)
        join(self.fenced, source.fenced)
        join(self.progress, source.progress)

    def join_progress(self, source: Clock) -> None:
        """Join only the clock of complete accesses and phases, without happens-before."""
        join(self.progress, source.progress)

    def has(self, event: Event) -> bool:
        """Return True if the event (entry, value) happened before."""
        return self.times[event[0]] >= event[1]

    def has_fenced(self, event: Event) -> bool:
        return self.fenced[event[0]] >= event[1]
