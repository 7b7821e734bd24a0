"""The benchmark of selected blocks: what it selects, and the error that it computes."""

from __future__ import annotations

import torch

from benchmarks.selected_blocks import SELECTED, SIZE, compute_error, select
from cuir import selected_attention


def test_selected_blocks_lie_before_their_queries() -> None:
    blocks = select(1, 2, 1000, 8, "cpu")
    assert blocks.shape == (1, 2, 125, SELECTED) and (blocks[..., 0] == 0).all()
    assert (blocks >= 0).all() and (blocks <= ((torch.arange(125) * 8 + 7) // SIZE)[:, None]).all()


def test_the_error_is_that_of_a_dense_mask() -> None:
    q, k, v = (torch.randn(1, h, 200, 64, generator=torch.Generator().manual_seed(h)).half() for h in (2, 1, 1))
    blocks = select(1, 1, 200, 8, "cpu")
    o = selected_attention(q, k, v, blocks, block_size=SIZE, queries_per_group=8, causal=True, backend="interpret", verify="off")
    assert compute_error(q, k, v, blocks, 8, o) < 2e-3 < compute_error(q, k, v, blocks, 8, o + 0.01)
