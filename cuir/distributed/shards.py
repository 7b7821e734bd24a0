"""Shards of a sequence: which tokens each rank of a group holds, in which order."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch


class Span(NamedTuple):
    """Neighbouring tokens, from `start` to `stop - 1`."""

    start: int
    stop: int


@dataclass(frozen=True)
class Shards:
    """The tokens that each rank holds: for each rank the spans of the sequence, in its order.

    A mod sees a token's number in the sequence, whichever rank holds it.
    """

    spans: tuple[tuple[Span, ...], ...]

    @property
    def ranks(self) -> int:
        return len(self.spans)

    @functools.cached_property
    def lengths(self) -> tuple[int, ...]:
        """The number of tokens of each rank."""
        return tuple(sum(stop - start for start, stop in spans) for spans in self.spans)

    @property
    def length(self) -> int:
        return sum(self.lengths)

    def positions(self, rank: int, device: torch.device | str) -> torch.Tensor:
        """Return the numbers in the sequence of a rank's tokens, int32."""
        return join_spans(self.spans[rank], device)

    def split(self, x: torch.Tensor, rank: int, dim: int = 2) -> torch.Tensor:
        """Return a rank's tokens of a tensor of the whole sequence."""
        return x.index_select(dim, self.positions(rank, x.device))

    def join(self, parts: Sequence[torch.Tensor], dim: int = 2) -> torch.Tensor:
        """Return the tensor of the whole sequence from the parts of all ranks."""
        x = torch.cat(list(parts), dim)
        order = torch.cat([self.positions(rank, x.device) for rank in range(self.ranks)])
        return x.index_select(dim, order.argsort())

    def locate(self, rank: int, spans: Iterable[Span]) -> tuple[Span, ...]:
        """Return where a rank holds what it has of spans of the sequence, in the rank's order."""
        return merge_spans(sorted(place for _, place in find_held(self.spans[rank], spans)))

    def group(self, size: int) -> Shards:
        """Return the shards of groups of `size` neighbouring ranks, each in the order of the sequence."""
        if size == 1:
            return self
        joined = (self.spans[i : i + size] for i in range(0, self.ranks, size))
        return Shards(tuple(merge_spans(sorted(s for spans in group for s in spans)) for group in joined))


def merge_spans(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Join spans that follow each other, and leave out empty ones; the order stays."""
    merged = list[Span]()
    for span in spans:
        if span.start == span.stop:
            continue
        if merged and merged[-1].stop == span.start:
            merged[-1] = Span(merged[-1].start, span.stop)
        else:
            merged.append(Span(*span))
    return tuple(merged)


def unite_spans(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Return the tokens of spans that may overlap, in the order of the sequence."""
    united = list[Span]()
    for span in sorted(s for s in spans if s.start < s.stop):
        if united and span.start <= united[-1].stop:
            united[-1] = Span(united[-1].start, max(united[-1].stop, span.stop))
        else:
            united.append(span)
    return tuple(united)


def place_spans(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Return where each span lies among the tokens of all."""
    return tuple(Span(before, before + stop - start) for before, (start, stop) in _starts(spans))


def join_spans(spans: Iterable[Span], device: torch.device | str) -> torch.Tensor:
    """Return the numbers of all tokens of spans, int32."""
    parts = [torch.arange(start, stop, dtype=torch.int32, device=device) for start, stop in spans]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int32, device=device)


def find_held(held: Iterable[Span], wanted: Iterable[Span]) -> list[tuple[Span, Span]]:
    """Return what a rank with the spans `held` has of wanted spans, in the order of the sequence, each with its place there."""
    found, spans = list[tuple[Span, Span]](), list(wanted)
    for at, own in _starts(held):
        for span in spans:
            start, stop = max(own.start, span.start), min(own.stop, span.stop)
            if start < stop:
                found.append((Span(start, stop), Span(at + start - own.start, at + stop - own.start)))
    return sorted(found)


def _starts(spans: Iterable[Span]) -> list[tuple[int, Span]]:
    starts, before = list[tuple[int, Span]](), 0
    for span in spans:
        starts.append((before, span))
        before += span.stop - span.start
    return starts


def shard_by_lengths(lengths: Iterable[int]) -> Shards:
    """Return shards of these lengths, one behind the other; a length may be 0."""
    spans, start = list[tuple[Span, ...]](), 0
    for n in lengths:
        spans.append((Span(start, start + n),) if n else ())
        start += n
    return Shards(tuple(spans))


def shard_evenly(length: int, *ranks: int) -> Shards:
    """Return the shards of a DTensor whose sequence is sharded over mesh dims of these sizes.

    As in torch.chunk, the last ranks may hold fewer tokens, or none.
    """
    lengths = [length]
    for size in ranks:
        lengths = [min(max(n - i * -(-n // size), 0), -(-n // size)) for n in lengths for i in range(size)]
    return shard_by_lengths(lengths)


__all__ = ["Shards", "Span", "find_held", "join_spans", "merge_spans", "place_spans", "shard_by_lengths", "shard_evenly", "unite_spans"]
