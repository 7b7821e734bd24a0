"""The benchmark of selected blocks: what it selects, and the error that it computes."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
import torch

from benchmarks.selected_blocks import SELECTED, SIZE, compute_error, make_cudnn, select, select_any
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


def test_blocks_of_a_group_differ_where_there_is_no_mask() -> None:
    blocks = select_any(1, 2, 2000, 64, "cpu")
    assert blocks.shape == (1, 2, 32, SELECTED) and blocks.dtype == torch.int32
    assert (blocks.sort(-1).values.diff() > 0).all() and blocks.max() < 32


@pytest.mark.parametrize(("heads", "D", "differentiable"), [((4, 4), 128, True), ((4, 2), 128, False), ((4, 4), 64, False)])
def test_cudnn_gets_a_list_for_each_head(heads: tuple[int, int], D: int, differentiable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls are those that its wheel has; numbers are ours."""
    H, HK = heads
    q, k, v = (torch.randn(1, h, n, D, requires_grad=True).bfloat16() for h, n in ((H, 128), (HK, 1100), (HK, 1100)))
    blocks = select_any(1, HK, 1100, SIZE, "cpu")[:, :, :2]
    taken: list[torch.Tensor] = []

    def forward(q: torch.Tensor, k: Any, v: Any, lists: torch.Tensor, *, sparse_block_size: int, kv_splits: str) -> dict[str, torch.Tensor]:
        taken.append(lists)
        o, lse = selected_attention(
            q, k, v, lists, block_size=sparse_block_size, queries_per_group=SIZE, return_lse=True, backend="interpret", verify="off"
        )
        return {"o_tensor": o, "lse_tensor": lse}

    def backward(
        do: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, lists: torch.Tensor, *, sparse_block_size: int
    ) -> dict[str, torch.Tensor]:
        taken.append(lists)
        return {"dq_tensor": q, "dk_tensor": k, "dv_tensor": v}

    module = types.ModuleType("cudnn.block_sparse_attention")
    module.block_sparse_attention_forward, module.block_sparse_attention_backward = forward, backward  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cudnn", types.ModuleType("cudnn"))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr("benchmarks.selected_blocks.find_spec", lambda name: True)
    o = make_cudnn(q, k, v, blocks, SIZE)()
    assert compute_error(q.detach(), k.detach(), v.detach(), blocks, SIZE, o.detach(), causal=False) < 2e-2
    assert o.requires_grad == differentiable and taken[0].equal(blocks.repeat_interleave(H // HK, 1))
    if differentiable:
        assert all(x.equal(y) for x, y in zip(torch.autograd.grad(o, (q, k, v), torch.ones_like(o)), (q, k, v))) and taken[1] is taken[0]


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.selected_blocks.find_spec", lambda name: None)
    q = torch.zeros(1, 1, 64, 64)
    with pytest.raises(RuntimeError, match="pip install nvidia-cudnn-frontend"):
        make_cudnn(q, q, q, torch.zeros(1, 1, 1, 1).int(), SIZE)
