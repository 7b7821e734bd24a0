"""Lists of selected blocks: sorted, as pairs and inverted, against loops over their entries."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cuir import Lengths
from cuir.attn.masks.selected_blocks import SelectedBlocks, Slots, build_functions, invert_blocks, select_pairs, sort_blocks


@given(st.integers(0, 5), st.integers(0, 6), st.booleans(), st.integers(0, 2**16))
@settings(max_examples=60, deadline=None)
def test_sorted_lists_have_each_block_once(total: int, most: int, counted: bool, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    blocks = torch.randint(-2, total + 2, (1, 2, 3, most), generator=rng)
    counts = torch.randint(0, most + 2, (2, 1, 3), generator=rng) if counted else None
    made = sort_blocks(blocks, total, counts)
    for place in torch.cartesian_prod(torch.arange(2 if counted else 1), torch.arange(2), torch.arange(3)).tolist():
        b, u, g = place
        entries = blocks[0, u, g].tolist()[: None if counts is None else int(counts[b, 0, g])]
        expected = sorted({j for j in entries if 0 <= j < total}, reverse=True)
        assert made.counts[b, u, g] == len(expected) and made.blocks[b, u, g, : len(expected)].tolist() == expected
    assert made.blocks.dtype == made.counts.dtype == torch.int32


def draw(at: Lengths, heads: int, way: Slots, most: int, seed: int) -> SelectedBlocks:
    rng = torch.Generator().manual_seed(seed)
    total = -(-at.N // way.block)
    return sort_blocks(torch.randint(-1, total, (at.B, heads, -(-at.M // way.span), most), generator=rng), total)


@given(
    st.sampled_from([(16, 1, 1, 16), (64, 6, 2, 8), (128, 3, 1, 8), (32, 1, 1, 8)]),
    st.sampled_from([(1, 1, 1), (6, 2, 2), (8, 1, 2), (20, 2, 2)]),
    st.integers(1, 20),
    st.integers(1, 300),
    st.integers(1, 4),
    st.sampled_from([None, 1, 5]),
    st.integers(0, 2**16),
)
@settings(max_examples=60, deadline=None)
def test_every_pair_is_in_one_slot_of_its_block(
    size: tuple[int, int, int, int], heads: tuple[int, int, int], M: int, N: int, most: int, share: int | None, seed: int
) -> None:
    block, span, queries, of_slot = size
    H, HK, HU = heads
    at, way = Lengths(2, H, HK, M, N), Slots(block, span, queries, of_slot, min(block, 64), share=share)
    lists = draw(at, HU, way, most, seed)
    units, slots, ends = invert_blocks(lists, at, way)
    seen = torch.zeros(2, H, M, N, dtype=torch.int32)
    per, cells = H // HU, -(-N // way.keys)
    for x, j, begin, n in units.tolist():
        assert 0 <= n <= way.count_share(at, slots.shape[2])
        for u, first, query in slots[x // HK, x % HK, begin : begin + n].tolist():
            heads_of = slice(u * per + first, u * per + min(per, first + of_slot))
            seen[x // HK, heads_of, query : query + queries, j * way.keys : (j + 1) * way.keys] += 1
    assert torch.equal(seen, select_pairs(*lists, at, block, span).int())
    parts = ends // way.warpgroups
    assert len(parts) == 2 * HK * cells and parts[-1, 1] <= len(units)
    for c, (begin, end) in enumerate(parts.tolist()):
        own = [t for t, (x, j, _, n) in enumerate(units.tolist()) if n and x * cells + j == c]
        assert own == list(range(begin, end))


def test_kernels_mask_all_blocks_of_a_mask_and_else_the_first() -> None:
    from cuir import show
    from cuir.syntax.nodes import Program

    masked, plain = (show(Program(tuple(build_functions(x).values()))) for x in (True, False))
    assert "return n, n" in masked and "return min(n, 1), n" in plain
