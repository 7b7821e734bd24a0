"""Block lists: the key blocks that a tile of queries visits, for masks without a closed form.

They are computed from the mask itself, on the device. A mask that costs much for each pair is also stored as bits, made
once, of the blocks that need it. Each block is of one kind: no pair (of a query < M and a key < N) is kept, or all of a
whole block are, or neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import cast

import torch

from ...spec.specification import LENGTHS, Lengths
from ...syntax.nodes import Expr, Func, GlobalType, Param, Return
from ...syntax.templates import Holes
from ...syntax.walk import names_read, rename_names, walk
from ..tracing.mod_evaluator import Value, evaluate
from ..tracing.splice_names import BITS, LISTS
from .block_bounds import ALL_ROWS_ALIKE
from .pair_costs import divides

PAIRS = 2**24  # evaluated at a time, which bounds the memory
WORD = 32  # bits
_SIDES = {"q": "k", "k": "q", "M": "N", "N": "M"}
_WORKERS = 132  # of a device that does not say how many SMs it has


@dataclass(frozen=True)
class Lists:
    """Parameters of a kernel that hold block lists, all i32.

    The leading dims are 1 where `keep` does not depend on b, or h. tiles, blocks, units, slots, queries and words are
    names of dims.

    Attributes:
        count: [B or 1, H or 1, tiles, 2], the blocks that need keep(), and all blocks of a tile.
        list: [.., tiles, blocks], the blocks, those that need keep() first, each part from the last key to the first.
        order: [units, 3], (b, h, m) of the work items; empty if the kernel has an order of its own.
        bits: [slots, BM, words], bit c % 32 of word c // 32 says whether the block's key c is kept; empty if `keep` is
            computed for each pair.
        slot: [.., tiles, blocks], the slots of each block's bits.
        by_key: all blocks are in the order of keys, and need keep().
    """

    keep: Expr
    count: str
    list: str
    order: str
    tiles: str
    blocks: str
    units: str
    bits: str = ""
    slot: str = ""
    slots: str = ""
    queries: str = ""
    words: str = ""
    by_key: bool = field(default=False, kw_only=True)

    @property
    def by_batch(self) -> bool:
        return "b" in names_read(self.keep)

    @property
    def by_head(self) -> bool:
        return "h" in names_read(self.keep)

    def build_functions(self) -> dict[str, Func]:
        """Return kv_count, kv_block and kv_rows."""
        place = f"{self.leading}, m"
        block = f"{self.list}[{place}, i]"
        # within the keys: divisions of bounded numbers are products with an inverse
        if self.bits or any(isinstance(e, Expr) and divides(e) for e in walk(self.keep)):
            block = f"max(0, min({block}, cdiv(N, BN)))"
        return Holes().fill(f"""\
@func
def kv_count(b, h, m):                   # (blocks that need keep(), all blocks); the former come first
    return {self.count}[{place}, 0], {self.count}[{place}, 1]

@func
def kv_block(b, h, m, i):                # which key block is the i-th
    return {block}

{ALL_ROWS_ALIKE}""")

    @property
    def leading(self) -> str:
        return f"{'b' if self.by_batch else '0'}, {'h' if self.by_head else '0'}"

    def read_bits(self) -> Expr:
        """Return the expression of `keep` that reads bits."""
        bit = f"bit({self.bits}[{self.slot}[{self.leading}, q // BM, k // BN], q % BM, k % BN // {WORD}], k % BN)"
        return cast(Return, Holes().fill(f"@func\ndef keep(b, h, q, k):\n    return {bit}\n")["keep"].body[-1]).value

    def parameters(self) -> tuple[Param, ...]:
        """Return the kernel's parameters."""
        heads: tuple[str | int, ...] = ("B" if self.by_batch else 1, "H" if self.by_head else 1)
        shapes: dict[str, tuple[str | int, ...]] = {
            self.count: (*heads, self.tiles, 2),
            self.list: (*heads, self.tiles, self.blocks),
            self.order: (self.units, 3),
            self.bits: (self.slots, self.queries, self.words),
            self.slot: (*heads, self.tiles, self.blocks),
        }
        return tuple(Param(name, GlobalType("i32", dims)) for name, dims in shapes.items() if name)

    def values(self, captured: Mapping[str, Value], at: Lengths, BM: int, BN: int, device: torch.device | str) -> dict[str, torch.Tensor]:
        """Return the lists for a problem, by parameter.

        `captured` has the values of the names that `keep` reads besides indices and lengths, on the device.
        """
        count, blocks = block_lists(self.keep, captured, at, BM, BN, device, self.by_key)
        values = {self.count: count, self.list: blocks}
        if self.order:
            values[self.order] = tile_order(count[..., 1], at, BM)
        if self.bits:
            values[self.bits], values[self.slot] = block_bits(self.keep, captured, at, BM, BN, count, blocks)
        return values


def lists_for(keep: Expr, fresh: Callable[[str], str], bits: bool = False, by_key: bool = False) -> Lists:
    """Return lists whose names are free in a kernel.

    `bits` says that the mask is read, not computed; `by_key` is as in `Lists`.
    """
    names = [fresh(n) for n in (*LISTS, "tiles_m", "blocks_n", "units")]
    of_bits = [fresh(n) for n in (*BITS, "slots_s", "queries_q", "words_w")] if bits else []
    return Lists(keep, *names, *of_bits, by_key=by_key)


@dataclass(frozen=True)
class ColumnLists:
    """Lists of the blocks of queries that each block of keys visits.

    They are the lists of the mask with exchanged sides.
    """

    exchanged: Lists

    def values(self, captured: Mapping[str, Value], at: Lengths, BM: int, BN: int, device: torch.device | str) -> dict[str, torch.Tensor]:
        """Return the lists for a problem, by parameter, as `Lists.values` does."""
        return self.exchanged.values(captured, replace(at, M=at.N, N=at.M), BN, BM, device)

    def build_functions(self) -> dict[str, Func]:
        return self.exchanged.build_functions()

    def parameters(self) -> tuple[Param, ...]:
        return self.exchanged.parameters()


def exchange_sides(keep: Expr) -> Expr:
    """Return the mask with queries and keys exchanged."""
    return cast(Expr, rename_names(keep, _SIDES))


def column_lists_for(keep: Expr, fresh: Callable[[str], str]) -> ColumnLists:
    """Return lists by columns whose names are free in a kernel."""
    count, blocks = (fresh(n) for n in LISTS[:2])
    return ColumnLists(Lists(exchange_sides(keep), count, blocks, "", *(fresh(n) for n in ("tiles_n", "blocks_m", "units"))))


def block_lists(
    keep: Expr, captured: Mapping[str, Value], at: Lengths, BM: int, BN: int, device: torch.device | str = "cpu", by_key: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return count and list of a predicate of b, h, q, k, as in `Lists`.

    A tile is BM queries, a block BN keys. Blocks that a tile does not visit are at the end of its list. PAIRS pairs are
    evaluated at a time; nothing waits for the device.
    """
    kept_counts = count_kept_pairs(keep, captured, at, BM, BN, device)
    tiles, blocks = kept_counts.shape[2:]
    rows = (at.M - BM * torch.arange(tiles, device=device)).clamp(0, BM)
    inside = torch.arange(blocks, device=device) < at.N // BN
    some = kept_counts > 0
    full = (kept_counts == rows[:, None] * BN) & inside & some & (not by_key)
    n, unmasked = (x.sum(-1, dtype=torch.int32) for x in (some, full))
    # the last key's block first; among visited blocks those that need the mask before those that do not
    later = torch.arange(3 * blocks - 1, 2 * blocks - 1, -1, dtype=torch.int32, device=device)
    rank = torch.add(torch.add(later, some, alpha=-2 * blocks), full, alpha=blocks)
    return torch.stack([n - unmasked, n], -1), rank.argsort(-1).int()


class TooLarge(Exception):
    """Raised where a table or bits take too much memory, so that the values are computed for each pair."""


MOST_BITS = 2**31  # bytes
EMPTY, WHOLE = 0, 1  # slots of the blocks that keep no pair, or all


def block_bits(
    keep: Expr, captured: Mapping[str, Value], at: Lengths, BM: int, BN: int, count: torch.Tensor, blocks: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return bits and slot of `Lists`, for the lists of `block_lists`.

    Waits for the device, to know how many blocks need bits. Raises TooLarge.
    """
    device, n = blocks.device, blocks.shape[-1]
    visit = torch.arange(n, device=device)
    kind = torch.where(visit < count[..., 1:], WHOLE, EMPTY).to(torch.int32)
    slot = torch.empty_like(blocks).scatter_(-1, blocks.long(), kind)
    partial = torch.zeros_like(blocks, dtype=torch.bool).scatter_(-1, blocks.long(), visit < count[..., :1])
    places = partial.nonzero()
    slot[tuple(places.T)] = 2 + torch.arange(len(places), dtype=torch.int32, device=device)
    words = -(-BN // WORD)
    if 4 * (2 + len(places)) * BM * words > MOST_BITS:
        raise TooLarge
    bits = torch.zeros(2 + len(places), BM, words, dtype=torch.int32, device=device)
    bits[WHOLE] = -1
    values = {**captured, **{name: getattr(at, name) for name in LENGTHS}}
    step = max(1, PAIRS // (BM * BN))
    shifts = torch.arange(WORD, dtype=torch.int32, device=device)
    for first in range(0, len(places), step):
        b, h, m, j = (x.int()[:, None, None] for x in places[first : first + step].T)
        q, k = (
            m * BM + torch.arange(BM, dtype=torch.int32, device=device)[:, None],
            j * BN + torch.arange(BN, dtype=torch.int32, device=device),
        )
        mask = (
            torch.as_tensor(evaluate(keep, {**values, "b": b, "h": h, "q": q, "k": k}), dtype=torch.bool, device=device)
            & (q < at.M)
            & (k < at.N)
        )
        padded = torch.nn.functional.pad(mask.expand(len(b), BM, BN), (0, words * WORD - BN))
        bits[2 + first : 2 + first + len(b)] = (padded.view(len(b), BM, words, WORD).int() << shifts).sum(-1, dtype=torch.int32)
    return bits, slot


def count_kept_pairs(keep: Expr, captured: Mapping[str, Value], at: Lengths, BM: int, BN: int, device: torch.device | str) -> torch.Tensor:
    """Return how many pairs each block keeps: i32 [B or 1, H or 1, tiles, blocks].

    There is at least one tile and one block.
    """
    names = names_read(keep)
    sizes = (at.B if "b" in names else 1, at.H if "h" in names else 1, -(-at.M // BM), -(-at.N // BN))
    counts_by_block = torch.zeros([max(1, n) for n in sizes], dtype=torch.int32, device=device)
    values = {**captured, **{n: getattr(at, n) for n in LENGTHS}}
    units, lengths = (1, 1, BM, BN), (at.B, at.H, at.M, at.N)
    for place in _pieces(sizes, BM, BN):
        spans = {n: (s.start * unit, min(s.stop * unit, end)) for n, s, unit, end in zip("bhqk", place, units, lengths)}
        index = {
            n: torch.arange(*span, dtype=torch.int32, device=device).view([-1 if d == e else 1 for e in range(4)])
            for d, (n, span) in enumerate(spans.items())
        }
        mask = torch.as_tensor(evaluate(keep, {**values, **index}, spans), dtype=torch.bool, device=device)
        counts = [s.stop - s.start for s in place]
        rows, keys = (last - first for first, last in (spans["q"], spans["k"]))
        pairs = mask.expand(counts[0], counts[1], rows, keys)
        if (behind := (counts[3] * BN - keys, counts[2] * BM - rows)) != (0, 0):
            pairs = torch.nn.functional.pad(pairs, (0, behind[0], 0, behind[1]))
        counts_by_block[place] = pairs.view(counts[0], counts[1], counts[2], BM, counts[3], BN).sum((3, 5), dtype=torch.int32)
    return counts_by_block


def _pieces(sizes: tuple[int, int, int, int], BM: int, BN: int) -> Iterator[tuple[slice, slice, slice, slice]]:
    """Yield boxes of batches, heads, tiles and blocks of at most PAIRS pairs, or of one block."""
    remaining = max(1, PAIRS // (BM * BN))
    steps = []
    for size in reversed(sizes):
        steps.append(max(1, min(size, remaining)))
        remaining = max(1, remaining // steps[-1])

    def along(dim: int) -> Iterator[slice]:
        step = steps[3 - dim]
        return (slice(i, min(i + step, sizes[dim])) for i in range(0, sizes[dim], step))

    return ((b, h, m, n) for b in along(0) for h in along(1) for m in along(2) for n in along(3))


def tile_order(count: torch.Tensor, at: Lengths, BM: int) -> torch.Tensor:
    """Return (b, h, m) of the work items, i32 [B * H * tiles, 3].

    `count` has the blocks of each tile, [B or 1, H or 1, tiles]. The query tiles of a head are adjacent, as they read
    the same K and V. The shortest tiles, as many as fill the time that the longest one takes on all SMs, come at the
    end, longest first: so all SMs end together, whatever the counts.
    """
    device, tiles = count.device, -(-at.M // BM)
    units = at.B * at.H * tiles
    if units == 0:
        return torch.zeros(1, 3, dtype=torch.int32, device=device)
    # a tile without blocks stores its zeros
    cost = (count[..., :tiles].expand(at.B, at.H, tiles).reshape(-1) + 1).long()
    workers = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else _WORKERS
    ascending = units - 1 - cost.flip(0).argsort(stable=True)  # of equal ones the last first
    spent = cost[ascending].cumsum(0)
    last = spent <= workers * cost.max()
    place = torch.arange(units, device=device)
    place[ascending] = torch.where(last, 2 * units - place, ascending)
    unit = place.argsort()
    return torch.stack([unit // (at.H * tiles), unit // tiles % at.H, unit % tiles], -1).int()


__all__ = [
    "PAIRS",
    "ColumnLists",
    "Lists",
    "TooLarge",
    "block_bits",
    "block_lists",
    "column_lists_for",
    "count_kept_pairs",
    "exchange_sides",
    "lists_for",
    "tile_order",
]
