"""Orders as sets of events: an integer with a bit for each event that happened before."""

from __future__ import annotations

from collections.abc import Sequence


class BitOrder:
    """Events that a worker or a barrier knows.

    Attributes:
        happened: Events that happened before.
        fenced: Those of them whose ordinary writes the async proxy sees.
        progress: Events that are over besides, without an order of accesses.
    """

    __slots__ = ("fenced", "happened", "progress")

    def __init__(self, happened: int = 0, fenced: int = 0, progress: int = 0):
        self.happened, self.fenced, self.progress = happened, fenced, progress

    def copy(self) -> BitOrder:
        return BitOrder(self.happened, self.fenced, self.progress)

    def is_before(self, event: int) -> bool:
        return bool(self.happened & event)

    def is_fenced(self, event: int) -> bool:
        return bool(self.fenced & event)

    def is_over(self, event: int) -> bool:
        return bool((self.happened | self.progress) & event)

    def learn(self, event: int) -> None:
        """Add events, given as bits."""
        self.happened |= event

    def join(self, source: BitOrder) -> None:
        self.happened |= source.happened
        self.fenced |= source.fenced
        self.progress |= source.progress

    def join_progress(self, source: BitOrder) -> None:
        self.progress |= source.happened | source.progress


class WorkerBits(BitOrder):
    """The order of a worker, and its events.

    Attributes:
        event: The current event, which no release has covered yet.
        own: All events of the worker, and of its engines that it has waited for.
        tensor_fences: The event behind each fence for tensors, and what it covers.
    """

    __slots__ = ("event", "own", "tensor_fences")

    def __init__(self, event: int):
        super().__init__(event)
        self.event = self.own = event
        self.tensor_fences: list[tuple[int, int]] = []

    def begin_event(self, event: int) -> None:
        self.event = event
        self.own |= event
        self.happened |= event

    def without_own(self) -> BitOrder:
        """Return what the worker has learned from others: its own accesses are over, and ordered by nothing."""
        return BitOrder(self.happened & ~self.own, self.fenced & ~self.own, self.progress | self.own)

    def retire(self, event: int) -> None:
        """Wait for an engine, which completes at an event."""
        self.happened |= event
        self.own |= event

    def fence(self, tensors: bool, event: int) -> None:
        """Execute a proxy fence, after which an event begins; tensors: for writes to tensors, too."""
        covers = self.own
        self.fenced |= covers
        self.begin_event(event)
        if tensors:
            self.tensor_fences.append((event, covers))


class TensorBits(BitOrder):
    """Order of a worker for accesses to tensors: only fences for tensors count."""

    __slots__ = ("workers",)

    def __init__(self, known: BitOrder, workers: Sequence[WorkerBits]):
        super().__init__(known.happened, 0, known.progress)
        self.workers = workers

    def is_fenced(self, event: int) -> bool:
        return any(covers & event and begun & self.happened for w in self.workers for begun, covers in w.tensor_fences)
