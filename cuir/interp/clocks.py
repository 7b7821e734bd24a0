"""Vector clocks: what a worker knows to have happened. Owns no rule of a barrier or an access.

A clock is a list of integers: an entry for each worker of the cluster (its epoch, which advances at each release) and for each mbarrier (its last
phase known complete, -1 at first). Two run beside each other: what is known, and what is known *and* fenced for the async proxy.
"""

from __future__ import annotations

from .state import State

Event = tuple[int, int]  # an entry and its value: a worker's epoch, or a phase of an mbarrier


def join(into: list[int], other: list[int]) -> None:
    """Entry by entry the later of the two."""
    for i, x in enumerate(other):
        if x > into[i]:
            into[i] = x


class Clock(State):
    """`known`: accesses and phases that happened before; `fenced`: those whose ordinary writes the tensor core and copy engine see too.

    `progress`: what is over, known or not: a copy that lands tells it as well, since its worker had come to its issue. It orders no access.
    """

    def __init__(self, workers: int, barriers: int):
        self.known = [0] * workers + [-1] * barriers
        self.fenced = [0] * workers + [-1] * barriers
        self.progress = [0] * workers + [-1] * barriers

    def copy(self) -> Clock:
        other = Clock.__new__(Clock)
        other.known, other.fenced, other.progress = self.known.copy(), self.fenced.copy(), self.progress.copy()
        return other

    def join(self, other: Clock) -> None:
        join(self.known, other.known)
        join(self.fenced, other.fenced)
        join(self.progress, other.progress)

    def join_progress(self, other: Clock) -> None:
        """Learn only what is over."""
        join(self.progress, other.progress)

    def has(self, event: Event) -> bool:
        """Is the event (entry, value) known?"""
        return self.known[event[0]] >= event[1]

    def has_fenced(self, event: Event) -> bool:
        return self.fenced[event[0]] >= event[1]
