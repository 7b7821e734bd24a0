"""Score mods over dtypes, shapes, block sizes, broadcast batches, grouped heads and head dims: the large groups of test_flex_attention.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo.testing
from torch.nn.attention.flex_attention import noop_mask

from tests.peer.cases import ATTENTION, BACKWARD, scenario
from tests.peer.judging import expect
from tests.peer.mods import DTYPES, FAST, MASKS_OF_MODS, SCORE_MODS, causal, causal_mask, identity, rel_bias
from tests.peer.paging import judge_paged
from tests.peer.trial import Trial, attention

B, H, S, D = 2, 4, 256, 64
BLOCK_SIZES = (128, 256, (128, 256), (256, 128))
HEADS, BATCHES = ((4, 2), (4, 1)), ((3, 1), (4, 1), (5, 1))


def block_mask(t: Trial, mod: Any, b: int | None, h: int | None, m: int, n: int, size: Any = 128) -> Callable[[Any], Any]:
    """Return the function that makes a block mask of an implementation."""
    return lambda api: api.create_block_mask(mod, b, h, m, n, device=t.device, BLOCK_SIZE=size)


def run_test(
    t: Trial,
    score_mod: Any,
    dtype: torch.dtype,
    q: tuple[int, ...] = (B, H, S, D),
    kv: tuple[int, ...] | None = None,
    *,
    v_dim: int | None = None,
    mask: Any = None,
    paged: bool = False,
    learned: tuple[torch.Tensor, ...] = (),
) -> None:
    """The check that most tests are: under a mask of everything if none is given; paged: over the pages of a cache, too."""
    tensors = t.qkv(q, kv, dtype, v_dim)
    key = tensors[1].shape
    all_items = mask or block_mask(t, noop_mask, q[0], q[1], q[2], key[2])
    t.judge(attention(score_mod, all_items, enable_gqa=q[1] != key[1]), tensors, learned=learned)
    if paged:
        judge_paged(t, score_mod, t.qkv(q, kv, dtype, v_dim), mask)


@scenario(ATTENTION, "score mods", gradients=BACKWARD, dtype=DTYPES, score_mod=SCORE_MODS)
def builtin_score_mods(t: Trial, dtype: torch.dtype, score_mod: Any) -> None:
    run_test(t, score_mod, dtype, paged=True)


@scenario(ATTENTION, "score mods", gradients=BACKWARD, score_mod=SCORE_MODS, dtype=FAST)
def builtin_score_mods_seqlen_lt_default_sparse_block_size(t: Trial, score_mod: Any, dtype: torch.dtype) -> None:
    t.judge(attention(score_mod, kernel_options={"FORCE_USE_FLEX_ATTENTION": True}), t.qkv((B, H, 64, D), dtype=dtype))


@scenario(ATTENTION, "score mods", gradients=BACKWARD, dtype=FAST, score_mod=SCORE_MODS)
def builtin_score_mods_seqlen_lt_custom_sparse_block_size(t: Trial, dtype: torch.dtype, score_mod: Any) -> None:
    mask = block_mask(t, causal_mask, 1, 1, 64, 64, 256)
    t.judge(attention(score_mod, mask, kernel_options={"FORCE_USE_FLEX_ATTENTION": True}), t.qkv((B, H, 64, D), dtype=dtype))


@scenario(ATTENTION, "score mods", gradients=BACKWARD, dtype=FAST, score_mod=SCORE_MODS)
def builtin_score_mods_different_seqlen(t: Trial, dtype: torch.dtype, score_mod: Any) -> None:
    run_test(t, score_mod, dtype, (B, H, S // 2, D), (B, H, S, D), paged=True)


@scenario(ATTENTION, "block sizes", gradients=BACKWARD, dtype=DTYPES, score_mod=SCORE_MODS, BLOCK_SIZE=BLOCK_SIZES)
def builtin_score_mods_different_block_size(t: Trial, dtype: torch.dtype, score_mod: Any, BLOCK_SIZE: Any) -> None:
    run_test(t, score_mod, dtype, mask=block_mask(t, noop_mask, B, H, S, S, BLOCK_SIZE))
    judge_paged(t, score_mod, t.qkv((B, H, S, D), dtype=dtype), block_mask(t, noop_mask, B, H, S, S, BLOCK_SIZE))


@scenario(ATTENTION, "broadcast key batches", gradients=BACKWARD, dtype=FAST, batch_dims=BATCHES, head_dims=HEADS, score_mod=SCORE_MODS)
def kv_batch_broadcast(t: Trial, dtype: torch.dtype, batch_dims: Any, head_dims: Any, score_mod: Any) -> None:
    (bq, bkv), (hq, hkv) = batch_dims, head_dims
    run_test(t, score_mod, dtype, (bq, hq, S, D), (bkv, hkv, S, D), mask=block_mask(t, noop_mask, bq, 1, S, S))


@scenario(ATTENTION, "broadcast key batches", gradients=BACKWARD, dtype=FAST, batch_dims=BATCHES, head_dims=HEADS, score_mod=SCORE_MODS)
def kv_batch_broadcast_causal_mask(t: Trial, dtype: torch.dtype, batch_dims: Any, head_dims: Any, score_mod: Any) -> None:
    (bq, bkv), (hq, hkv) = batch_dims, head_dims  # the original leaves score_mod out
    t.judge(
        attention(mask=block_mask(t, causal_mask, bq, 1, S, S), enable_gqa=hq != hkv),
        t.qkv((bq, hq, S, D), (bkv, hkv, S, D), dtype),
    )


@scenario(ATTENTION, "grouped heads", gradients=BACKWARD, dtype=FAST, score_mod=SCORE_MODS)
def GQA(t: Trial, dtype: torch.dtype, score_mod: Any) -> None:
    run_test(t, score_mod, dtype, (B, H * 4, S // 8, D), (B, H, S, D), paged=True)


@scenario(ATTENTION, "grouped heads", gradients=BACKWARD)
def GQA_causal_mask(t: Trial) -> None:
    n, dtype = S // 8, torch.float16
    mask = block_mask(t, causal_mask, B, 1, n, n)
    t.judge(attention(mask=mask, enable_gqa=True), t.qkv((B, H * 4, n, D), (B, H, n, D), dtype))
    judge_paged(t, identity, t.qkv((B, H * 4, n, D), (B, H, n, D), dtype), mask)


@scenario(ATTENTION, "head dims", gradients=BACKWARD, score_mod=SCORE_MODS, dtype=DTYPES, head_dims=((D, D // 2), (D // 2, D)))
def non_equal_head_dims(t: Trial, score_mod: Any, dtype: torch.dtype, head_dims: tuple[int, int]) -> None:
    run_test(t, score_mod, dtype, (B, H, S, head_dims[0]), v_dim=head_dims[1], paged=True)


@scenario(ATTENTION, "head dims", gradients=BACKWARD, head_dim=(17, 24, 94, 121), dtype=FAST)
def non_pow_2_headdim(t: Trial, head_dim: int, dtype: torch.dtype) -> None:
    run_test(t, rel_bias, dtype, (B, H, S, head_dim))


@scenario(ATTENTION, "head dims", gradients=BACKWARD)
def num_warps_8_error(t: Trial) -> None:
    t.judge(attention(identity), t.qkv((B, H, 128, 128), dtype=torch.float16))


# ---- shapes that change from call to call, by one compiled function
def run_dynamic(
    t: Trial, score_mod: Any, mask_mod: Any, shapes: list[tuple[int, ...]], graphs: list[int], dtype: torch.dtype, **options: Any
) -> None:
    """Three shapes in turn. graphs: how many have been compiled after each."""
    counter = torch._dynamo.testing.CompileCounterWithBackend("inductor" if t.native else "eager")
    for shape, compiled in zip(shapes, graphs):
        tensors = t.qkv(shape, dtype=dtype)
        make = attention(score_mod, block_mask(t, mask_mod, 1, 1, shape[2], shape[2]))
        t.judge_found(torch.compile(make(t.ours), backend=counter, **options), make(t.torch_api), tensors)
        expect(counter.frame_count == compiled, f"{counter.frame_count} graphs after shape {shape}, PyTorch has {compiled}")


@scenario(ATTENTION, "dynamic shapes", gradients=BACKWARD, dtype=FAST, score_mask_mod=MASKS_OF_MODS)
def builtin_score_mods_dynamic(t: Trial, dtype: torch.dtype, score_mask_mod: Any) -> None:
    n = 1024  # interpreted, too: 512 would give masks of one block in the end, for which Dynamo makes another graph
    run_dynamic(t, *score_mask_mod, [(B, H, n, D), (B * 2, H, n // 2, D), (B * 2, H, n // 4, D)], [1, 1, 1], dtype, dynamic=True)


@scenario(ATTENTION, "dynamic shapes", dtype=FAST, score_mod=SCORE_MODS)
def builtin_score_mods_automatic_dynamic(t: Trial, dtype: torch.dtype, score_mod: Any) -> None:
    n = 1024
    run_dynamic(t, score_mod, noop_mask, [(B, H, n, D), (B * 2, H, n // 2, D), (B * 4, H, n // 4, D)], [1, 2, 2], dtype, fullgraph=True)


@scenario(ATTENTION, "dynamic shapes", dtype=FAST)
def dynamic_divisibility_guards(t: Trial, dtype: torch.dtype) -> None:
    for n in (256, 255, 383, 384):
        t.judge(attention(causal, block_mask(t, noop_mask, 1, 1, n, n)), t.qkv((2, 4, n, 64), dtype=dtype))


__all__ = ["B", "D", "H", "S", "block_mask", "judge_paged", "run_test"]
