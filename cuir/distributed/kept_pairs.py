"""Kept pairs of a mask by blocks: the keys that a rank's queries need, and shards of equal work."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..attn.capture.attention_request import Mod
from ..attn.masks.block_lists import count_kept_pairs
from ..attn.tracing.read_ranges import trace_without_clashes
from ..spec.specification import Lengths, Specification
from .shards import Shards, Span, merge_spans

BLOCK = 128  # queries, and keys, whose pairs are counted together
# shards are chosen among those whose work is this near to the mean, as a part of it, and at most so many for each rank
NEAR, RANGES = 0.02, 32
# kept blocks that take as long as a block of keys that travels, and as one more launch for a span
TRAVEL, SPAN = 4.0, 256.0


@dataclass(frozen=True)
class KeptPairs:
    """Numbers of pairs that a mask keeps in each block of queries and keys: f64 [blocks, blocks] on the CPU.

    The counts are means over batches and heads; a block is 0 only if no batch and head keeps a pair of it.
    """

    counts: torch.Tensor
    block: int
    queries: int
    keys: int

    def count(self, queries: tuple[Span, ...], keys: tuple[Span, ...] | None = None) -> float:
        """Estimate the kept pairs of spans of queries, with all keys or with spans of keys."""
        rows = _overlaps(queries, self.counts.shape[0], self.block, self.queries)
        columns = torch.ones(self.counts.shape[1], dtype=torch.float64)
        if keys is not None:
            columns = _overlaps(keys, self.counts.shape[1], self.block, self.keys)
        return float(rows @ self.counts @ columns)

    def needed_keys(self, queries: tuple[Span, ...]) -> tuple[Span, ...]:
        """Return the spans of keys that some of these queries need, in whole blocks."""
        rows = _overlaps(queries, self.counts.shape[0], self.block, self.queries) > 0
        blocks = (self.counts[rows].sum(0) > 0).nonzero().flatten().tolist()
        return merge_spans(Span(i * self.block, min((i + 1) * self.block, self.keys)) for i in blocks)

    def find_rows_beyond(self, queries: Span, own: tuple[Span, ...]) -> Span | None:
        """Return the queries of a span, in whole blocks, between the first and the last that need other keys than `own`."""
        first = queries.start // self.block
        beyond = _overlaps(own, self.counts.shape[1], self.block, self.keys) < 1
        rows = self.counts[first : -(-queries.stop // self.block)][:, beyond].sum(1).nonzero().flatten().tolist()
        if not rows:
            return None
        start, stop = ((first + i) * self.block for i in (rows[0], rows[-1] + 1))
        return Span(max(start, queries.start), min(stop, queries.stop))


def _overlaps(spans: tuple[Span, ...], blocks: int, block: int, length: int) -> torch.Tensor:
    """Return the part of each block that lies in the spans."""
    starts = torch.arange(blocks, dtype=torch.float64) * block
    sizes = (length - starts).clamp(1, block)
    inside = torch.zeros(blocks, dtype=torch.float64)
    for start, stop in spans:
        inside += ((starts + block).clamp(max=stop) - starts.clamp(min=start)).clamp(min=0)
    return inside / sizes


def count_pairs(mask_mod: Mod | None, lengths: Lengths, device: torch.device | str, block: int = BLOCK) -> KeptPairs:
    """Count the kept pairs of a mask; every pair is kept where there is none.

    Every pair is evaluated once, on the device, and the host waits for the counts. Raises CuirError X1xx.
    """
    M, N = lengths.M, lengths.N
    keep = None
    if mask_mod is not None:
        traced = trace_without_clashes(Specification("mask", mask_mod))
        keep = traced.keep
    if keep is None:
        rows, columns = (torch.full((-(-n // block),), float(block), dtype=torch.float64) for n in (M, N))
        for x, n in ((rows, M), (columns, N)):
            if n % block:
                x[-1] = n % block
        return KeptPairs(torch.outer(rows, columns), block, M, N)
    values = {p.name: p.on(p.value, device) for p in traced.parameters if p.value is not None}
    counts = count_kept_pairs(keep, values, lengths, block, block, device)[..., : -(-M // block), : -(-N // block)]
    return KeptPairs(counts.double().mean((0, 1)).cpu(), block, M, N)


def balance_sequence(mask_mod: Mod | None, length: int, ranks: int, device: torch.device | str = "cpu", block: int = BLOCK) -> Shards:
    """Shard a sequence such that each rank has the same number of blocks, and about the same work.

    Each rank takes neighbouring blocks of those that are left, the last of which has the first one behind it. Such a
    ring always has blocks with the mean of kept pairs, within a block's: so ranks hold few spans, and masks of these
    keep their closed form. Of ranges with nearly this work, a rank takes one with few spans, for whose queries few keys
    travel: documents stay whole where they can. All ranks compute the same shards if the mask is the same.
    """
    kept = count_pairs(mask_mod, Lengths(1, 1, 1, length, length), device, block).counts > 0  # kernels compute whole blocks
    blocks = -(-length // block)
    work = torch.nn.functional.pad(kept, (0, 0, 0, blocks - len(kept))).sum(1).double()
    left, mean = list(range(blocks)), float(work.sum()) / ranks
    dealt: list[list[int]] = []
    for rank in range(ranks):
        count = -(-len(left) // (ranks - rank))
        loads = work[left].repeat(2).cumsum(0)
        windows = torch.cat([torch.zeros(1, dtype=loads.dtype), loads])
        excess = (windows[count : count + len(left)] - windows[: len(left)] - mean).abs()
        costs = dict[int, float]()
        for start in _pick_ranges(excess, max(NEAR * mean, float(excess.min()) if left else 0.0), len(left) - count):
            own = torch.zeros(blocks, dtype=torch.bool)
            own[[left[(start + i) % len(left)] for i in range(count)]] = True
            costs[start] = float(excess[start]) + SPAN * int((own[1:] != own[:-1]).sum()) + TRAVEL * _count_travelling(kept, own)
        start = min(costs, key=lambda start: (costs[start], start)) if costs else 0
        chosen = [left[(start + i) % len(left)] for i in range(count)]
        dealt.append(sorted(chosen))
        left = sorted(set(left) - set(chosen))
    return Shards(tuple(merge_spans(Span(i * block, min((i + 1) * block, length)) for i in own) for own in dealt))


def _pick_ranges(excess: torch.Tensor, most: float, last: int) -> list[int]:
    """Return the starts of some ranges whose work is off the mean by `most`: the best, those at the ends, and others."""
    near = (excess <= most).nonzero().flatten().tolist()
    ends = {0, last, *([int(excess.argmin())] if len(excess) else [])} & set(near)
    return sorted(ends | set(near[:: -(-len(near) // RANGES) or 1]))


def _count_travelling(kept: torch.Tensor, own: torch.Tensor) -> int:
    """Count the blocks of keys that travel to a rank with these blocks, and from it."""
    arriving, leaving = kept[own[: len(kept)]].any(0), kept[~own[: len(kept)]].any(0)
    return int((arriving & ~own[: kept.shape[1]]).sum() + (leaving & own[: kept.shape[1]]).sum())


__all__ = ["BLOCK", "KeptPairs", "balance_sequence", "count_pairs"]
