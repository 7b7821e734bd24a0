"""Packed sequences over processes give what `varlen_attention` gives of all of them in one."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from cuir import CuirError, create_block_mask, varlen_attention
from cuir.distributed import balance_sequence, context_parallel_attention, pack_mods
from tests.distributed.ranks import run_ranks
from tests.distributed.test_context_parallel import difference

LENGTHS = [5, 0, 9, 1, 7]
OPTIONS = {"backend": "interpret", "verify": "off"}


def keep_near(b, h, q, k, *, N):  # type: ignore[no-untyped-def]
    return (k + b + 4 > q) | (k == N - 1)


def slope(score, b, h, q, k):  # type: ignore[no-untyped-def]
    return score - 0.1 * (q - k) * (h + 1) + 0.2 * b


def compare() -> list[float]:
    """Return the largest differences of O and dQ, dK, dV of causal sequences with a mask and scores."""
    mesh, rank, total = init_device_mesh("cpu", (2,)), dist.get_rank(), sum(LENGTHS)
    cu_seqlens = torch.tensor([0, *LENGTHS]).cumsum(0).int()
    torch.manual_seed(0)
    q, k, v, do = (torch.randn(total, 2, 16, dtype=torch.bfloat16) for _ in range(4))
    whole = [x.clone().requires_grad_() for x in (q, k, v)]
    o = varlen_attention(*whole, cu_seqlens, cu_seqlens, score_mod=slope, block_mask=keep_near, causal=True, **OPTIONS)
    grads = torch.autograd.grad(o, whole, do)

    mask_mod, score_mod = pack_mods(cu_seqlens, total, mask_mod=keep_near, score_mod=slope, causal=True)
    shards = balance_sequence(mask_mod, total, 2, block=4)
    mask = create_block_mask(mask_mod, None, None, total, total, device="cpu")
    own = [shards.split(x.transpose(0, 1)[None], rank).requires_grad_() for x in (q, k, v)]
    out = context_parallel_attention(*own, mesh, block_mask=mask, score_mod=score_mod, shards=shards, **OPTIONS)
    found = out, *torch.autograd.grad(out, own, shards.split(do.transpose(0, 1)[None], rank))
    return [difference(x, shards.split(y.transpose(0, 1)[None], rank)) for x, y in zip(found, (o, *grads), strict=True)]


def test_packed_sequences_over_ranks_are_those_of_one_process() -> None:
    for differences in run_ranks(2, compare):
        assert isinstance(differences, list) and max(differences) < 0.02, differences


def test_bounds_and_mods_that_do_not_fit_are_refused() -> None:
    with pytest.raises(CuirError, match="0 to the 8 tokens"):
        pack_mods(torch.tensor([0, 9]), 8)
    with pytest.raises(CuirError, match="found H or HK"):
        pack_mods(torch.tensor([0, 8]), 8, mask_mod=lambda b, h, q, k, *, H: h < H)
