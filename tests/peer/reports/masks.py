"""Public reports about masks: documents, windows, grids, trees, padding, and block masks that are sliced or adjusted."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from tests.peer.judging import expect
from tests.peer.reports.scores import B, D, H, S, qkv
from tests.peer.reports.suite import Attempt, behaviour, report
from tests.peer.trial import Trial, attention


def make_masked(
    t: Trial, mod: Callable[..., Any], m: int = S, n: int = S, b: int | None = None, h: int | None = None, **options: Any
) -> Any:
    """The call under a block mask of `mod` for m queries and n keys."""
    return attention(None, lambda api: api.create_block_mask(mod, b, h, m, n, device=t.device, **options))


@report("pytorch/pytorch#158212", "gradients under a mask made by exec")
def offsets_made_by_exec(t: Trial) -> list[Attempt]:
    attempts, size, w = [], 32, 4
    for offset in (0, 1, 3):
        names: dict[str, Any] = {}
        exec(
            f"def mod(b, h, q_idx, kv_idx):\n"
            f"    return (((q_idx < {size}) & (kv_idx < {size}) & (q_idx > kv_idx - {w})) |\n"
            f"        (({size} <= q_idx) & (kv_idx < {size}) & ((q_idx - {size}) % {w} != {offset})"
            f" & (kv_idx <= ((q_idx - {offset} - {size}) // {w}) * {w} + {offset})) |\n"
            f"        (({size} <= q_idx) & ({size} <= kv_idx) & ((q_idx - {offset} - {size}) // {w} == (kv_idx - {offset} - {size}) // {w})))\n",
            names,
        )
        attempts.append(Attempt(make_masked(t, names["mod"], 2 * size, 2 * size), t.qkv((1, 2, 2 * size, 64))))
    return attempts


@report("pytorch/pytorch#134560", "a mask by batch: & binds before %")
def masks_of_batches(t: Trial) -> list[Attempt]:
    return [Attempt(make_masked(t, lambda b, h, q, k: (q >= k) & b % 2 == 0, b=n), t.qkv((n, H, S, D))) for n in (2, 3)]


@report("pytorch/pytorch#136196", "dense masks that change from step to step")
def dense_masks_of_batches(t: Trial) -> list[Attempt]:
    def at(n: int) -> Attempt:
        keep = torch.rand(n, S, S, device=t.device) > 0.3
        keep[:, :, 0] = True
        return Attempt(make_masked(t, lambda b, h, q, k: keep[b, q, k], b=n), t.qkv((n, H, S, D)))

    return [at(2), at(3)]


@report("meta-pytorch/attention-gym#40", "documents in ten tokens, blocks of ten")
def documents_in_tiny_blocks(t: Trial) -> Attempt:
    ids = torch.tensor([0] * 6 + [1] * 4, device=t.device)
    return Attempt(make_masked(t, lambda b, h, q, k: ids[q] == ids[k], 10, 10, BLOCK_SIZE=(10, 10)), t.qkv((1, 2, 10, 64)))


@report("meta-pytorch/attention-gym#94", "groups of tokens, in a module's method")
def mask_of_a_method(t: Trial) -> Attempt:
    class Model:
        def __init__(self, api: Any) -> None:
            self.api = api

        def mask(self, n: int) -> Any:
            return self.api.create_block_mask(lambda b, h, q, k: q // (8 + 1) >= k // (8 + 1), None, None, n * 9, n * 9, t.device)

    return Attempt(attention(None, lambda api: Model(api).mask(7)), t.qkv((1, 2, 63, D)))


@report("pytorch/pytorch#103749", "padded rows without keys")
def rows_of_padding(t: Trial) -> Attempt:
    lengths = torch.tensor([37, 80], device=t.device)
    return Attempt(make_masked(t, lambda b, h, q, k: (q >= k) & (q < lengths[b]) & (k < lengths[b]), b=B), qkv(t))


@report("pytorch/pytorch#109517", "rows without keys in a drawn mask")
def rows_without_keys(t: Trial) -> Attempt:
    keep = torch.rand(S, S, device=t.device) > 0.5
    keep[10:30] = False
    return Attempt(make_masked(t, lambda b, h, q, k: keep[q, k]), qkv(t, dtype=torch.float16))


@report("pytorch/pytorch#141126", "two block-sparse masks, compiled once")
def two_sparse_masks(t: Trial) -> list[Attempt]:
    first, second = (torch.rand(4, 4, device=t.device) > 0.4 for _ in range(2))
    return [
        Attempt(make_masked(t, lambda b, h, q, k, keep=keep: keep[q // 64, k // 64], 256, 256), t.qkv((1, 2, 256, 16)))
        for keep in (first.fill_diagonal_(True), second.fill_diagonal_(True))
    ]


@report("pytorch/pytorch#139462", "a mask of more keys than there are")
def mask_beyond_the_keys(t: Trial) -> Attempt:
    def make(api: Any) -> Any:
        mask = api.create_block_mask(lambda b, h, q, k: q >= k, 2, None, 128, 256, device=t.device)
        return lambda q, k, v: api.flex_attention(q, k, v, block_mask=mask._adjust(2, 2))

    return Attempt(make, t.qkv((2, 1, 2, 16)))


@report("meta-pytorch/attention-gym#112", "an irregular mask in a tensor")
def mask_of_a_tensor(t: Trial) -> Attempt:
    keep = torch.rand(S, S, device=t.device) > 0.5
    return Attempt(make_masked(t, lambda b, h, q, k: keep[q, k]), qkv(t))


@report("showlab/Show-o#8", "a mask with a default argument")
def images_before_text(t: Trial) -> list[Attempt]:
    def mmu_vit(b: Any, h: Any, q_idx: Any, kv_idx: Any, system_prompt_len: int = 0) -> Any:
        return (q_idx >= kv_idx) | (kv_idx <= system_prompt_len + 1 + 57)

    return [Attempt(make_masked(t, mod), qkv(t)) for mod in (mmu_vit, partial(mmu_vit, system_prompt_len=12))]


@report("pytorch/pytorch#157675", "a mask of each sequence of a batch")
def mask_of_each_sequence(t: Trial) -> Attempt:
    keep = torch.rand(B, 1, S, S, device=t.device) > 0.3
    return Attempt(make_masked(t, lambda b, h, q, k: keep[b, 0, q, k] | (q == k), b=B), qkv(t))


@report("pytorch/pytorch#182593", "the same pairs in full and partial blocks")
def full_or_partial(t: Trial) -> list[Attempt]:
    def of(full: bool) -> Any:
        def make(api: Any) -> Any:
            n = 2
            counts = torch.arange(1, n + 1, dtype=torch.int32, device=t.device).view(1, 1, n)
            indices = torch.arange(n, dtype=torch.int32, device=t.device).expand(1, 1, n, n).contiguous()
            diagonal = torch.arange(n, dtype=torch.int32, device=t.device).view(1, 1, n, 1).expand(1, 1, n, n).contiguous()
            one_block = torch.ones(1, 1, n, dtype=torch.int32, device=t.device)
            lists = (one_block, diagonal, counts - 1, indices) if full else (counts, indices, None, None)
            mask = api.BlockMask.from_kv_blocks(*lists, BLOCK_SIZE=64, mask_mod=lambda b, h, q, k: q >= k, seq_lengths=(128, 128))
            return lambda q, k, v: api.flex_attention(q, k, v, block_mask=mask)

        return make

    return [Attempt(of(full), t.qkv((1, 2, 128, 64))) for full in (True, False)]


@report("pytorch/pytorch#188322", "sparsity in the lists of blocks alone")
def lists_without_a_mod(t: Trial) -> Attempt:
    def make(api: Any) -> Any:
        counts = torch.tensor([[[1, 2]]], dtype=torch.int32, device=t.device)
        indices = torch.tensor([[[[1, 0], [0, 1]]]], dtype=torch.int32, device=t.device)
        mask = api.BlockMask.from_kv_blocks(counts, indices, BLOCK_SIZE=128, seq_lengths=(256, 256))
        return lambda q, k, v: api.flex_attention(q, k, v, block_mask=mask)

    return Attempt(make, t.qkv((1, 2, 256, 64)))


@behaviour(
    "pytorch/pytorch#157543",
    "a mask_mod with an `if` on data",
    why="X121: only the device knows the data; use `torch.where` in place of `if`",
)
def branch_on_data(t: Trial, call: str) -> None:
    ids = torch.arange(S, device=t.device) // 10

    def mod(b: Any, h: Any, q: Any, k: Any) -> Any:
        if ids[q] == ids[k]:
            return q >= k
        return q < 0

    t.expect_refusal(lambda: make_masked(t, mod)(t.ours)(*qkv(t)), "X121")


@report("meta-pytorch/attention-gym#25", "documents between separators, by sums of masks")
def documents_by_separators(t: Trial) -> Attempt:
    tokens = torch.randint(0, 9, (B, S), device=t.device)
    ids, padded = (tokens == 3).cumsum(-1), tokens == 0
    return Attempt(make_masked(t, lambda b, h, q, k: ~padded[b, k] & (ids[b, q] == ids[b, k]) & (q >= k), b=B), qkv(t))


@report("pytorch/pytorch#140363", "a mask by offsets of documents")
def documents_of_one_batch(t: Trial) -> Attempt:
    offsets = torch.tensor([0, 13, 60, S], device=t.device)
    ids = torch.repeat_interleave(torch.arange(3, device=t.device), offsets.diff())
    return Attempt(
        make_masked(t, lambda b, h, q, k: (ids[q] == ids[k]) & (q - offsets[ids[q]] >= k - offsets[ids[k]]), b=1, h=1), t.qkv((1, 1, S, D))
    )


@behaviour("meta-pytorch/attention-gym#19", "a score_mod that writes to a global tensor", why="X120: a kernel only reads what it captures")
def writing_mod(t: Trial, call: str) -> None:
    visits = torch.zeros(S, S, device=t.device)

    def mod(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        visits[q, k] = score
        return score

    t.expect_refusal(lambda: attention(mod)(t.ours)(*qkv(t)), "X120")


@report("pytorch/pytorch#163588", "one query, part of 1000 keys, bf16")
def padded_cross_attention(t: Trial) -> list[Attempt]:
    return [
        Attempt(make_masked(t, lambda b, h, q, k, n=n: k < n, 1, 500), t.qkv((1, 1, 1, 64), (1, 1, 500, 64), torch.bfloat16))
        for n in (50, 290, 295)
    ]


@behaviour(
    "meta-pytorch/attention-gym#70",
    "[b, h, q] of a tensor of one head",
    why="U416: head 1 is outside of the tensor; read the tensor at [b, 0, q]",
    calls=("eager",),
)
def documents_of_one_head(t: Trial, call: str) -> None:
    ids = (torch.arange(S, device=t.device) // 20).expand(B, 1, S).contiguous()
    t.expect_refusal(lambda: make_masked(t, lambda b, h, q, k: ids[b, h, q] == ids[b, h, k], b=B, h=H)(t.ours)(*qkv(t)), "U416")


@report("Dao-AILab/flash-attention#1778", "more queries than keys, causal to the last key")
def more_queries_than_keys(t: Trial) -> Attempt:
    return Attempt(make_masked(t, lambda b, h, q, k: q + 40 - 100 >= k, 100, 40), t.qkv((1, 2, 100, D), (1, 2, 40, D)))


@report("Dao-AILab/flash-attention#2199", "a window of 32 left and 64 right")
def window_of_both_sides(t: Trial) -> Attempt:
    return Attempt(make_masked(t, lambda b, h, q, k: (q - k <= 32) & (k - q <= 64), 129, 129), t.qkv((1, 2, 129, 64), dtype=torch.float16))


@report("huggingface/transformers#39408", "a window that counts the query's own key")
def window_with_itself(t: Trial) -> list[Attempt]:
    return [Attempt(make_masked(t, lambda b, h, q, k, w=w: (q >= k) & (q - k < w)), qkv(t)) for w in (1, 16)]


@report("flashinfer-ai/flashinfer#4452", "a cache shorter than the prompt")
def shorter_cache(t: Trial) -> Attempt:
    return Attempt(
        attention(
            None, lambda api: api.create_block_mask(lambda b, h, q, k: k <= q - 12, None, None, 20, 8, device=t.device), return_lse=True
        ),
        t.qkv((1, 2, 20, 64), (1, 2, 8, 64)),
    )


@report("flashinfer-ai/flashinfer#441", "four speculated tokens over fifteen keys")
def speculated_tokens(t: Trial) -> Attempt:
    tree = [[0], [0, 1], [0, 2], [0, 1, 3]]
    keep = torch.zeros(4, 15, dtype=torch.bool, device=t.device)
    keep[:, :11] = True
    for i, path in enumerate(tree):
        keep[i, [11 + j for j in path]] = True
    return Attempt(make_masked(t, lambda b, h, q, k: keep[q, k], 4, 15), t.qkv((1, 32, 4, 128), (1, 32, 15, 128), torch.bfloat16))


@report("NVIDIA-NeMo/Automodel#3802", "keys out of a table of each query")
def membership_of_keys(t: Trial) -> Attempt:
    member = torch.zeros(B, S, S, dtype=torch.bool, device=t.device)
    member.scatter_(2, torch.randint(0, S, (B, S, 9), device=t.device), True)
    return Attempt(make_masked(t, lambda b, h, q, k: member[b, q, k] & (k <= q), b=B), qkv(t))


@report("pytorch/pytorch#175545", "cache slots in any order, causal by positions")
def slots_in_any_order(t: Trial) -> Attempt:
    positions = torch.stack([torch.randperm(S, device=t.device) for _ in range(B)])
    return Attempt(make_masked(t, lambda b, h, q, k: positions[b, k] <= q + S - 8, 8, S, b=B), t.qkv((B, H, 8, 64), (B, H, S, 64)))


@report("SHI-Labs/NATTEN#203", "dilated neighbourhoods of 32 tokens")
def small_neighbourhoods(t: Trial) -> list[Attempt]:
    def is_neighbour(q: Any, k: Any, n: int, kernel: int, dilation: int) -> Any:
        half = kernel // 2
        group, q, k, size = q % dilation == k % dilation, q // dilation, k // dilation, n // dilation
        centre = q.clamp(half, size - 1 - half)
        return group & ((centre - k).abs() <= half)

    return [
        Attempt(make_masked(t, lambda b, h, q, k: is_neighbour(q, k, 32, 3, 2), 32, 32), t.qkv((1, 2, 32, 64), dtype=torch.float16)),
        Attempt(
            make_masked(t, lambda b, h, q, k: is_neighbour(q // 5, k // 5, 5, 3, 1) & is_neighbour(q % 5, k % 5, 5, 3, 1), 25, 25),
            t.qkv((1, 2, 25, 64), dtype=torch.float16),
        ),
    ]


@report("meta-pytorch/attention-gym#41", "cells see row, column and header")
def rows_and_columns_of_tables(t: Trial) -> Attempt:
    row, column = (torch.randint(0, 6, (B, S), device=t.device) for _ in range(2))
    return Attempt(
        make_masked(t, lambda b, h, q, k: (row[b, q] == row[b, k]) | (column[b, q] == column[b, k]) | (row[b, k] == 0), b=B), qkv(t)
    )


@report("google-research/bigbird: attention.py", "global, window and drawn blocks")
def big_bird(t: Trial) -> Attempt:
    drawn = torch.rand(H, 10, 10, device=t.device) > 0.7
    return Attempt(
        make_masked(t, lambda b, h, q, k: (q < 10) | (k < 10) | ((q // 10 - k // 10).abs() <= 1) | drawn[h, q // 10, k // 10], h=H), qkv(t)
    )


@report("openai/sparse_attention: attention.py", "strided and fixed patterns by heads")
def strided_and_fixed(t: Trial) -> Attempt:
    def mod(b: Any, h: Any, q: Any, k: Any) -> Any:
        strided = ((q - k) < 8) | ((q - k) % 8 == 0)
        fixed = (q // 8 == k // 8) | (k % 8 >= 6)
        return (q >= k) & torch.where(h % 2 == 0, strided, fixed)

    return Attempt(make_masked(t, mod, h=H), qkv(t))


@report("huggingface/transformers: modeling_llama4.py", "causal chunks")
def causal_chunks(t: Trial) -> Attempt:
    return Attempt(make_masked(t, lambda b, h, q, k: (q >= k) & (q // 32 == k // 32)), qkv(t))


@report("huggingface/transformers: modeling_gemma3.py", "images seen whole within a causal window")
def images_within_text(t: Trial) -> Attempt:
    image = torch.full((B, S), -1, device=t.device)
    image[0, 10:30], image[0, 40:60], image[1, 5:25] = 0, 1, 0
    return Attempt(
        make_masked(t, lambda b, h, q, k: ((q >= k) & (q - k < 40)) | ((image[b, q] == image[b, k]) & (image[b, q] >= 0)), b=B), qkv(t)
    )


@report("huggingface/transformers: modeling_qwen2_5_vl.py", "windows of an image by cumulative lengths")
def windows_by_cumulative_lengths(t: Trial) -> Attempt:
    ends = torch.tensor([0, 16, 48, 64, S], device=t.device)
    window = torch.bucketize(torch.arange(S, device=t.device), ends[1:], right=True)
    return Attempt(make_masked(t, lambda b, h, q, k: window[q] == window[k]), qkv(t))


@report("SafeAILab/EAGLE: trees of drafts", "draft trees: tokens see their ancestors")
def tree_of_drafts(t: Trial) -> Attempt:
    parent = torch.tensor([-1, 0, 0, 1, 1, 2, 4], device=t.device)
    ancestor = torch.eye(7, dtype=torch.bool, device=t.device)
    for i in range(1, 7):
        ancestor[i] |= ancestor[parent[i]]
    return Attempt(
        make_masked(t, lambda b, h, q, k: (k < 50) | ancestor[q, (k - 50).clamp(min=0)], 7, 57), t.qkv((1, 4, 7, 64), (1, 4, 57, 64))
    )


@report("MoonshotAI/MoBA: moba_naive.py", "blocks chosen by a gate")
def chosen_blocks(t: Trial) -> Attempt:
    chosen = torch.rand(B, H, S, 10, device=t.device).topk(3).indices
    member = torch.zeros(B, H, S, 10, dtype=torch.bool, device=t.device).scatter_(3, chosen, True)
    return Attempt(make_masked(t, lambda b, h, q, k: (q >= k) & (member[b, h, q, k // 10] | (q // 10 == k // 10)), b=B, h=H), qkv(t))


@report("kuleshov-group/bd3lms: models/dit.py", "block diffusion, noisy and clean blocks")
def block_diffusion(t: Trial) -> Attempt:
    n, size = 48, 8

    def mod(b: Any, h: Any, q: Any, k: Any) -> Any:
        clean_q, clean_k = q >= n, k >= n
        block_q, block_k = torch.where(clean_q, q - n, q) // size, torch.where(clean_k, k - n, k) // size
        diagonal = (block_q == block_k) & (clean_q == clean_k)
        return diagonal | (~clean_q & clean_k & (block_q > block_k)) | (clean_q & clean_k & (block_q >= block_k))

    return Attempt(make_masked(t, mod, 2 * n, 2 * n), t.qkv((1, 2, 2 * n, D)))


@report("FoundationVision/VAR: models/var.py", "scales of an image see those before")
def scales_of_an_image(t: Trial) -> Attempt:
    scale = torch.repeat_interleave(torch.arange(5, device=t.device), torch.tensor([1, 4, 9, 16, 25], device=t.device))
    return Attempt(make_masked(t, lambda b, h, q, k: scale[q] >= scale[k], 55, 55), t.qkv((1, 2, 55, D)))


@report("speechbrain/speechbrain: dynamic chunk training", "chunks of a stream with left context")
def chunks_of_a_stream(t: Trial) -> Attempt:
    return Attempt(make_masked(t, lambda b, h, q, k: (k // 12 <= q // 12) & (k // 12 >= q // 12 - 2)), qkv(t))


@report("zihangdai/xlnet: modeling.py", "a drawn order, without the token itself")
def drawn_order(t: Trial) -> Attempt:
    order = torch.randperm(S, device=t.device)
    return Attempt(make_masked(t, lambda b, h, q, k: order[q] > order[k]), qkv(t))


@behaviour("pytorch/pytorch#143260", "the shape of a sliced block mask")
def shape_of_a_slice(t: Trial, call: str) -> None:
    mask = t.ours.create_block_mask(lambda b, h, q, k: q >= k, None, None, 1024, 1024, device=t.device, BLOCK_SIZE=256)
    torch_mask = t.torch_api.create_block_mask(lambda b, h, q, k: q >= k, None, None, 1024, 1024, device=t.device, BLOCK_SIZE=256)
    expect(mask[:, :, :1].shape == torch_mask[:, :, :1].shape, f"shape {mask[:, :, :1].shape}, PyTorch's {torch_mask[:, :, :1].shape}")
