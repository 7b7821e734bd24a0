"""The mods of FlexAttention's tutorial and of attention-gym, written anew in the way that they are written there, with the import changed: as PyTorch computes them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention import flex_attention as torch_flex

import cuir.flex
from cuir import CuirError, create_block_mask, flex_attention
from cuir.flex import and_masks, noop_mask, or_masks

B, H, S, D = 2, 2, 96, 64
Mod = Callable[..., Any]
EXAMPLES: dict[str, Callable[[], tuple[Mod | None, Mod | None]]] = {}  # each gives (score_mod, mask_mod)


def example(make: Callable[[], tuple[Mod | None, Mod | None]]) -> Callable[[], tuple[Mod | None, Mod | None]]:
    EXAMPLES[make.__name__] = make
    return make


def causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return q_idx >= kv_idx


# ---- scores
@example
def latent_attention() -> Any:
    query_rope, key_rope = torch.randn(B, H, S, 8), torch.randn(B, 1, S, 8)
    return lambda score, b, h, q_idx, kv_idx: score + 0.1 * torch.dot(query_rope[b, h, q_idx], key_rope[b, h // H, kv_idx]), None


@example
def log_of_an_activation() -> Any:
    return lambda score, b, h, q_idx, kv_idx: torch.log(torch.nn.functional.gelu(score) + 1.0), None


@example
def tiles_that_each_query_chose() -> Any:
    chosen = torch.randint(0, 4, (B, H, 4, 2))

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (chosen[b, h, q_idx // 24] == (kv_idx // 24).unsqueeze(-1)).any(dim=-1)

    return None, mask_mod


@example
def full() -> Any:
    return lambda score, b, h, q_idx, kv_idx: score, None


@example
def relative_position() -> Any:
    return lambda score, b, h, q_idx, kv_idx: score + (q_idx - kv_idx), None


@example
def relative_position_bias() -> Any:
    bias = torch.randn(2 * S)
    return lambda score, b, h, q_idx, kv_idx: score + bias[q_idx - kv_idx + S], None


@example
def bias_of_each_head() -> Any:
    bias = torch.randn(B, H, S, S, dtype=torch.bfloat16)
    return lambda score, b, h, q_idx, kv_idx: score + bias[b, h, q_idx, kv_idx], None


@example
def alibi() -> Any:
    def generate(heads: int) -> Mod:
        def alibi_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            scale = torch.exp2(-((h + 1) * 8.0 / heads))
            return score + (kv_idx - q_idx) * scale

        return alibi_mod

    return generate(H), causal


@example
def alibi_of_slopes() -> Any:
    slopes = torch.exp2(-torch.arange(1, H + 1) * 8.0 / H)

    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + slopes[h] * (kv_idx - q_idx)

    return score_mod, None


@example
def soft_cap() -> Any:
    def generate(cap: int) -> Mod:
        def tanh_softcap(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            return cap * torch.tanh(score / cap)

        return tanh_softcap

    return generate(20), causal


@example
def causal_by_scores() -> Any:
    return lambda score, b, h, q_idx, kv_idx: torch.where(q_idx >= kv_idx, score, -float("inf")), None


@example
def checkerboard() -> Any:
    def score_mod(score: Any, batch: Any, head: Any, q_idx: Any, kv_idx: Any) -> Any:
        score = torch.where(torch.abs(kv_idx - q_idx) % 2 == 1, score * 0.5, score)
        return torch.where(torch.abs(kv_idx - q_idx) % 2 == 0, score * 2.0, score)

    return score_mod, None


@example
def head_offset() -> Any:
    head_offset = torch.rand(H)
    return lambda score, b, h, q_idx, kv_idx: score * head_offset[h], None


@example
def score_of_two_mods() -> Any:
    first, two = relative_position()[0], soft_cap()[0]

    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return two(first(score, b, h, q_idx, kv_idx), b, h, q_idx, kv_idx)

    return score_mod, None


@example
def buckets_of_t5() -> Any:
    buckets, far = 32, 128
    bias = torch.randn(buckets, H)

    def bucket(distance: Any) -> Any:
        n = torch.clamp(distance, min=0)
        exact = buckets // 2
        large = exact + (torch.log(n.float() / exact + 1e-6) / math.log(far / exact) * (buckets - exact)).to(torch.long)
        return torch.where(n < exact, n, torch.min(large, torch.full_like(large, buckets - 1)))

    return lambda score, b, h, q_idx, kv_idx: score + bias[bucket(q_idx - kv_idx), h], causal


# ---- masks
@example
def causal_mask() -> Any:
    return None, causal


@example
def sliding_window() -> Any:
    window = 30

    def sliding_window_causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        causal_mask = q_idx >= kv_idx
        window_mask = q_idx - kv_idx <= window
        return causal_mask & window_mask

    return None, sliding_window_causal


@example
def sliding_window_by_and_masks() -> Any:
    return None, and_masks(causal, lambda b, h, q_idx, kv_idx: q_idx - kv_idx <= 17)


@example
def dilated_sliding_window() -> Any:
    def generate(window: int, dilation: int) -> Mod:
        def dilated(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            diff = torch.abs(q_idx - kv_idx)
            return (diff <= window) & (diff % dilation == 0) & (q_idx >= kv_idx)

        return dilated

    return None, generate(40, 4)


@example
def prefix_lm() -> Any:
    prefix_length = torch.tensor([20, 50])

    def prefix_mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return kv_idx <= prefix_length[b]

    return None, or_masks(prefix_mask, causal)


@example
def prefix_lm_of_one_length() -> Any:
    def generate(length: int) -> Mod:
        return or_masks(lambda b, h, q_idx, kv_idx: kv_idx < length, causal)

    return None, generate(33)


@example
def documents() -> Any:
    document_id = torch.repeat_interleave(torch.arange(4), torch.tensor([10, 30, 40, 16]))

    def document_causal_mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (q_idx >= kv_idx) & (document_id[q_idx] == document_id[kv_idx])

    return None, document_causal_mask


def offsets_to_doc_ids(offsets: torch.Tensor) -> torch.Tensor:
    counts = offsets[1:] - offsets[:-1]
    return torch.repeat_interleave(torch.arange(len(counts)), counts)


def generate_doc_mask_mod(mask_mod: Mod, offsets: torch.Tensor) -> Mod:
    document_id = offsets_to_doc_ids(offsets)

    def doc_mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        same_doc = document_id[q_idx] == document_id[kv_idx]
        q_logical = q_idx - offsets[document_id[q_idx]]
        kv_logical = kv_idx - offsets[document_id[kv_idx]]
        return same_doc & mask_mod(b, h, q_logical, kv_logical)

    return doc_mask_mod


@example
def documents_of_offsets() -> Any:
    return None, generate_doc_mask_mod(causal, torch.tensor([0, 13, 50, S]))


@example
def documents_with_a_prefix() -> Any:
    prefix = or_masks(lambda b, h, q_idx, kv_idx: kv_idx < 5, causal)
    return None, generate_doc_mask_mod(prefix, torch.tensor([0, 40, S]))


@example
def jagged_sequences() -> Any:
    offsets = torch.tensor([0, 25, 60, S])
    seq_idx = offsets_to_doc_ids(offsets)

    def jagged_score(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        relative = (q_idx - offsets[seq_idx[q_idx]]) - (kv_idx - offsets[seq_idx[kv_idx]])
        return torch.where(seq_idx[q_idx] == seq_idx[kv_idx], score + 0.1 * relative, -float("inf"))

    return jagged_score, None


@example
def lengths_of_each_batch() -> Any:
    seq_len = torch.tensor([60, 96])

    def padding(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (q_idx < seq_len[b]) & (kv_idx < seq_len[b])

    return None, padding


@example
def natten() -> Any:
    width, kernel = 12, 5

    def natten_mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        q_x, q_y = q_idx // width, q_idx % width
        kv_x, kv_y = kv_idx // width, kv_idx % width
        center_x = q_x.clamp(kernel // 2, (S // width - 1) - kernel // 2)
        center_y = torch.clamp(q_y, kernel // 2, (width - 1) - kernel // 2)
        return ((center_x - kv_x).abs() <= kernel // 2) & ((center_y - kv_y).abs() <= kernel // 2)

    return None, natten_mask


@example
def natten_in_tiles() -> Any:
    width, tile = 16, 4

    def order_in_tiles(x: Any) -> tuple[Any, Any]:
        number, inside = x // (tile * tile), x % (tile * tile)
        return (number // (width // tile)) * tile + inside // tile, (number % (width // tile)) * tile + inside % tile

    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        (q_x, q_y), (k_x, k_y) = order_in_tiles(q_idx), order_in_tiles(kv_idx)
        return (abs(q_x - k_x) <= 2) & (abs(q_y - k_y) <= 2)

    return None, mask


@example
def morton_order() -> Any:
    def coordinate(x: Any, shift: int) -> Any:
        x = (x >> shift) & 0x55
        x = (x | (x >> 1)) & 0x33
        return (x | (x >> 2)) & 0x0F

    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (abs(coordinate(q_idx, 0) - coordinate(kv_idx, 0)) <= 2) & (abs(coordinate(q_idx, 1) - coordinate(kv_idx, 1)) <= 2)

    return None, mask


@example
def global_tokens() -> Any:
    is_global = torch.arange(S) % 31 == 0

    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return is_global[q_idx] | is_global[kv_idx] | (torch.abs(q_idx - kv_idx) < 8)

    return None, mask


@example
def transfusion() -> Any:
    offsets, limits = torch.tensor([[10, 50], [20, 70]]), torch.tensor([[30, 60], [35, 96]])

    def image(index: int) -> Mod:
        def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            start, end = offsets[b, index], limits[b, index]
            return (q_idx >= start) & (q_idx < end) & (kv_idx >= start) & (kv_idx < end)

        return mask

    return None, or_masks(causal, *(image(i) for i in range(2)))


@example
def paged() -> Any:
    page = 16
    physical_to_logical = torch.full((B, S // page), -1)
    physical_to_logical[0, [3, 0, 5]], physical_to_logical[1, [1, 4]] = torch.tensor([0, 1, 2]), torch.tensor([0, 1])

    def new_mask_mod(b: Any, h: Any, q_idx: Any, physical_kv_idx: Any) -> Any:
        block, offset = physical_kv_idx // page, physical_kv_idx % page
        logical_block = physical_to_logical[b, block]
        logical = logical_block * page + offset
        live = (logical >= 0) & (logical < 40)
        return torch.where(live, causal(b, h, q_idx + 10, logical), False)

    return None, new_mask_mod


@example
def flamingo() -> Any:
    text_time = (torch.arange(S) // 30).clamp(max=2)
    return None, lambda b, h, q_idx, kv_idx: text_time[q_idx] == kv_idx // 32


@example
def everything_by_noop_mask() -> Any:
    return None, and_masks(noop_mask, causal)


@example
def decoding_with_an_offset() -> Any:
    offset = torch.tensor([9, 40])

    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return q_idx + offset[b] >= kv_idx

    return None, mask


@example
def an_offset_without_dims() -> Any:
    offset = torch.tensor(24)
    return None, lambda b, h, q_idx, kv_idx: q_idx + offset >= kv_idx


@pytest.mark.sweep
@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name: str) -> None:
    torch.manual_seed(0)
    score, mask = EXAMPLES[name]()
    q, k, v = (torch.randn(B, H, S, D).half() for _ in range(3))
    ours = create_block_mask(mask, B, H, S, S, device="cpu") if mask else None
    second = torch_flex.create_block_mask(mask, B, H, S, S, device="cpu") if mask else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected, wanted_lse = torch_flex.flex_attention(q.float(), k.float(), v.float(), score, second, return_lse=True)
    actual = flex_attention(q, k, v, score, ours, return_lse=True, backend="interpret")
    torch.testing.assert_close(actual[0].float(), expected, atol=4e-3, rtol=1e-2)
    torch.testing.assert_close(actual[1], wanted_lse, atol=4e-3, rtol=1e-3)


def test_grouped_query_attention() -> None:
    q, (k, v) = torch.randn(B, 4, S, D).half(), (torch.randn(B, 2, S, D).half() for _ in range(2))
    mask = create_block_mask(causal, B=None, H=None, Q_LEN=S, KV_LEN=S, device="cpu", _compile=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = torch_flex.flex_attention(
            q.float(),
            k.float(),
            v.float(),
            enable_gqa=True,
            block_mask=torch_flex.create_block_mask(causal, None, None, S, S, device="cpu"),
        )
    actual = flex_attention(q, k, v, block_mask=mask, enable_gqa=True, backend="interpret")
    torch.testing.assert_close(actual.float(), expected, atol=4e-3, rtol=1e-2)  # type: ignore[union-attr]


def test_the_tutorials_way_of_compiling() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(flex_attention, dynamic=False, backend="eager")
    q, k, v = (torch.randn(1, H, S, D).half() for _ in range(3))
    mask = create_block_mask(causal, None, None, S, S, device="cpu")
    result = compiled(q, k, v, soft_cap()[0], mask, backend="interpret")
    torch.testing.assert_close(result, flex_attention(q, k, v, soft_cap()[0], mask, backend="interpret"))
    torch._dynamo.reset()


def test_options_of_a_call() -> None:
    q, k, v = (torch.randn(1, H, 40, D).half() for _ in range(3))
    o, lse = flex_attention(q, k, v, None, None, None, False, True, {"BLOCK_M": 64}, backend="interpret")
    repeated, aux = flex_attention(q, k, v, return_aux=torch_flex.AuxRequest(lse=True), backend="interpret")
    assert torch.equal(o, repeated) and torch.equal(lse, aux.lse) and aux.max_scores is None
    assert {"and_masks", "or_masks", "noop_mask", "create_mask"} <= set(dir(cuir.flex))


def test_what_a_mask_tells_of_its_blocks() -> None:
    ours, second = (f(causal, 1, 1, 512, 512, device="cpu") for f in (create_block_mask, torch_flex.create_block_mask))
    assert ours.shape == second.shape == (1, 1, 512, 512) and ours.numel() == second.numel() == 512 * 512
    assert ours.sparsity() == second.sparsity() == 37.5 and ours.to_string() == second.to_string()
    assert torch.equal(ours.to_dense(), second.to_dense()) and ours.to("cpu").shape == ours.shape


def test_what_does_not_work_says_so() -> None:
    """The list of docs/flex_limits.md: long rows, prefix sums of rows, random numbers, functions that kernels lack."""
    long = torch.randn(S, 300)
    q, k, v = (torch.randn(1, H, S, D).half() for _ in range(3))
    mods: list[Mod] = [
        lambda score, b, h, q_idx, kv_idx: score + torch.dot(long[q_idx], long[kv_idx]),
        lambda score, b, h, q_idx, kv_idx: score + long[q_idx].cumsum(0)[kv_idx],
        lambda score, b, h, q_idx, kv_idx: score + torch.rand(()) * torch.sin(score),
        lambda score, b, h, q_idx, kv_idx: torch.lgamma(score),
    ]
    for mod in mods:
        with pytest.raises(CuirError, match="X120"):
            flex_attention(q, k, v, mod, backend="interpret")
