"""Lists of selected blocks: made canonical, as pairs, inverted, all on the device; and how kernels read them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from ...spec.specification import Lengths
from ...syntax.nodes import Func
from ...syntax.templates import Holes

ROWS = 64  # queries times heads of a step
LEAST_STEPS = 16  # of a CTA's share
NOTE_ON_TOKENS = "which tokens a query attends to is the caller's: keep() decides of each of them"
NOTE = "which blocks a query attends to is the caller's: keep() decides of each pair in them"


class SelectedBlocks(NamedTuple):
    """Blocks of keys that groups of queries attend to.

    Attributes:
        blocks: i32 [B, HU, groups, n], the last key's block first, none twice; what lies behind the count is no block.
        counts: i32 [B, HU, groups], the number of blocks.
    """

    blocks: torch.Tensor
    counts: torch.Tensor


def sort_blocks(blocks: torch.Tensor, total: int, counts: torch.Tensor | None = None) -> SelectedBlocks:
    """Sort lists, and drop repetitions and what is no block from 0 to total - 1.

    Args:
        blocks: integers [B, HU, groups, n] in any order.
        total: number of blocks of keys.
        counts: integers [B, HU, groups]: only so many first entries of a list count.
    """
    absent = (blocks < 0) | (blocks >= total)
    if counts is not None:
        absent = absent | (torch.arange(blocks.shape[-1], device=blocks.device) >= counts[..., None])
    ordered = torch.where(absent, -1, blocks).int().sort(-1, descending=True).values
    repeated = torch.zeros_like(ordered, dtype=torch.bool)
    repeated[..., 1:] = ordered[..., 1:] == ordered[..., :-1]
    single = torch.where(repeated, -1, ordered).sort(-1, descending=True).values
    return SelectedBlocks(single, (single >= 0).sum(-1, dtype=torch.int32))


def select_pairs(blocks: torch.Tensor, counts: torch.Tensor, at: Lengths, BLOCK: int, SPAN: int) -> torch.Tensor:
    """Return which pairs of query and key lie in a selected block: bool [B, H, M, N].

    Args:
        blocks: i32 [B, HU, groups, n] of blocks of BLOCK keys, for groups of SPAN queries; HU divides H.
        counts: i32 [B, HU, groups], how many entries of a list count.
    """
    total = -(-at.N // BLOCK)
    listed = torch.arange(blocks.shape[-1], device=blocks.device) < counts[..., None]
    places = torch.where(listed, blocks, total).long()
    table = torch.zeros(*blocks.shape[:3], total + 1, dtype=torch.bool, device=blocks.device).scatter_(-1, places, True)
    by_head = table.repeat_interleave(at.H // blocks.shape[1], 1)
    by_query = by_head[:, :, torch.arange(at.M, device=blocks.device) // SPAN]
    return by_query[..., torch.arange(at.N, device=blocks.device) // BLOCK]


@dataclass(frozen=True)
class Slots:
    """Order in which a kernel visits the queries that select a block.

    Attributes:
        block: keys of a block.
        span: queries that share a list.
        queries: of each head of a slot; divides span.
        heads: of a slot, which share a key head and a list.
        keys: that a CTA owns, of a block.
        warpgroups: of a CTA, which take turns, and each of which has a part of the sums.
        share: most slots of a CTA; None for twice as many as a block has on average.
    """

    block: int
    span: int
    queries: int
    heads: int
    keys: int
    warpgroups: int = 2
    share: int | None = None

    @property
    def step(self) -> int:
        """The slots of a step, of 64 rows."""
        return ROWS // (self.queries * self.heads)

    def count_slots(self, at: Lengths, heads: int) -> int:
        """Return the slots of an entry of a list; `heads` is the number of groups of heads with a list."""
        return self.span // self.queries * -(-(at.H // heads) // self.heads)

    def count_share(self, at: Lengths, entries: int) -> int:
        """Return the most slots of a CTA, for so many slots of all blocks of a key head."""
        return self.share or max(LEAST_STEPS * self.step, -(-2 * entries // max(1, -(-at.N // self.block))))

    def count_units(self, at: Lengths, entries: int) -> int:
        """Return the number of units of work, whatever the lists, for so many slots of all blocks of a key head."""
        cells = at.B * at.HK * -(-at.N // self.keys)
        return cells + at.B * at.HK * entries * (self.block // self.keys) // self.count_share(at, entries)


class InvertedBlocks(NamedTuple):
    """The queries that select each block, for kernels of dK and dV.

    Attributes:
        units: i32 [TOTAL, 4], of each unit of work: number of the key head of all batch entries, number of the block of `Slots.keys`
            keys, first slot, number of slots.
        slots: i32 [B, HK, ENTRIES, 3]: group of heads that share a list, the first of these, first query.
        ends: i32 [CELLS, 2]: the parts of the sums of each block of keys.
    """

    units: torch.Tensor
    slots: torch.Tensor
    ends: torch.Tensor


def invert_blocks(lists: SelectedBlocks, at: Lengths, way: Slots) -> InvertedBlocks:
    """Return which queries select each block, without waiting for the device. There is at least one key and one query."""
    blocks, counts = lists
    device, (heads, groups, most) = blocks.device, blocks.shape[1:]
    total, per, shared = -(-at.N // way.block), at.H // heads, heads // at.HK
    listed = torch.arange(most, device=device) < counts[..., None]
    keyed, order = torch.where(listed, blocks, total).reshape(at.B, at.HK, shared * groups * most).sort(dim=-1, stable=True)
    list_of = order // most  # numbers groups of heads of the key head, then groups of queries
    of_list = torch.arange(at.HK, device=device)[:, None] * shared + list_of // groups
    of_heads = -(-per // way.heads)
    p = torch.arange(way.count_slots(at, heads), device=device)
    query = (list_of % groups * way.span)[..., None] + p // of_heads * way.queries
    slots = torch.stack(torch.broadcast_tensors(of_list[..., None], p % of_heads * way.heads, query), -1).int().flatten(2, 3)
    begins = torch.searchsorted(keyed, torch.arange(total + 1, dtype=keyed.dtype, device=device).expand(at.B, at.HK, -1).contiguous())
    cell = torch.arange(-(-at.N // way.keys), device=device) * way.keys // way.block
    begin = begins[..., cell].flatten() * len(p)
    count = begins[..., cell + 1].flatten() * len(p) - begin
    entries = slots.shape[2]
    share = way.count_share(at, entries)
    parts = (count + share - 1) // share
    ends = parts.cumsum(0)
    unit = torch.arange(way.count_units(at, entries), device=device)
    of_cell = torch.searchsorted(ends, unit, right=True).clamp(max=len(ends) - 1)
    passed = (unit - ends[of_cell] + parts[of_cell]) * share
    number = (count[of_cell] - passed).clamp(min=0, max=share) * (unit < ends[-1])
    units = torch.stack([of_cell // len(cell), of_cell % len(cell), begin[of_cell] + passed, number], -1)
    return InvertedBlocks(units.int(), slots, (torch.stack([ends - parts, ends], -1) * way.warpgroups).int())


def build_functions(masked: bool) -> dict[str, Func]:
    """Return kv_count and kv_block of kernels that read selected blocks.

    masked: keep() drops pairs; else only the first block, with the last key, may have keys that are none.
    """
    partial = "n" if masked else "min(n, 1)"
    return Holes().fill(f"""\
@func
def kv_count(b, h, m):                   # (selected blocks that need keep(), all of them); the former come first
    n = COUNTS[b, h // (H // HU), m * BM // SPAN]
    return {partial}, n

@func
def kv_block(b, h, m, i):                # which block of BLOCK keys is the i-th
    return BLOCKS[b, h // (H // HU), m * BM // SPAN, i]
""")


__all__ = [
    "NOTE",
    "NOTE_ON_TOKENS",
    "InvertedBlocks",
    "SelectedBlocks",
    "Slots",
    "build_functions",
    "invert_blocks",
    "select_pairs",
    "sort_blocks",
]
