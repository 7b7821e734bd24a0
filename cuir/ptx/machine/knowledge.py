"""What threads know to have happened before: happens-before order among all threads of a launch.

An event is (thread, tick): each access of a launch has a tick, and a thread's number counts through the whole grid. Most
knowledge comes from barriers of a whole CTA and of a whole warp, so each thread has a tick up to which it knows its CTA,
and one for its warp. What it learns otherwise is in a clock with an entry for each thread, shared between those who
learned the same.
"""

from __future__ import annotations

import functools
from bisect import bisect_right

import numpy as np

from .groups import list_distinct

Array = np.ndarray
Event = tuple[int, int]  # a thread, and its tick
ALWAYS = 1 << 59  # beyond all ticks: a thread knows what it did itself
MOST_CLOCKS = 256  # then those that no thread has are dropped


def are_among(numbers: Array, others: Array) -> Array:
    """Return which numbers are among others, which increase."""
    if not len(others):
        return np.zeros(len(numbers), np.bool_)
    low, high = others[0], others[-1]
    if high - low < len(others):  # they follow one another; they may repeat
        return (low <= numbers) & (numbers <= high)
    return np.isin(numbers, others)


def list_values(numbers: Array) -> list[int]:
    """Return the distinct values of numbers, most of which are the same."""
    if len(numbers) and (numbers == numbers[0]).all():
        return [int(numbers[0])]
    return np.unique(numbers).tolist()


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
        clocks: Clocks that threads have; none is changed. The first stands for none.
        clock_of: Number of each thread's clock.
    """

    def __init__(self, first: int, count: int, width: int, total: int, engines: int = 0, has_earlier: bool = False):
        self.first, self.width, self.total, self.engines = first, width, total, engines
        self.has_earlier, self.size = has_earlier, total + engines + has_earlier
        self.cta = np.zeros(count, np.int64)
        self.warp = np.zeros(count, np.int64)
        self.clocks: list[Array] = [np.zeros(0, np.int64)]
        self.clock_of = np.zeros(count, np.int64)
        self.most = MOST_CLOCKS
        self.numbers: dict[int, int] = {}  # of clocks, by their identity
        self.joins: dict[tuple[int, int], int] = {}
        self.threads: Array | None = None  # of a copy: whose knowledge it is
        self.products: dict[int, list[tuple[int, int]]] = {}  # by warpgroup: when products started, and when they were waited for

    def is_known(self, slot: int, event: Event) -> bool:
        """Return whether a thread (by its slot) knows an event of another one."""
        thread, tick = event
        own = int(self.threads[slot]) if self.threads is not None else slot + self.first
        in_warp = thread // 32 == own // 32 and tick <= self.warp[slot]
        if in_warp or (thread // self.width == own // self.width and tick <= self.cta[slot]):
            return True
        number = self.clock_of[slot]
        return bool(number) and bool(tick <= self.clocks[number][thread])

    def find_known(self, slot: int, threads: Array) -> Array:
        """Return the last tick of each of some threads that a thread, by its slot, knows."""
        own = slot + self.first
        number = self.clock_of[slot]
        known = self.clocks[number][threads] if number else np.zeros(len(threads), np.int64)
        known = np.where(threads // self.width == own // self.width, np.maximum(known, self.cta[slot]), known)
        known = np.where(threads >> 5 == own >> 5, np.maximum(known, self.warp[slot]), known)
        return np.where(threads == own, ALWAYS, known)

    def note_product(self, warpgroup: int, started: int, over: int) -> None:
        """Note that threads have waited for a product of their warpgroup, which started when all of them had come to it."""
        self.products.setdefault(warpgroup, []).append((started, over))

    def find_unfinished(self, slots: Array, threads: Array, ticks: Array) -> Array:
        """Return the numbers of reads by threads that others, by their slots, do not know to be over.

        They do by a product that the reader's warpgroup started behind its read.
        """
        open_ = np.ones(len(slots), np.bool_)
        ctas, locals_ = (threads - self.first) // self.width, (threads - self.first) % self.width
        groups = ctas * (self.width // 128 + 1) + locals_ // 128
        starts = threads - locals_ % 128
        for group in list_values(groups) if self.products else ():
            products = self.products.get(group, [])
            mine = groups == group
            for tick in list_values(ticks[mine]):
                behind = bisect_right(products, (tick, self.total))
                if behind < len(products):
                    chosen = np.flatnonzero(mine & (ticks == tick))
                    first, over = int(starts[chosen[0]]), products[behind][1]
                    own = slots[chosen] + self.first
                    known = (first <= own) & (own < first + 128)
                    if not known.all():
                        known |= self.are_over(slots[chosen], np.arange(first, first + 128), over)
                    open_[chosen[known]] = False
        return np.flatnonzero(open_)

    def find_unlearned(self, slots: Array, threads: Array, ticks: Array) -> Array:
        """Return the numbers of the events that threads, by their slots, have not learned by a clock."""
        numbers = self.clock_of[slots]
        unknown = np.ones(len(slots), np.bool_)
        found = list_values(numbers)
        for number in found:
            if number:
                mine = slice(None) if len(found) == 1 else numbers == number
                unknown[mine] = ticks[mine] > self.clocks[number][threads[mine]]
        return np.flatnonzero(unknown)

    def are_over(self, slots: Array, threads: Array, tick: int) -> Array:
        """Return which threads, by their slots, know a tick of at least one of some threads of a CTA."""
        own = slots + self.first
        over = (own // self.width == threads[0] // self.width) & (tick <= self.cta[slots])
        if not over.all():
            over |= are_among(own, threads) | (are_among(own >> 5, threads >> 5) & (tick <= self.warp[slots]))
        if len(self.clocks) > 1 and not over.all():
            numbers = self.clock_of[slots]
            for number in list_values(numbers):
                if number and (self.clocks[number][threads] >= tick).any():
                    over |= numbers == number
        return over

    def copy_of(self, slots: Array) -> Knowledge:
        """Return what some threads know now; they are the slots of the copy."""
        copy = Knowledge(self.first, 0, self.width, self.total, self.engines, self.has_earlier)
        copy.cta, copy.warp, copy.threads = self.cta[slots], self.warp[slots], slots + self.first
        copy.clocks, copy.clock_of = self.clocks, self.clock_of[slots]
        copy._drop_clocks()
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
        for number in list_values(self.clock_of[slots]) if len(self.clocks) > 1 else ():
            if number:
                np.maximum(times, self.clocks[number], out=times)
        own = slots + self.first
        times[own] = np.maximum(times[own], tick)
        return times

    def learn(self, slots: Array, clock: Array) -> None:
        """Let threads know what a clock holds."""
        new = self._enter(clock)
        numbers = self.clock_of[slots]
        for old in list_values(numbers):
            if old != new:
                mine = slots if len(slots) == 1 else slots[numbers == old]
                self.clock_of[mine] = self._join(old, new) if old else new

    def _enter(self, clock: Array) -> int:
        """Return the number of a clock."""
        number = self.numbers.get(id(clock))
        if number is None:
            if len(self.clocks) > self.most:
                self._drop_clocks()
                self.most = max(MOST_CLOCKS, 2 * len(self.clocks))
            number = self.numbers[id(clock)] = len(self.clocks)
            self.clocks.append(clock)
        return number

    def _drop_clocks(self) -> None:
        """Drop the clocks that no thread has."""
        used, self.clock_of = np.unique(np.append(0, self.clock_of), return_inverse=True)
        self.clock_of = self.clock_of[1:]
        self.clocks = [self.clocks[n] for n in used.tolist()]
        self.numbers = {id(c): n for n, c in enumerate(self.clocks)}
        self.joins = {}

    def _join(self, old: int, new: int) -> int:
        """Return the number of the clock of what two clocks hold together."""
        found = self.joins.get((old, new))
        if found is None:
            one, other = self.clocks[old], self.clocks[new]
            joined = np.maximum(one, other)
            if (joined == one).all():
                found = old
            elif (joined == other).all():
                found = new
            else:
                found = self.numbers[id(joined)] = len(self.clocks)
                self.clocks.append(joined)
            self.joins[old, new] = found
        return found

    def list_clocks(self) -> list[Array]:
        """Return the clocks that threads have."""
        return [self.clocks[n] for n in np.unique(self.clock_of).tolist() if n]

    def learn_earlier(self, slots: Array, tick: int) -> None:
        """Let threads know that the launch before is over."""
        if self.has_earlier:
            clock = np.zeros(self.size, np.int64)
            clock[-1] = tick
            self.learn(slots, clock)

    def meet_in_cta(self, slots: Array, tick: int) -> None:
        """Let all threads of CTAs know one another up to a tick."""
        if len(self.clocks) > 1:
            for cta in list_distinct(slots // self.width):
                self._share(slots[slots // self.width == cta])
        self.cta[slots] = tick

    def meet_in_warp(self, slots: Array, tick: int) -> None:
        """Let all threads of warps know one another up to a tick."""
        for warp in list_distinct(slots >> 5):
            mine = slots[slots >> 5 == warp]
            if len(self.clocks) > 1:
                self._share(mine)
            self.cta[mine] = self.cta[mine].max()
        self.warp[slots] = tick

    def _share(self, slots: Array) -> None:
        """Join the clocks of threads."""
        found = [n for n in list_values(self.clock_of[slots]) if n]
        if found:
            self.clock_of[slots] = functools.reduce(self._join, found)
