"""Memories: bytes, their bounds, and for each place the last write and the reads since, judged by the rules of `sync`.

A shadow has an entry for 4 bytes until an access needs single ones. Ticks of the last write: NOTHING was written, OUTSIDE
lies in no allocation, 0 was written before the launch. Reads since the last write are kept in a log, which is searched
where the tick of a place's last read does not show at once that its order is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from .knowledge import Knowledge

Array = np.ndarray
OUTSIDE, NOTHING = -2, -1
IN_FLIGHT = 1 << 60  # added to the tick of an asynchronous write that no wait has covered
MOST_LOGGED = 1 << 25  # reads in a log; the oldest are dropped beyond
UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}  # NumPy gathers complex numbers fast


@dataclass(frozen=True)
class Meeting:
    """Two accesses that may conflict: lane of the new access, its place, and thread and tick of the old one."""

    lane: int
    place: int
    thread: int
    tick: int
    mode: str
    strong: bool


@dataclass(eq=False)
class ReadRecord:
    tick: int
    threads: Array
    places: Array  # the first byte of each lane
    nbytes: int
    strong: bool

    @cached_property
    def span(self) -> tuple[int, int]:
        """First byte, and the one behind the last."""
        return int(self.places.min()), int(self.places.max()) + self.nbytes


class Met(NamedTuple):
    """Old accesses: the lanes that meet them, entries, threads and ticks."""

    lanes: Array
    entries: Array
    threads: Array
    ticks: Array


Report = Callable[[Meeting], None]


class Shadow:
    """Last write and last reads of each place of a memory.

    between: whether threads of several CTAs access it.
    """

    def __init__(self, nbytes: int, initial: int, knowledge: Callable[[], Knowledge], between: bool):
        self.nbytes, self.between, self.shift = nbytes, between, 2
        size = (nbytes + 3) // 4
        self.written = np.full(size, initial, np.int64)
        self.writer = np.zeros(size, np.int64)
        self.write_strong = np.zeros(size, np.bool_)
        self.read = np.zeros(size, np.int64)
        self.reader = np.full(size, -1, np.int64)  # -2: several
        self.log: list[ReadRecord] = []
        self.engine_reads: dict[int, Array] = {}  # by who issued them: the last read of each entry, 0 for none
        self.logged = 0  # lanes of the log
        self.pending: list[ReadRecord] = []  # records that `read` and `reader` do not hold: most are forgotten before a write asks
        self.get_knowledge = knowledge

    def split(self) -> None:
        """Give each byte its entry."""
        self._take_in(self.pending)
        self.pending = []
        self.shift = 0
        for name in ("written", "writer", "write_strong", "read", "reader"):
            setattr(self, name, np.repeat(getattr(self, name), 4))
        self.engine_reads = {issuer: np.repeat(last, 4) for issuer, last in self.engine_reads.items()}

    def find_entries(self, places: Array, nbytes: int) -> Array:
        """Return the entries [lanes, n] of accesses of so many bytes."""
        if self.shift and nbytes < 4:
            self.split()
        first = places >> self.shift
        count = nbytes >> self.shift
        return first[:, None] + np.arange(count) if count > 1 else first[:, None]

    def find_span(self, start: int, nbytes: int) -> slice:
        """Return the entries that so many bytes have a part of; start: the first byte of an entry."""
        return slice(start >> self.shift, (start + nbytes + (1 << self.shift) - 1) >> self.shift)

    def allocate(self, start: int, nbytes: int, state: int) -> None:
        """Mark bytes as an allocation; state: NOTHING, or 0 for data of the host."""
        if self.shift and (start % 4 or nbytes % 4):
            self.split()
        self.written[self.find_span(start, nbytes)] = state

    def _is_ordered(self, slots: Array, threads: Array, ticks: Array) -> Array:
        """Return, for entries [lanes, n], whether old accesses are known by the ticks of barriers alone."""
        known = self.get_knowledge()
        own = (slots + known.first)[:, None]
        ordered = (ticks <= known.cta[slots][:, None]) | ((threads >> 5 == own >> 5) & (ticks <= known.warp[slots][:, None]))
        if self.between:
            ordered &= threads // known.width == own // known.width
        if known.size > known.total:
            ordered &= threads < known.total
        return ordered | (ticks <= 0) | ((threads == own) & (ticks < IN_FLIGHT))

    def _report_unknown(self, slots: Array, met: Met, strong: bool, mode: str, report: Report) -> None:
        """Report old accesses that the lanes' threads do not know."""
        known = self.get_knowledge()
        if mode == "read" and known.products:
            left = known.find_unfinished(slots[met.lanes], met.threads, met.ticks)
            met = Met(*(x[left] for x in met))
        for lane, entry, thread, tick in zip(*(x.tolist() for x in met)):
            slot = int(slots[lane])
            if tick >= IN_FLIGHT or not (thread == slot + known.first or known.is_known(slot, (thread, tick))):
                report(Meeting(lane, entry << self.shift, thread, tick, mode, strong))

    def check_write(self, slots: Array, entries: Array, strong: bool, report: Report, ticks: Array | None = None) -> None:
        """Check the last writes of entries, with these ticks, against a new access."""
        if ticks is None:
            ticks = self.written[entries]
        newest, known = int(ticks.max()), self.get_knowledge()
        if newest <= 0:
            return
        behind = not self.between and (newest <= int(known.cta[slots].min()) or bool((ticks.max(1) <= known.cta[slots]).all()))
        if behind and known.size == known.total:
            return
        threads = self.writer[entries]
        if behind and int(threads.max()) < known.total:
            return
        ordered = self._is_ordered(slots, threads, ticks)
        if strong:
            ordered |= self.write_strong[entries] & (ticks < IN_FLIGHT)
        if ordered.all():
            return
        lane, column = np.nonzero(~ordered)
        unknown = self.get_knowledge().find_unlearned(slots[lane], threads[lane, column], ticks[lane, column])
        if not len(unknown):
            return
        lane, column = lane[unknown], column[unknown]
        met = Met(lane, entries[lane, column], threads[lane, column], ticks[lane, column])
        self._report_unknown(slots, met, bool(self.write_strong[entries[lane[0], column[0]]]), "write", report)

    def check_reads(self, slots: Array, entries: Array, strong: bool, report: Report) -> None:
        """Check the reads since the last write against a new write."""
        known = self.get_knowledge()
        if not self.log or (not self.between and self.log[-1].tick <= int(known.cta[slots].min())):
            return
        self._take_in_near(entries)
        ticks = self.read[entries]
        if int(ticks.max()) <= 0:
            return
        readers = self.reader[entries]
        own = (slots + known.first)[:, None]
        quick = (ticks <= 0) | (readers == own) | (ticks <= self.written[entries])
        if self.between:
            in_cta = (readers >= 0) & (readers // known.width == own // known.width)
            quick |= in_cta & (ticks <= known.cta[slots][:, None])
        else:
            quick |= ticks <= known.cta[slots][:, None]
        if quick.all():
            return
        lane, column = np.nonzero(~quick)
        wanted = entries[lane, column]
        order = np.argsort(wanted, kind="stable")
        oldest = int(self.written[wanted].min())
        for record in reversed(self.log):
            if record.tick <= oldest:
                break
            for offset in range(max(record.nbytes >> self.shift, 1)):
                self._check_record(record, offset, wanted, lane, order, slots, strong, report)

    def _check_record(
        self, record: ReadRecord, offset: int, wanted: Array, lane: Array, order: Array, slots: Array, strong: bool, report: Report
    ) -> None:
        """Check one recorded read, at one of its entries, against a new write of the wanted entries."""
        if strong and record.strong:
            return
        places = (record.places >> self.shift) + offset
        at = np.searchsorted(wanted, places, sorter=order)
        inside = at < len(wanted)
        hit = np.flatnonzero(inside)[wanted[order[at[inside]]] == places[inside]]
        if not len(hit):
            return
        mine = order[at[hit]]
        fresh = record.tick > self.written[wanted[mine]]
        mine, hit = mine[fresh], hit[fresh]
        if not len(hit):
            return
        threads = record.threads[hit]
        ordered = self._is_ordered(slots[lane[mine]], threads[:, None], np.full((len(hit), 1), record.tick))[:, 0]
        mine, threads = mine[~ordered], threads[~ordered]
        self._report_unknown(slots, Met(lane[mine], wanted[mine], threads, np.full(len(mine), record.tick)), record.strong, "read", report)

    def enter_read(self, slots: Array, places: Array, nbytes: int, tick: int, strong: bool) -> None:
        """Record a read."""
        record = ReadRecord(tick, slots + self.get_knowledge().first, places, nbytes, strong)
        self.log.append(record)
        self.pending.append(record)
        self.logged += len(slots)
        if self.logged > MOST_LOGGED:
            self._take_in(self.pending)
            self.pending = []
            self._shorten_log()

    def _take_in_near(self, entries: Array) -> None:
        """Take in the pending reads that may be of some entries."""
        if not self.pending:
            return
        low, high = int(entries.min()) << self.shift, (int(entries.max()) + 1) << self.shift
        near = [r for r in self.pending if r.span[0] < high and low < r.span[1]]
        if near:
            self.pending = [r for r in self.pending if not (r.span[0] < high and low < r.span[1])]
            self._take_in(near)

    def _take_in(self, new: Sequence[ReadRecord]) -> None:
        """Note reads at their places; they are in the order of their ticks."""
        for nbytes in {r.nbytes for r in new}:
            records = [r for r in new if r.nbytes == nbytes]
            entries = self.find_entries(np.concatenate([r.places for r in records]), nbytes)
            threads = np.broadcast_to(np.concatenate([r.threads for r in records])[:, None], entries.shape)
            ticks = np.broadcast_to(np.repeat([r.tick for r in records], [len(r.threads) for r in records])[:, None], entries.shape)
            fresh = ticks > self.written[entries]
            entries, threads, ticks = entries[fresh], threads[fresh], ticks[fresh]
            old = np.where(self.read[entries] <= self.written[entries], -1, self.reader[entries])
            self.reader[entries] = threads
            several = (self.reader[entries] != threads) | ((old != -1) & (old != threads))
            self.reader[entries[several]] = -2
            self.read[entries] = np.maximum(ticks, self.read[entries])  # of an entry that occurs again, the last one stays

    def _shorten_log(self) -> None:
        """Drop reads whose place was written since, then the oldest."""
        kept = [r for r in self.log if (self.written[r.places >> self.shift] < r.tick).any()]
        while sum(len(r.threads) for r in kept) > MOST_LOGGED // 2:
            del kept[: len(kept) // 4 + 1]
        self.log, self.logged = kept, sum(len(r.threads) for r in kept)

    def forget_before(self, tick: int) -> None:
        """Drop reads that all threads know."""
        if self.log and self.log[-1].tick <= tick:
            self.log, self.pending, self.logged = [], [], 0

    def enter_write(self, slots: Array, entries: Array, tick: int, strong: bool) -> Array:
        """Record a write; return which lanes lost a place to another lane of the same write."""
        own = np.broadcast_to((slots + self.get_knowledge().first)[:, None], entries.shape)
        self.writer[entries] = own
        self.written[entries] = tick
        self.write_strong[entries] = strong
        return (self.writer[entries] != own).any(-1)


class Memory:
    """Bytes of a state space, one part behind another for its owners (CTAs or threads), or one part in all.

    base: the address of the first byte of a part; size: bytes of a part.
    """

    def __init__(self, name: str, base: int, size: int, parts: int, shadow: Shadow | None):
        self.name, self.base, self.size, self.stride, self.shadow = name, base, size, -(-size // 16) * 16 or 16, shadow
        self.bytes = np.zeros(self.stride * parts, np.uint8)
        self.typed: dict[int, Array] = {n: self.bytes.view(t) for n, t in UNSIGNED.items()}
        self.rows: dict[tuple[int, int], Array] = {}

    def view_rows(self, element: int, count: int) -> Array:
        """Return the bytes as rows of a vector's elements."""
        key = (element, count)
        if key not in self.rows:
            whole = len(self.bytes) // (element * count) * count
            self.rows[key] = self.typed[element][:whole].reshape(-1, count)
        return self.rows[key]

    def gather(self, places: Array, element: int, count: int) -> Array:
        """Return elements at byte places: [lanes], or [lanes, count] of vectors."""
        if count == 1:
            return self.typed[element][places // element]
        return self.view_rows(element, count)[places // (element * count)]

    def scatter(self, places: Array, values: Array, element: int, count: int) -> None:
        """Store elements at byte places."""
        if count == 1:
            self.typed[element][places // element] = values
        else:
            self.view_rows(element, count)[places // (element * count)] = values
