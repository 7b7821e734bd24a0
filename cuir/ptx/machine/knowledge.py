"""What threads know to have happened before: happens-before order among all threads of a launch.

An event is (thread, tick): each access of a launch has a tick, and a thread's number counts through the whole grid. Most
knowledge comes from barriers of a whole CTA and of a whole warp, so each thread has a tick up to which it knows its CTA,
and one for its warp. What it learns otherwise is in a clock with an entry for each thread, shared between those who
learned the same.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from .groups import list_distinct

Array = np.ndarray
Event = tuple[int, int]  # a thread, and its tick
ALWAYS = 1 << 59  # beyond all ticks: a thread knows what it did itself


def are_among(numbers: Array, others: Array) -> Array:
    """Return which numbers are among others, which increase."""
    low, high = others[0], others[-1]
    if high - low < len(others):  # they follow one another; they may repeat
        return (low <= numbers) & (numbers <= high)
    return np.isin(numbers, others)


class Clock:
    """Clock with the last tick of each thread that is known; an order of `sync.orders`."""

    def __init__(self, times: Array):
        self.times, self.joined = times, times

    def copy(self) -> Clock:
        return Clock(self.times.copy())

    def is_before(self, event: Event) -> bool:
        return bool(self.times[event[0]] >= event[1])

    is_fenced = is_over = is_before

    def learn(self, event: Event) -> None:
        self.times[event[0]] = max(self.times[event[0]], event[1])

    def join(self, source: Clock) -> None:
        if self.joined is not source.times:  # lanes of a warp bring the same, one after another
            np.maximum(self.times, source.times, out=self.times)
            self.joined = source.times

    def join_progress(self, source: Clock) -> None:
        """Add nothing: events are over when they are known."""


class Knowledge:
    """What the threads of the CTAs that run together know.

    Attributes:
        first: Number of the first of these threads in the grid.
        width: Threads of a CTA, rounded up to whole warps.
        total: Threads of the grid.
        engines: Entries of a clock behind the threads, for mbarriers: the ticks at which bytes landed on them.
        size: Entries of a clock. The last is for the launch before, if this one may begin before its end.
    """

    def __init__(self, first: int, count: int, width: int, total: int, engines: int = 0, has_earlier: bool = False):
        self.first, self.width, self.total, self.engines = first, width, total, engines
        self.has_earlier, self.size = has_earlier, total + engines + has_earlier
        self.cta = np.zeros(count, np.int64)
        self.warp = np.zeros(count, np.int64)
        self.extra: list[Array | None] = [None] * count
        self.has_extra = False
        self.threads: Array | None = None  # of a copy: whose knowledge it is
        self.waited: set[tuple[int, int, int]] = set()  # threads that know a product of a warpgroup, by its first thread, to be over
        self.products: dict[int, list[tuple[int, int]]] = {}  # by warpgroup: when products started, and when they were waited for

    def is_known(self, slot: int, event: Event) -> bool:
        """Return whether a thread (by its slot) knows an event of another one."""
        thread, tick = event
        own = int(self.threads[slot]) if self.threads is not None else slot + self.first
        in_warp = thread // 32 == own // 32 and tick <= self.warp[slot]
        if in_warp or (thread // self.width == own // self.width and tick <= self.cta[slot]):
            return True
        clock = self.extra[slot]
        return clock is not None and bool(tick <= clock[thread])

    def find_known(self, slot: int, threads: Array) -> Array:
        """Return the last tick of each of some threads that a thread, by its slot, knows."""
        own = slot + self.first
        clock = self.extra[slot]
        known = np.zeros(len(threads), np.int64) if clock is None else clock[threads]
        known = np.where(threads // self.width == own // self.width, np.maximum(known, self.cta[slot]), known)
        known = np.where(threads >> 5 == own >> 5, np.maximum(known, self.warp[slot]), known)
        return np.where(threads == own, ALWAYS, known)

    def note_product(self, warpgroup: int, started: int, over: int) -> None:
        """Note that threads have waited for a product of their warpgroup, which started when all of them had come to it."""
        self.products.setdefault(warpgroup, []).append((started, over))

    def is_read_over(self, slot: int, event: Event) -> bool:
        """Return whether a thread, by its slot, knows a read to be over: by a product that the reader's warpgroup started behind it."""
        thread, tick = event
        cta, local = divmod(thread - self.first, self.width)
        products = self.products.get(cta * (self.width // 128 + 1) + local // 128, [])
        behind = bisect_right(products, (tick, self.total))
        if behind == len(products):
            return False
        over = products[behind][1]
        first = thread - local % 128
        key = slot, first, over
        if key not in self.waited:
            if not first <= slot + self.first < first + 128 and not (self.find_known(slot, np.arange(first, first + 128)) >= over).any():
                return False
            self.waited.add(key)
        return True

    def find_unlearned(self, slots: Array, threads: Array, ticks: Array) -> Array:
        """Return the numbers of the events that threads, by their slots, have not learned by a clock."""
        left = np.arange(len(slots))
        if not self.has_extra:
            return left
        unknown = np.ones(len(slots), np.bool_)
        own, inverse = np.unique(slots, return_inverse=True)
        clocks = [self.extra[s] for s in own.tolist()]
        shared = {id(c): c for c in clocks if c is not None}  # most threads have learned the same
        for clock in shared.values():
            mine = (
                slice(None) if len(shared) == 1 and all(c is not None for c in clocks) else np.array([c is clock for c in clocks])[inverse]
            )
            unknown[mine] = ticks[mine] > clock[threads[mine]]
        return left[unknown]

    def are_over(self, slots: Array, threads: Array, tick: int) -> Array:
        """Return which threads, by their slots, know a tick of at least one of some threads of a CTA."""
        own = slots + self.first
        over = (own // self.width == threads[0] // self.width) & (tick <= self.cta[slots])
        if not over.all():
            over |= are_among(own, threads) | (are_among(own >> 5, threads >> 5) & (tick <= self.warp[slots]))
        if self.has_extra and not over.all():
            knows: dict[int, bool] = {}  # by clock: most threads have learned the same
            for i in np.flatnonzero(~over).tolist():
                clock = self.extra[int(slots[i])]
                if clock is not None:
                    if id(clock) not in knows:
                        knows[id(clock)] = bool((clock[threads] >= tick).any())
                    over[i] = knows[id(clock)]
        return over

    def copy_of(self, slots: Array) -> Knowledge:
        """Return what some threads know now; they are the slots of the copy."""
        copy = Knowledge(self.first, 0, self.width, self.total, self.engines, self.has_earlier)
        copy.cta, copy.warp, copy.threads = self.cta[slots], self.warp[slots], slots + self.first
        copy.extra, copy.has_extra = [self.extra[s] for s in slots.tolist()], self.has_extra
        return copy

    def take_snapshot(self, slots: Array, tick: int | Array) -> Array:
        """Return the clock of all that these threads know together; tick: up to which they release their own accesses."""
        times = np.zeros(self.size, np.int64)
        for cta in list_distinct(slots // self.width):
            mine = slots[slots // self.width == cta]
            start = self.first + cta * self.width
            times[start : start + self.width] = self.cta[mine].max()
        warps = slots >> 5
        for warp in list_distinct(warps):
            start = self.first + warp * 32
            part = times[start : start + 32]
            np.maximum(part, self.warp[slots[warps == warp]].max(), out=part)
        if self.has_extra:
            for clock in {id(c): c for s in slots.tolist() if (c := self.extra[s]) is not None}.values():
                np.maximum(times, clock, out=times)
        own = slots + self.first
        times[own] = np.maximum(times[own], tick)
        return times

    def learn(self, slots: Array, clock: Array) -> None:
        """Let threads know what a clock holds."""
        self.has_extra = True
        joined: dict[int, Array] = {}
        for s in slots.tolist():
            old = self.extra[s]
            if old is None:
                self.extra[s] = clock
            elif old is not clock:
                if id(old) not in joined:
                    joined[id(old)] = np.maximum(old, clock)
                    joined[id(joined[id(old)])] = joined[id(old)]
                self.extra[s] = joined[id(old)]

    def learn_earlier(self, slots: Array, tick: int) -> None:
        """Let threads know that the launch before is over."""
        if self.has_earlier:
            clock = np.zeros(self.size, np.int64)
            clock[-1] = tick
            self.learn(slots, clock)

    def meet_in_cta(self, slots: Array, tick: int) -> None:
        """Let all threads of CTAs know one another up to a tick."""
        if self.has_extra:
            for cta in list_distinct(slots // self.width):
                self._share(slots[slots // self.width == cta])
        self.cta[slots] = tick

    def meet_in_warp(self, slots: Array, tick: int) -> None:
        """Let all threads of warps know one another up to a tick."""
        for warp in list_distinct(slots >> 5):
            mine = slots[slots >> 5 == warp]
            if self.has_extra:
                self._share(mine)
            self.cta[mine] = self.cta[mine].max()
        self.warp[slots] = tick

    def _share(self, slots: Array) -> None:
        """Join the clocks of threads."""
        clocks = list({id(c): c for s in slots.tolist() if (c := self.extra[s]) is not None}.values())
        if not clocks:
            return
        joined = clocks[0] if len(clocks) == 1 else np.maximum.reduce(clocks)
        for s in slots.tolist():
            self.extra[s] = joined
