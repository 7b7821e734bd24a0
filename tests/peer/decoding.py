"""test_flex_decoding.py: one or few queries over long keys, with grouped heads, broadcast batches, windows and pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo.testing
from torch.nn.attention.flex_attention import noop_mask

from tests.peer.cases import BACKWARD, DECODING, INPUTS, aside, scenario
from tests.peer.judging import close, expect
from tests.peer.mods import DTYPES, FAST, SCORE_MODS, alibi, causal, causal_mask, identity, make_window, rel_bias
from tests.peer.paging import judge_paged, read_pages, reserve
from tests.peer.scores import block_mask
from tests.peer.strides import make_strided
from tests.peer.trial import Trial, attention

B, S, D, HQ, HKV = 4, 2048, 64, 16, 8
HEADS, BATCHES = ((16, 1), (8, 2), (16, 16)), ((3, 1), (5, 1), (8, 1), (16, 1))
MODS = {**SCORE_MODS, "_windowed": "windowed"}  # a window of 1000 of 2048 keys


def mod_of(t: Trial, score_mod: Any) -> Any:
    return make_window(t.part(1000, S)) if score_mod == "windowed" else score_mod


def run_test(
    t: Trial,
    score_mod: Any = None,
    dtype: torch.dtype = torch.float16,
    *,
    b: tuple[int, int] = (B, B),
    heads: tuple[int, int] = (HQ, HKV),
    m: int = 1,
    n: int = 0,
    d: tuple[int, int] = (D, D),
    mask: Any = None,
    over_pages: bool = False,
    plain: bool = True,
    **options: Any,
) -> None:
    """O and LSE of queries [b, h, m, d] over n keys, 2048 if not given; over_pages: and over those of a cache, under the mask of everything."""
    n = n or t.length(S)
    q, kv = (b[0], heads[0], m, d[0]), (b[1], heads[1], n, d[0])
    if plain:
        t.judge(
            attention(mod_of(t, score_mod), mask, enable_gqa=heads[0] != heads[1], return_lse=True, **options), t.qkv(q, kv, dtype, d[1])
        )
    if over_pages:
        judge_paged(t, mod_of(t, score_mod), t.qkv(q, kv, dtype, d[1]), None if plain else mask)


# ---- score mods
@scenario(DECODING, "score mods", gradients=INPUTS, dtype=DTYPES, score_mod=MODS, head_dims=HEADS)
def builtin_score_mods(t: Trial, dtype: torch.dtype, score_mod: Any, head_dims: tuple[int, int]) -> None:
    run_test(t, score_mod, dtype, heads=head_dims, over_pages=True)


@scenario(DECODING, "paged attention", dtype=FAST, score_mod=MODS, head_dims=HEADS, page_size=(64, 128, 256))
def paged_attention_page_size(t: Trial, dtype: torch.dtype, score_mod: Any, head_dims: tuple[int, int], page_size: int) -> None:
    n, offset = t.length(S), torch.tensor(192, device=t.device, dtype=torch.int32)
    mask = block_mask(t, lambda b, h, q, kv: kv <= q + offset, B, 1, 1, n, page_size)
    run_test(t, score_mod, dtype, heads=head_dims, mask=mask, plain=False, over_pages=True)


@scenario(DECODING, "block sizes", gradients=INPUTS, dtype=DTYPES, score_mod=MODS, BLOCK_SIZE=(64, 128, (128, 64)))
def builtin_score_mods_different_block_size(t: Trial, dtype: torch.dtype, score_mod: Any, BLOCK_SIZE: Any) -> None:
    run_test(t, score_mod, dtype, mask=block_mask(t, noop_mask, B, 1, 1, t.length(S), BLOCK_SIZE))


@scenario(DECODING, "score mods", gradients=INPUTS, dtype=FAST)
def tma_decoding(t: Trial, dtype: torch.dtype) -> None:
    run_test(t, alibi(4), dtype, b=(1, 1), heads=(4, 4), n=128, d=(16, 16), kernel_options={"USE_TMA": True})


@scenario(DECODING, "broadcast key batches", gradients=INPUTS, dtype=FAST, head_dims=HEADS, batch_dims=BATCHES, score_mod=MODS)
def kv_batch_broadcast(t: Trial, dtype: torch.dtype, head_dims: Any, batch_dims: Any, score_mod: Any) -> None:
    run_test(t, score_mod, dtype, b=batch_dims, heads=head_dims, mask=block_mask(t, noop_mask, batch_dims[0], 1, 1, t.length(S)))


@scenario(DECODING, "head dims", gradients=INPUTS, score_mod=MODS, dtype=DTYPES, head_dims=((D, D // 2), (D // 2, D)))
def non_equal_head_dims(t: Trial, score_mod: Any, dtype: torch.dtype, head_dims: tuple[int, int]) -> None:
    run_test(t, score_mod, dtype, d=head_dims, over_pages=True)


@scenario(DECODING, "head dims", gradients=INPUTS, head_dim=(17, 24, 94, 121), dtype=FAST)
def non_pow_2_headdim(t: Trial, head_dim: int, dtype: torch.dtype) -> None:
    run_test(t, rel_bias, dtype, m=t.length(S), d=(head_dim, head_dim))


@scenario(DECODING, "head dims", gradients=BACKWARD, dtype=FAST)
def bw_decoding_fails(t: Trial, dtype: torch.dtype) -> None:
    with t.allow_either():  # Triton has no products of 4 elements
        t.judge(attention(identity), t.qkv((2, 2, 8, 4), (2, 2, 128, 4), dtype))


@scenario(DECODING, "grouped heads", gradients=INPUTS, dtype=FAST, score_mod=MODS, head_dims=HEADS)
def head_dependent_mask_mod(t: Trial, dtype: torch.dtype, score_mod: Any, head_dims: tuple[int, int]) -> None:
    local = torch.arange(head_dims[0], device=t.device) % head_dims[0] != 0

    def mask_mod(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return local[h] & (q >= kv)

    run_test(t, score_mod, dtype, heads=head_dims, mask=block_mask(t, mask_mod, 1, head_dims[0], 1, t.length(S)), over_pages=True)


@scenario(DECODING, "grouped heads")
def not_pw_of_two(t: Trial) -> None:
    t.judge(attention(enable_gqa=True), t.qkv((1, 12, 1, 16), (1, 2, 128, 16)))


STRIDES: dict[str, Callable[[int, int, int, int], tuple[tuple[int, ...], int]]] = {
    "input_strides_1": lambda b, h, s, d: ((h * s * d, s * d, d, 1), 997),  # an odd start
    "input_strides_2": lambda b, h, s, d: ((h * d, d, b * h * d, 1), 499),  # positions outermost
    "input_strides_3": lambda b, h, s, d: ((s * (d + 1), b * s * (d + 1), d + 1, 1), 293),  # rows of an odd length
    "input_strides_4": lambda b, h, s, d: ((1, d, (b + 1) * (h + 1) * d, 1), 97),  # batches that overlap
}


@scenario(DECODING, "strides", dtype=FAST, k_s=STRIDES, v_s=STRIDES, head_dims=HEADS)
def strided_inputs(t: Trial, dtype: torch.dtype, k_s: Any, v_s: Any, head_dims: tuple[int, int]) -> None:
    (hq, hkv), n = head_dims, t.length(S)
    q = torch.randn(1, hq, B, D, dtype=dtype, device=t.device).transpose(0, 2)
    k, v = (make_strided(t, (B, hkv, n, D), *s(B, hkv, n, D), dtype, room=4) for s in (k_s, v_s))
    gqa = hq != hkv
    t.close(attention(alibi(8), enable_gqa=gqa), (q, k, v), 0.2)
    mask = block_mask(t, noop_mask, B, 1, 1, n)
    t.close(attention(alibi(8), enable_gqa=gqa), (q, k, v), 0.2, ours=read_pages(alibi(8), mask, k, v, enable_gqa=gqa))


# ---- windows, beside scaled_dot_product_attention
def run_windowed(t: Trial, score_mod: bool, mask: bool, pages: bool) -> None:
    n = t.length(S)
    window = t.part(1000, S)
    mod = make_window(window) if score_mod else None
    result = block_mask(t, lambda b, h, q, kv: kv <= q + window, B if pages else 1, 1, 8, n) if mask else None
    tensors = t.qkv((B, 16, 8, D), (B, 16, n, D), torch.float16)
    dense = torch.ones(n, n, dtype=torch.bool, device=t.device).tril()[window : window + 8]

    def reference(api: Any) -> Callable[..., Any]:
        return lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=dense)

    all_items = block_mask(t, noop_mask, B, 1, 8, n)
    ours = read_pages(mod, result or all_items, *tensors[1:]) if pages else attention(mod, result)
    t.judge(reference, tensors, ours=ours, paged=pages)


@scenario(DECODING, "windows")
def windowed_no_mask_vs_sdpa(t: Trial) -> None:
    run_windowed(t, True, False, False)


@scenario(DECODING, "windows")
def windowed_full_mask_vs_sdpa(t: Trial) -> None:
    run_windowed(t, True, True, False)


@scenario(DECODING, "windows")
def windowed_partial_block_vs_sdpa(t: Trial) -> None:
    run_windowed(t, False, True, False)


@scenario(DECODING, "paged attention")
def windowed_no_mask_vs_sdpa_paged_attention(t: Trial) -> None:
    run_windowed(t, True, False, True)


@scenario(DECODING, "paged attention")
def windowed_full_mask_vs_sdpa_paged_attention(t: Trial) -> None:
    run_windowed(t, True, True, True)


@scenario(DECODING, "paged attention")
def windowed_partial_block_vs_sdpa_paged_attention(t: Trial) -> None:
    run_windowed(t, False, True, True)


# ---- lengths that no block divides
def from_offset(t: Trial, offset: int) -> Callable[..., Any]:
    start = torch.tensor(offset, device=t.device, dtype=torch.int32)
    return lambda b, h, q, kv: kv >= q + start


@scenario(DECODING, "ragged lengths", gradients=INPUTS)
def non_divisible_offset_mask(t: Trial) -> None:
    n = t.length(S) - 3
    run_test(t, n=n, mask=block_mask(t, from_offset(t, t.length(S) // 2 - 3), B, 1, 1, n))


@scenario(DECODING, "ragged lengths", gradients=INPUTS)
def non_divisible_offset_mask_with_captured_buffer(t: Trial) -> None:
    n = t.length(S) - 3
    bias = torch.randn(n, device=t.device, dtype=torch.bfloat16)
    run_test(t, lambda score, b, h, q, kv: score + bias[kv], n=n, mask=block_mask(t, from_offset(t, t.length(S) // 2 - 3), B, 1, 1, n))


@scenario(DECODING, "ragged lengths", gradients=INPUTS)
def non_divisible_multi_token_offset_mask(t: Trial) -> None:
    n = t.length(S) - 3
    run_test(t, m=3, n=n, mask=block_mask(t, from_offset(t, t.length(S) // 2 - 1), B, 1, 3, n))


@scenario(DECODING, "ragged lengths", gradients=INPUTS)
def non_divisible_multi_token_offset_mask_with_captured_buffer(t: Trial) -> None:
    n = t.length(S) - 3
    of_key, of_query = (torch.randn(x, device=t.device, dtype=torch.bfloat16) for x in (n, 3))
    mask = block_mask(t, from_offset(t, t.length(S) // 2 - 3), B, 1, 3, n)
    run_test(t, lambda score, b, h, q, kv: score + of_key[kv] + of_query[q], m=3, n=n, mask=mask)


@scenario(DECODING, "ragged lengths", gradients=INPUTS)
def non_sparse_mulitple_block_size(t: Trial) -> None:
    offset = torch.tensor(192, device=t.device, dtype=torch.int32)
    mask = block_mask(t, lambda b, h, q, kv: kv <= q + offset, 1, 1, 1, 65)
    run_test(t, None, torch.float32, b=(1, 1), heads=(1, 1), n=65, d=(16, 16), mask=mask)
    judge_paged(t, None, t.qkv((1, 1, 1, 16), (1, 1, 65, 16)), mask)


@scenario(DECODING, "block sizes", q_seq_len=(4, 8, 16, 23, 64))
def multi_block_m(t: Trial, q_seq_len: int) -> None:
    mask = block_mask(t, causal_mask, 1, 1, q_seq_len, 128, 16)
    make = attention(mask=mask, enable_gqa=True, kernel_options={"BLOCK_M": 16, "BLOCK_N": 16})
    t.close(make, t.qkv((1, 32, q_seq_len, 128), (1, 8, 128, 128)), 5e-3)


@scenario(DECODING, "block sizes", dtype=FAST)
def larger_block_mask_bug(t: Trial, dtype: torch.dtype) -> None:
    tensors = [3 * x for x in t.qkv((2, 1, 2, 16), dtype=dtype)]
    t.close(attention(mask=block_mask(t, causal_mask, 2, None, 2, 2)), tensors, 5e-3, dynamic=False)


@scenario(DECODING, "dynamic shapes")
def do_not_trigger_dynamic_shapes_on_empty_block_mask(t: Trial) -> None:
    counter = torch._dynamo.testing.CompileCounterWithBackend("inductor" if t.native else "eager")
    call = torch.compile(t.ours.flex_attention, backend=counter)
    for i in range(5):
        q, k, v = t.qkv((B, HQ, 1, D), (B, HQ, t.length(S) + i, D))
        close(call(q, k, v), t.torch_api.flex_attention(q, k, v), 0.2)
        expect(counter.frame_count == min(i + 1, 2), f"{counter.frame_count} graphs after {i + 1} lengths")


@scenario(DECODING, "log-sum-exp", gradients=INPUTS)
def fully_masked_out_rows_0_check_gqa(t: Trial) -> None:
    n = t.length(S)
    mask = block_mask(t, lambda b, h, q, kv: q < n // 2, 1, 1, n, n)
    tensors = t.qkv((B, HQ, n, D), (B, HKV, n, D))
    o, lse = t.judge(attention(mask=mask, enable_gqa=True, return_lse=True), tensors, dynamic=False)
    expect((o[:, :, n // 2 :] == 0).all(), "O is not 0 where a query has no key")
    expect((lse[:, :, n // 2 :] == -torch.inf).all(), "LSE is not -inf where a query has no key")


@scenario(DECODING, "log-sum-exp", gradients=INPUTS, dtype=DTYPES, score_mod={"_identity": identity, "_causal": causal})
def logsumexp_correctness(t: Trial, dtype: torch.dtype, score_mod: Any) -> None:
    q, k, v = t.qkv((B, HKV, HQ // HKV, D), (B, HKV, t.length(S), D), dtype)
    o, lse = t.compile(attention(score_mod, return_lse=True)(t.ours))(q, k, v)
    golden = attention(score_mod, return_lse=True)(t.torch_api)(q.double(), k.double(), v.double())
    expect(lse.dtype == torch.float32, f"LSE is {lse.dtype}")
    close(o, golden[0], 2e-2)
    close(lse, golden[1], 2e-2, "LSE")


@scenario(DECODING, "log-sum-exp", gradients=INPUTS)
def logsumexp_only_return(t: Trial) -> None:
    def make(api: Any) -> Callable[..., Any]:
        flex_attention = api.flex_attention
        return lambda q, k, v: flex_attention(q, k, v, identity, return_lse=True)[1] * 2

    t.judge(make, t.qkv((B, HKV, HQ // HKV, D), (B, HKV, t.length(S), D)), names=("LSE",))


# ---- one step of decoding at positions that differ
@scenario(DECODING, "paged attention", dtype=FAST, score_mod=MODS)
def decode_at_different_input_position(t: Trial, dtype: torch.dtype, score_mod: Any) -> None:
    mod = mod_of(t, score_mod)
    lengths = (5, 98, 47, 194)
    q = t.randn(4, 4, 1, 16, dtype=dtype)
    keys, values = ([t.randn(1, 4, n, 16, dtype=dtype) for n in lengths] for _ in range(2))
    rounds = [(100, 200, 50, 300), (100, 512, 300, 300), (512, 512, 300, 300), (512, 512, 512, 300), (512, 512, 512, 512)]

    def reference(api: Any) -> Callable[..., Any]:
        whole = api.create_block_mask(causal_mask, 4, 1, 512, 512, device=t.device, BLOCK_SIZE=64)

        def call(q: Any, *kv: Any) -> Any:
            steps = []
            for i, n in enumerate(lengths):
                mask = whole._adjust(1, n)
                mask.seq_lengths = (1, n)
                steps.append(api.flex_attention(q[i : i + 1], kv[i], kv[4 + i], mod, mask))
            return torch.cat(steps)

        return call

    def ours(api: Any) -> Callable[..., Any]:
        mask = api.create_block_mask(causal_mask, 4, 1, 512, 512, device=t.device, BLOCK_SIZE=64)
        cache = reserve(32, 64, 4, t.device, rounds)
        stored = [torch.zeros(1, 4, 32 * 64, 16, dtype=dtype, device=t.device) for _ in range(2)]
        for i, n in enumerate(lengths):
            at = torch.arange(n, dtype=torch.int32, device=t.device).view(1, n)
            cache.assign(torch.tensor([i], dtype=torch.int32, device=t.device), at, keys[i], values[i], *stored)
        most = torch.full((4,), 512, device=t.device)
        converted = cache.convert_logical_block_mask(mask, kv_len=most)
        converted.seq_lengths = (1, converted.seq_lengths[1])
        call = attention(cache.get_score_mod(mod, kv_len=most), lambda _: converted)(api)
        return lambda q, *kv: call(q, *stored)

    t.judge(reference, (q, *keys, *values), ours=ours)


aside(DECODING, "reads the graph that make_fx traces", "test_subgraph_respect_decompostion")
