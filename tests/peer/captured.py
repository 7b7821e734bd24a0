"""Mods that read captured tensors and numbers, and mods of some arithmetic of their own. Most are in both files, for many queries and for one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from tests.peer import decoding, scores
from tests.peer.cases import ATTENTION, BACKWARD, DECODING, INPUTS, scenario
from tests.peer.mods import DTYPES, FAST, NEVER, Mod, causal
from tests.peer.trial import Trial, attention

B, H, S, D = scores.B, scores.H, scores.S, scores.D
HQ = decoding.HQ


def many(t: Trial, mod: Mod, dtype: torch.dtype = torch.float16, *, paged: bool = True) -> None:
    """Shapes of test_flex_attention.py: 256 queries and keys, without and with pages."""
    scores.run_test(t, mod, dtype, paged=paged)


def run_one(t: Trial, mod: Mod, dtype: torch.dtype = torch.float16, *, paged: bool = True) -> None:
    """Shapes of test_flex_decoding.py: one query, 2048 keys."""
    decoding.run_test(t, mod, dtype, over_pages=paged)


def in_both(
    theme: str,
    mod_of: Callable[..., Mod],
    *,
    dtypes: Any = FAST,
    paged: tuple[bool, bool] = (True, True),
    only: str = "",
    fails: bool = False,
) -> None:
    """Enters a mod for both files. mod_of(trial, batches, heads, queries, keys, dtype): the mod, of tensors of these sizes. fails: the original expects it to."""

    def of_many(t: Trial, dtype: torch.dtype) -> None:
        with t.allow_either() if fails else contextlib.nullcontext():
            many(t, mod_of(t, B, H, S, S, dtype), dtype, paged=paged[0])

    def of_one(t: Trial, dtype: torch.dtype) -> None:
        with t.allow_either() if fails else contextlib.nullcontext():
            run_one(t, mod_of(t, decoding.B, HQ, 1, t.length(decoding.S), dtype), dtype, paged=paged[1])

    for file, function, gradients in ((ATTENTION, of_many, BACKWARD), (DECODING, of_one, INPUTS)):
        if only in ("", file):
            function.__name__ = mod_of.__name__
            scenario(file, theme, gradients=gradients, dtype=dtypes)(function)


def skip_odd_keys(t: Trial, b: int, h: int, m: int, n: int, dtype: torch.dtype) -> Mod:
    return lambda score, b, h, q, kv: torch.where(kv % 2 == 0, score, NEVER)


def function_composition(t: Trial, b: int, h: int, m: int, n: int, dtype: torch.dtype) -> Mod:
    def first(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return score + (q - kv)

    def second(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return torch.where(q <= kv, score, NEVER)

    return lambda score, b, h, q, kv: second(first(score, b, h, q, kv), b, h, q, kv)


def captured_buffers(t: Trial, b: int, h: int, m: int, n: int, dtype: torch.dtype) -> Mod:
    of_head = torch.rand(h, device=t.device, dtype=dtype)
    return lambda score, b, h, q, kv: score + of_head[h]


def captured_buffers_all_dims(t: Trial, b: int, h: int, m: int, n: int, dtype: torch.dtype) -> Mod:
    of_head, of_batch, of_query, of_key = (torch.randn(size, device=t.device) for size in (h, b, m, n))

    def with_keys(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return score + of_key[kv] + of_query[q] + of_head[h] + of_batch[b]

    def without(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return score + of_query[q] + of_batch[b] + of_head[h]

    return with_keys if m == 1 else without


def seq_masking(t: Trial, b: int, h: int, m: int, n: int, dtype: torch.dtype) -> Mod:
    part = torch.arange(n, device=t.device) >= n // 2
    return lambda score, b, h, q, kv: torch.where(part[q] == part[kv], score, NEVER)


def load_from_bias_seq_only(t: Trial, b: int, h: int, m: int, n: int, dtype: torch.dtype) -> Mod:
    bias = torch.randn(m, n, device=t.device, dtype=dtype)
    return lambda score, b, h, q, kv: score + bias[q, kv]


def load_from_bias_seq_batch(t: Trial, b: int, h: int, m: int, n: int, dtype: torch.dtype) -> Mod:
    bias = torch.randn(b, m, n, device=t.device, dtype=dtype)
    return lambda score, b, h, q, kv: score + bias[b, q, kv]


def load_from_bias_head_seq_batch(t: Trial, b: int, h: int, m: int, n: int, dtype: torch.dtype) -> Mod:
    bias = torch.randn(b, h, m, n, device=t.device, dtype=dtype)
    return lambda score, b, h, q, kv: score + bias[b, h, q, kv]


def silu_on_score(t: Trial, b: int, h: int, m: int, n: int, dtype: torch.dtype) -> Mod:
    return lambda score, b, h, q, kv: torch.nn.functional.silu(score)


def padded_dense_causal(t: Trial, b: int, h: int, m: int, n: int, dtype: torch.dtype) -> Mod:
    lengths = torch.arange(b, device=t.device, dtype=torch.int32) + 1  # compared with the score, as in the original

    def pad(inner: Mod) -> Mod:
        return lambda score, b, h, q, kv: torch.where(score <= lengths[b], inner(score, b, h, q, kv), NEVER)

    return pad(causal)


def captured_scale(t: Trial, b: int, h: int, m: int, n: int, dtype: torch.dtype) -> Mod:
    unit = torch.ones((), device=t.device, dtype=torch.int32)
    return lambda score, b, h, q, kv: score + unit


def njt_causal(t: Trial, b: int, h: int, m: int, n: int, dtype: torch.dtype) -> Mod:
    starts = torch.tensor([0, n // 2, 3 * n // 4, n], device=t.device, dtype=torch.int32)
    part = torch.bucketize(torch.arange(n, device=t.device, dtype=torch.int32), starts[1:], right=True).to(torch.int32)

    def of_parts(inner: Mod) -> Mod:
        return lambda score, b, h, q, kv: inner(score, b, h, q - starts[part[q]], kv - starts[part[kv]])

    return of_parts(causal)


def captured_reduction(t: Trial, b: int, h: int, m: int, n: int, dtype: torch.dtype) -> Mod:
    scale = torch.randn(b, 8, device=t.device)
    return lambda score, b, h, q, kv: score + scale[b].sum(dim=-1)


ARITHMETIC, CAPTURED = "arithmetic of mods", "captured tensors"
for theme, mod in (
    (ARITHMETIC, skip_odd_keys),
    (ARITHMETIC, function_composition),
    (CAPTURED, captured_buffers_all_dims),
    (CAPTURED, njt_causal),
):
    in_both(theme, mod, dtypes=DTYPES)
for mod in (seq_masking, load_from_bias_seq_only, load_from_bias_seq_batch, load_from_bias_head_seq_batch, captured_scale):
    in_both(CAPTURED, mod)
in_both(CAPTURED, captured_reduction, paged=(False, False), fails=True)
in_both(CAPTURED, captured_buffers, dtypes=DTYPES, only=DECODING)
in_both(ARITHMETIC, silu_on_score)
in_both(ARITHMETIC, padded_dense_causal, paged=(False, True))


# ---- in test_flex_attention.py alone
def load_rel_bias(t: Trial, b: int, h: int, m: int, n: int, dtype: torch.dtype) -> Mod:
    bias = torch.randn(2 * n, device=t.device, dtype=dtype)
    return lambda score, b, h, q, kv: score + bias[q - kv + n]


def dependent_causal_bidirectional(t: Trial, b: int, h: int, m: int, n: int, dtype: torch.dtype) -> Mod:
    first = torch.randint(0, n, (b,), device=t.device, dtype=torch.int32)
    return lambda score, b, h, q, kv: torch.where(((q <= first[b]) & (kv <= first[b])) | (q >= kv), score, NEVER)


def natten_2d(t: Trial, b: int, h: int, m: int, n: int, dtype: torch.dtype) -> Mod:
    width, window = n // 32, 3

    def mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        rows, columns = q / width - kv / width, q % width - kv % width  # a true division, as in the original
        return torch.where((rows.abs() <= window) | (columns.abs() <= window), score, NEVER)

    return mod


for mod in (load_rel_bias, dependent_causal_bidirectional):
    in_both(CAPTURED, mod, only=ATTENTION)
in_both(ARITHMETIC, natten_2d, only=ATTENTION)


@scenario(ATTENTION, CAPTURED, gradients=BACKWARD)
def doc_mask_sparse(t: Trial) -> None:
    document = torch.zeros(S, dtype=torch.int, device=t.device)

    def mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return torch.where((q >= kv) & (document[q] == document[kv]), score, NEVER)

    many(t, mod)


@scenario(ATTENTION, CAPTURED, gradients=BACKWARD)
def index_multiple(t: Trial) -> None:
    bias = torch.randn(B, S, device=t.device)
    many(t, lambda score, b, h, q, kv: score + bias[b][q])


@scenario(ATTENTION, CAPTURED, gradients=BACKWARD)
def index_weird1(t: Trial) -> None:
    bias = torch.randn(4, B, H, S, device=t.device)
    many(t, lambda score, b, h, q, kv: score + bias[0][b, h][q])


@scenario(ATTENTION, CAPTURED, gradients=BACKWARD)
def index_weird2(t: Trial) -> None:
    bias, index = torch.randn(B, H, 4, S, device=t.device), torch.tensor(0, device=t.device)
    many(t, lambda score, b, h, q, kv: score + bias[b][h][index, q])


def recompile(t: Trial, check: Callable[[Trial, Mod, torch.dtype], None], dtype: torch.dtype) -> None:
    scale, add = torch.ones((), device=t.device, dtype=torch.int32), True

    def mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return score + scale if add else score * scale

    check(t, mod, dtype)
    add = False
    check(t, mod, dtype)


@scenario(ATTENTION, CAPTURED, gradients=BACKWARD, dtype=FAST)
def recompile_changed_score_mod(t: Trial, dtype: torch.dtype) -> None:
    recompile(t, many, dtype)


@scenario(DECODING, CAPTURED, gradients=INPUTS, dtype=FAST)
def recompile_changed_score_mod_(t: Trial, dtype: torch.dtype) -> None:
    recompile(t, run_one, dtype)


@scenario(ATTENTION, CAPTURED, gradients=BACKWARD)
def reduction_unrolled(t: Trial) -> None:
    distance_decay(t, torch.randn(S, 3, device=t.device))


@scenario(ATTENTION, CAPTURED)
def cant_lower_error_message(t: Trial) -> None:
    with t.allow_either():  # Triton's template unrolls no reduction of 256 elements
        distance_decay(t, torch.randn(S, 256, device=t.device))


def distance_decay(t: Trial, positions: torch.Tensor) -> None:
    """Scores that fall off with the distance of positions in space: a sum over the components of a captured row."""
    scales = torch.logspace(0.001, 0.1, H, device=t.device)

    def mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        distance = (positions[q] - positions[kv]).pow(2).sum(-1).sqrt()
        return score * torch.exp(-distance / scales[h])

    many(t, mod, torch.bfloat16, paged=False)


@scenario(ATTENTION, CAPTURED, gradients=BACKWARD)
def causal_block_non_divisible_with_captured_buffer(t: Trial) -> None:
    n = S - 3  # the original makes a score_mod of two captured rows, too, and does not use it
    mask = scores.block_mask(t, lambda b, h, q, kv: q >= kv, B, 1, n, n)
    t.judge(attention(mask=mask), t.qkv((B, H, n, D), dtype=torch.bfloat16))


@scenario(ATTENTION, CAPTURED, gradients=BACKWARD)
def non_divisible_with_captured_buffer(t: Trial) -> None:
    n = S + 3
    factor = torch.randn(n, device=t.device, dtype=torch.bfloat16)
    t.judge(attention(lambda score, b, h, q, kv: score * factor[q]), t.qkv((B, H, n, D), dtype=torch.bfloat16))


@scenario(ATTENTION, CAPTURED)
def upcast_appropriately(t: Trial) -> None:
    mass = torch.ones(1, dtype=torch.float16, device=t.device)
    t.judge(attention(lambda score, b, h, q, kv: score + torch.log(mass[0])), t.qkv((1, 1, 128, 16), dtype=torch.float16))


@scenario(ATTENTION, CAPTURED, gradients=BACKWARD)
def flex_attention_poisoned_rel_logits(t: Trial) -> None:
    n = t.length(1025)
    logits = torch.randn(2, 1, n, n, device=t.device)
    logits[1:] = torch.nan  # behind the batches that there are
    mask = scores.block_mask(t, lambda b, h, q, kv: q >= kv, 1, 1, n, n)
    t.judge(attention(lambda score, b, h, q, kv: score + logits[b, h, q, kv], mask), t.qkv((1, 1, n, 64)))


@scenario(ATTENTION, ARITHMETIC, gradients=BACKWARD)
def flex_attention_poison_mod_fwd(t: Trial) -> None:
    mask = scores.block_mask(t, lambda b, h, q, kv: q >= kv, 1, 1, 257, 257)
    t.judge(attention(lambda score, b, h, q, kv: 1 / score, mask), t.qkv((1, 1, 257, 16)))


@scenario(ATTENTION, ARITHMETIC, gradients=BACKWARD)
def flex_attention_poison_mod_bwd(t: Trial) -> None:
    mask = scores.block_mask(t, lambda b, h, q, kv: q >= kv, 1, 1, 257, 257)
    t.judge(attention(lambda score, b, h, q, kv: torch.where(score > 0, torch.log(score), score), mask), t.qkv((1, 1, 257, 16)))


# ---- settings of inductor that ask for more kernels; the mods are what is left of them
@scenario(ATTENTION, CAPTURED, gradients=BACKWARD)
def max_autotune(t: Trial) -> None:
    many(t, lambda score, b, h, q, kv: score * 2)
    scores.judge_paged(t, lambda score, b, h, q, kv: score * 2, t.qkv((B, H, S, D), (B, H, 64, D), torch.bfloat16))


@scenario(DECODING, CAPTURED, gradients=INPUTS)
def max_autotune_(t: Trial) -> None:
    run_one(t, lambda score, b, h, q, kv: score * 2)
    scores.judge_paged(t, lambda score, b, h, q, kv: score * 2, t.qkv((4, 1, 1, 16), (4, 1, 64, 16), torch.bfloat16))


@scenario(DECODING, CAPTURED, gradients=INPUTS)
def max_autotune_with_captured(t: Trial) -> None:
    run_one(t, captured_buffers_all_dims(t, decoding.B, HQ, 1, t.length(decoding.S), torch.float16))
