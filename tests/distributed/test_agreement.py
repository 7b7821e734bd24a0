"""Ranks that differ, end or stay away are told, within the time-out."""

from __future__ import annotations

import os
import time

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from cuir import create_block_mask
from cuir.distributed import attention_with_sharded_cache, context_parallel_attention, plan_context_parallel, shard_evenly
from tests.distributed.ranks import DIED, run_ranks

OPTIONS = {"backend": "interpret", "verify": "off"}


def make_tensors(length: int = 8, heads: int = 2) -> list[torch.Tensor]:
    return [torch.zeros(1, heads, length, 16, dtype=torch.bfloat16) for _ in range(3)]


def call_differently(what: str) -> None:
    """Call with one difference on rank 1."""
    mesh, odd = init_device_mesh("cpu", (2,)), dist.get_rank() == 1
    reach = 4 if what == "number" and odd else 3
    mask_mod = lambda b, h, q, k: q - k < reach  # noqa: E731
    if what == "code" and odd:
        mask_mod = lambda b, h, q, k: q >= k  # noqa: E731
    tensors = make_tensors(heads=4 if what == "heads" and odd else 2)
    if what == "gradients" and odd:
        tensors[0].requires_grad_()
    mask = create_block_mask(mask_mod, None, None, 16, 16, device="cpu")
    method, scale = "ring" if what == "method" and odd else "gather", 2.0 if what == "scale" and odd else 1.0
    shards = shard_evenly(16, 2) if what == "shards" and odd else None
    context_parallel_attention(*tensors, mesh, block_mask=mask, method=method, scale=scale, shards=shards, **OPTIONS)


def list_refusals() -> list[str]:
    """Return what each difference is told as."""
    messages = []
    for what in ("number", "code", "heads", "gradients", "method", "scale", "shards"):
        try:
            call_differently(what)
            messages.append("nothing")
        except Exception as error:
            messages.append(str(error).splitlines()[0])
    return messages


def test_ranks_that_differ_are_told() -> None:
    for messages in run_ranks(2, list_refusals):
        assert isinstance(messages, list), messages
        words = (
            "mask_mod or score_mod",
            "mask_mod or score_mod",
            "numbers of heads",
            "require gradients",
            "another method",
            "scale",
            "Shards",
        )
        for message, word in zip(messages, words, strict=True):
            assert "error[U422]: rank 1 calls with another" in message and word in message, message
        assert "[2, 2] on rank 0, [4, 4] on rank 1" in messages[2]


def die_before_the_call() -> str:
    """Let rank 1 end before the call; return what rank 0 is told."""
    dist.barrier()
    if dist.get_rank() == 1:
        time.sleep(1.0)  # until the others have left the barrier
        os._exit(DIED)
    began = time.monotonic()
    try:
        context_parallel_attention(*make_tensors(), init_device_mesh("cpu", (2,)), timeout=3.0, **OPTIONS)
    except Exception as error:
        return f"{time.monotonic() - began < 15.0} {error}"
    return "nothing"


def die_in_the_call(where: str) -> str:
    """Let rank 1 end behind the plan, the forward pass, or before a merge of decoding; return what rank 0 is told."""
    mesh = init_device_mesh("cpu", (2,))
    tensors = [x.requires_grad_() for x in make_tensors()]
    plan = plan_context_parallel(*tensors, mesh, method="ring")
    o = context_parallel_attention(*tensors, mesh, plan=plan, **OPTIONS) if where == "backward" else None
    if dist.get_rank() == 1:
        if where == "backward":
            dist.barrier()
            time.sleep(1.0)
        os._exit(DIED)
    if o is not None:
        dist.barrier()
    began = time.monotonic()
    try:
        if o is not None:
            o.sum().backward()
        elif where == "decoding":
            cache = tensors[1].detach().transpose(1, 2).contiguous()
            starts = torch.zeros(1, dtype=torch.int32)
            attention_with_sharded_cache(cache[:, :1], cache, cache, mesh, cache_seqlens=8, starts=starts, **OPTIONS)
        else:
            context_parallel_attention(*tensors, mesh, plan=plan, **OPTIONS)
    except Exception as error:
        return f"{time.monotonic() - began < 15.0} {error}"
    return "nothing"


def test_a_rank_that_died_is_told_to_the_others() -> None:
    before = run_ranks(2, die_before_the_call, seconds=5.0)
    assert "True error[U423]: rank 1 did not take part in the call within 3 s" in str(before[0]) and before[1] == "died"


@pytest.mark.parametrize(
    ("where", "action"),
    [
        ("forward", "an exchange of keys and values"),
        ("backward", "an exchange of keys and values"),
        ("decoding", "the exchange of O and LSE"),
    ],
)
def test_a_rank_that_died_within_a_call_is_told(where: str, action: str) -> None:
    within = run_ranks(2, die_in_the_call, where, seconds=5.0)
    assert f"True error[U423]: {action} failed on rank 0" in str(within[0]) and within[1] == "died"
