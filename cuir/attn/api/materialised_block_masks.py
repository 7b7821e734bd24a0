"""Materialised BlockMasks: blocks drop or keep pairs, and the mask_mod decides in partial blocks.

Such a mask is a mask_mod over a small table, one entry for each block, and is transferred, verified and run as any
other mask. Where the blocks drop exactly what the mask_mod drops, the mask_mod alone is used: it may have bounds, and
needs no table.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch.nn.attention.flex_attention import BlockMask

from ...caching import WeakKeyMemo
from ...spec.specification import Lengths, lengths_of
from ..capture.attention_request import Mod
from ..capture.call_inputs import wrong
from ..capture.graph_errors import at_tracing
from ..masks.block_lists import PAIRS, count_kept_pairs
from ..splicing.captured_arguments import Snapshot, State, are_unchanged, memory_of, state_of, take_snapshot
from ..tracing.traced_result import Traced
from .block_masks import LazyBlockMask, mark_steady

MASKS_ARE_CONSTANTS = tuple(map(int, torch.__version__.split(".")[:2])) >= (
    2,
    13,
)  # of a graph: functions that run when it is traced may be given one
DROPPED, MASKED, WHOLE = range(3)  # kinds of blocks
BLOCKS = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")


class BlockMaskFields(NamedTuple):
    """The fields of a BlockMask that an inspection depends on."""

    kv_num_blocks: torch.Tensor
    kv_indices: torch.Tensor
    full_kv_num_blocks: torch.Tensor | None
    full_kv_indices: torch.Tensor | None
    mask_mod: Mod
    seq_lengths: tuple[int, int]
    BLOCK_SIZE: tuple[int, int]


@dataclass
class EquivalentMod:
    """A mask_mod equivalent to a mask.

    `dependencies` has the tensors and numbers on which the choice depends, with their states.
    """

    mod: Mod
    dependencies: tuple[Snapshot, ...] = ()

    def holds(self) -> bool:
        return all(d.holds() for d in self.dependencies)


@dataclass
class InspectedMask:
    """A mask at its last inspection, and the mask_mods chosen for it."""

    fields: BlockMaskFields
    states: tuple[tuple[torch.Tensor, State], ...]  # of the tensors among them
    memory: tuple[object, ...]  # held, so that no other tensor gets its place
    serial: int = field(default_factory=itertools.count().__next__)
    chosen: dict[tuple[Lengths, torch.device], EquivalentMod] = field(default_factory=dict)
    # shapes and device of the call before, and its problem
    last: tuple[tuple[torch.Size, torch.Size, torch.device], tuple[Lengths, torch.device]] | None = None

    def holds(self, mask: BlockMask) -> bool:
        for now, then in zip(_fields(mask), self.fields):
            if now is not then and (isinstance(now, torch.Tensor) or now != then):
                return False
        return are_unchanged(self.states)

    def choice(self, query: torch.Tensor, key: torch.Tensor) -> EquivalentMod | None:
        """Return the mask_mod chosen earlier for the lengths of `query` and `key`, None if none was."""
        problem, last = (query.shape, key.shape, query.device), self.last
        if last is None or last[0] != problem:
            last = self.last = problem, (lengths_of(query, key), query.device)
        return self.chosen.get(last[1])


_STANDING: WeakKeyMemo[BlockMask, InspectedMask] = WeakKeyMemo(
    "flex.inspected_masks", key="the BlockMask object", invalidation="it died, or one of its fields was replaced or written to"
)


def is_materialised(block_mask: BlockMask | None) -> bool:
    """Return True if a mask's blocks are to be read."""
    return block_mask is not None and not (isinstance(block_mask, LazyBlockMask) and block_mask.is_untouched())


def warm(block_mask: BlockMask | None, query: torch.Tensor, key: torch.Tensor) -> tuple[Mod | None, Hashable] | None:
    """Return the cached mask_mod of a mask, and the key that it shares with masks of the same mask_mod.

    Returns None for a mask that is not in the cache.
    """
    if block_mask is None:
        return None, ()
    if isinstance(block_mask, LazyBlockMask):
        request = block_mask.still()
        if request is not None:
            return request.mask_mod, request[1:4]  # B, H and the lengths: all that its shape depends on
    elif not isinstance(block_mask, BlockMask):
        return None
    standing = _STANDING.get(block_mask)
    if standing is None or not standing.holds(block_mask):
        return None
    chosen = standing.choice(query, key)
    return None if chosen is None else (chosen.mod, (standing.serial, chosen.mod is block_mask.mask_mod))


def mask_mod_from_blocks(block_mask: BlockMask, at: Lengths, device: torch.device, alone: Callable[[], Traced]) -> Mod:
    """Return a mask_mod equivalent to a mask with its blocks, for a problem of these lengths.

    Every pair is evaluated once for each mask, data and lengths, which waits for the device. `alone` traces the mask's
    own mask_mod. Raises CuirError U412 for blocks that do not cover all queries.
    """
    standing = _STANDING.get(block_mask)
    if standing is None or not standing.holds(block_mask):
        fields = _fields(block_mask)
        _check(block_mask, at)
        tensors = [t for t in fields if isinstance(t, torch.Tensor)]
        standing = _STANDING[block_mask] = InspectedMask(fields, tuple((t, state_of(t)) for t in tensors), tuple(map(memory_of, tensors)))
    chosen = standing.chosen.get((at, device))
    if chosen is None or not chosen.holds():
        chosen = standing.chosen[at, device] = _choose(block_mask, at, device, alone, chosen)
    return chosen.mod


@at_tracing
def mark_graph_inputs(mask: BlockMask) -> bool:
    """Register a mask's tensors as inputs of a graph, which is not to reuse their memory.

    A mask that the graph makes has no fields yet.
    """
    mark_steady(tuple(t for n in BLOCKS if (t := vars(mask).get(n)) is not None))
    return True


def _fields(mask: BlockMask) -> BlockMaskFields:
    return BlockMaskFields(
        mask.kv_num_blocks,
        mask.kv_indices,
        mask.full_kv_num_blocks,
        mask.full_kv_indices,
        mask.mask_mod,
        mask.seq_lengths,
        mask.BLOCK_SIZE,
    )


def _check(mask: BlockMask, at: Lengths) -> None:
    rows = -(-at.M // mask.BLOCK_SIZE[0])
    for count, indices in ((mask.kv_num_blocks, mask.kv_indices), (mask.full_kv_num_blocks, mask.full_kv_indices)):
        if count is None or indices is None:
            continue
        if count.shape != indices.shape[:-1] or count.shape[:2] != mask.kv_num_blocks.shape[:2]:
            wrong(
                "U412",
                f"the numbers of blocks and their indices disagree: {tuple(count.shape)} and {tuple(indices.shape)}",
                hint="[B, H, rows] and [B, H, rows, columns], the same B and H for whole blocks",
            )
        if count.shape[2] < rows:
            wrong(
                "U412",
                f"the block mask has blocks for {count.shape[2] * mask.BLOCK_SIZE[0]} queries, found {at.M}",
                hint="a slice of a mask is for as many queries: part.seq_lengths = (queries, keys)",
            )


def _choose(
    mask: BlockMask, at: Lengths, device: torch.device, alone: Callable[[], Traced], previous: EquivalentMod | None
) -> EquivalentMod:
    if min(at.M, at.N) == 0:
        return EquivalentMod(mask.mask_mod)
    rows, columns = mask.BLOCK_SIZE
    kinds = block_kinds(mask, -(-at.M // rows), -(-at.N // columns), device)
    dependencies: tuple[Snapshot, ...] = ()
    if min(rows, at.M) * min(columns, at.N) <= PAIRS:
        traced = alone()
        dependencies = tuple(take_snapshot(p.value) for p in traced.parameters if p.value is not None)
        if _agree(kinds, traced, at, rows, columns, device):
            return EquivalentMod(mask.mask_mod, dependencies)
    if previous is not None and previous.mod is not mask.mask_mod:
        return EquivalentMod(previous.mod, dependencies)  # the blocks are as they were
    return EquivalentMod(as_it_stands(kinds, rows, columns, mask.mask_mod), dependencies)


def block_kinds(mask: BlockMask, rows: int, columns: int, device: torch.device | str) -> torch.Tensor:
    """Return the kind of each block: DROPPED, MASKED or WHOLE, i32 [B or 1, H or 1, rows, columns].

    Blocks behind the last key, or before the first (a page that does not exist), hold no key; a block that is listed
    twice counts once.
    """

    def mark_listed_blocks(count: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        count, indices = count.to(device)[:, :, :rows, None], indices.to(device)[:, :, :rows].long()
        counts = (torch.arange(indices.shape[-1], device=device) < count) & (indices >= 0) & (indices < columns)
        places = torch.where(counts, indices, columns)
        return torch.zeros(*indices.shape[:3], columns + 1, dtype=torch.int32, device=device).scatter_(3, places, 1)[..., :columns]

    masked = mark_listed_blocks(mask.kv_num_blocks, mask.kv_indices)
    if mask.full_kv_num_blocks is None or mask.full_kv_indices is None:
        return masked.contiguous()
    whole = mark_listed_blocks(mask.full_kv_num_blocks, mask.full_kv_indices)
    return torch.where(whole > 0, WHOLE, masked * MASKED).int()


def as_it_stands(blocks: torch.Tensor, rows: int, columns: int, mask_mod: Mod) -> Mod:
    """Return the mask_mod of a table of kinds of blocks of [rows, columns] pairs.

    `mask_mod` decides in masked blocks.
    """
    by_batch, by_head = blocks.shape[0] > 1, blocks.shape[1] > 1

    def blockwise(b: torch.Tensor, h: torch.Tensor, q_idx: torch.Tensor, kv_idx: torch.Tensor) -> torch.Tensor:
        # int: constants of the kernel
        kind = blocks[b if by_batch else 0, h if by_head else 0, q_idx // int(rows), kv_idx // int(columns)]
        return (kind == WHOLE) | ((kind == MASKED) & mask_mod(b, h, q_idx, kv_idx))

    return blockwise


def _agree(kinds: torch.Tensor, traced: Traced, at: Lengths, rows: int, columns: int, device: torch.device) -> bool:
    """Return True if the mask_mod keeps nothing of dropped blocks, and all of whole ones."""
    rows, columns = min(rows, at.M), min(columns, at.N)
    queries = (at.M - rows * torch.arange(kinds.shape[2], device=device)).clamp(max=rows)
    keys = (at.N - columns * torch.arange(kinds.shape[3], device=device)).clamp(max=columns)
    pairs = queries[:, None] * keys
    if traced.keep is None:
        return bool((kinds != DROPPED).all())
    values = {p.name: p.on(p.value, device) for p in traced.parameters if p.value is not None}
    kept_counts = count_kept_pairs(traced.keep, values, at, rows, columns, device)
    return not bool((((kinds == DROPPED) & (kept_counts > 0)) | ((kinds == WHOLE) & (kept_counts < pairs))).any())


__all__ = ["MASKS_ARE_CONSTANTS", "as_it_stands", "block_kinds", "is_materialised", "mark_graph_inputs", "mask_mod_from_blocks", "warm"]
