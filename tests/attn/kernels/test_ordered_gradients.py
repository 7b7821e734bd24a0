"""Gradients of captured tensors in deterministic mode: those of the kernels, with no atomic addition."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cuir import create_block_mask, flex_attention
from cuir.attn.kernels import ordered_gradients

B, H, HK, M, N, D = 2, 4, 2, 20, 30, 40


def compute_gradients(deterministic: bool, wanted: str) -> list[torch.Tensor]:
    """Gradients of what a mod captures, of a sink, and of q, k, v, as far as they are wanted."""
    torch.manual_seed(1)
    q, k, v = (torch.randn(B, heads, n, D).half().requires_grad_("q" in wanted) for heads, n in ((H, M), (HK, N), (HK, N)))
    bias, table, slope = (
        torch.randn(N).requires_grad_(),
        torch.randn(H, 64).bfloat16().requires_grad_(),
        torch.tensor(0.5, requires_grad=True),
    )
    sink = torch.randn(H).requires_grad_("s" in wanted)

    def mod(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return torch.tanh(s) * slope + bias[j] + table[h, (i - j).abs()]

    mask = create_block_mask(lambda b, h, i, j: j <= i + 5, None, None, M, N, device="cpu")
    torch.use_deterministic_algorithms(deterministic)
    try:
        o, lse = flex_attention(q, k, v, mod, mask, enable_gqa=True, backend="interpret", verify="off", return_lse=True, sink=sink)
        loss = (o.float() * torch.randn(o.shape)).sum() + 0.3 * lse.sum()
        return list(torch.autograd.grad(loss, [x for x in (bias, table, slope, sink, q, k, v) if x.requires_grad]))
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.sweep(4)
@pytest.mark.parametrize("wanted", ["qs", "q", ""], ids=["all", "no sink", "captured alone"])
@pytest.mark.parametrize("pairs", [2**24, 7 * H * N], ids=["one block", "blocks of queries"])
def test_gradients_are_those_of_the_kernels(wanted: str, pairs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered_gradients, "PAIRS", pairs)
    for ours, kernels in zip(compute_gradients(True, wanted), compute_gradients(False, wanted), strict=True):
        assert ours.dtype == kernels.dtype and ours.shape == kernels.shape
        torch.testing.assert_close(ours.float(), kernels.float(), atol=1e-2 if ours.dtype == torch.bfloat16 else 2e-5, rtol=1e-2)


def test_no_kernel_adds_in_an_open_order(monkeypatch: pytest.MonkeyPatch) -> None:
    from cuir.attn.kernels import autograd

    chosen = list[autograd.Gradients]()
    original = autograd.choose_gradients
    monkeypatch.setattr(autograd, "choose_gradients", lambda *a, **o: chosen.append(original(*a, **o)) or chosen[-1])
    compute_gradients(True, "qs")
    assert chosen and all(g.plan.by_keys is None or not g.plan.by_keys.transferred.gradients for g in chosen)
