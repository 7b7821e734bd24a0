"""attention-gym: its mods under the names that generate them there, and those of its tests that call attention."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.rules.canvas import in_morton_order, in_rows, in_tiles
from tests.peer.cases import BACKWARD, GYM, aside, scenario
from tests.peer.gym_masks import (
    DTYPES,
    VSA_SIZES,
    VSA_TILE,
    D,
    H,
    S,
    block_diffusion,
    choose_tiles,
    global_window,
    neighbourhood,
    tree,
    vsa,
)
from tests.peer.judging import close, expect, same_tensor
from tests.peer.mods import Mod, alibi, causal_mask
from tests.peer.scores import block_mask
from tests.peer.trial import Trial, attention


# ---- mods: each gives a score_mod for heads H and lengths S
def activation(function: Mod) -> Mod:
    return lambda score, b, h, q, kv: torch.log(function(score) + 1.0)


def graph(t: Trial, n: int, b: int = 2) -> torch.Tensor:
    edges = torch.rand(b, n, n, device=t.device) < 3.0 / n
    edges = edges | edges.transpose(1, 2)
    edges.diagonal(dim1=1, dim2=2).zero_()
    return edges


def distances(edges: torch.Tensor, most: int) -> torch.Tensor:
    """Steps between nodes, most + 1 where there are more: i32 [B, N, N]."""
    n = edges.shape[1]
    result = torch.full(edges.shape, most + 1, dtype=torch.int32, device=edges.device)
    reached = torch.eye(n, dtype=torch.bool, device=edges.device).expand_as(edges)
    for steps in range(most + 1):
        result = torch.where(reached & (result > steps), torch.full_like(result, steps), result)
        reached = reached | (reached.float() @ edges.float() > 0)
    return result


def graph_distance(t: Trial) -> Mod:
    bias, steps = t.randn(H, 7), distances(graph(t, S), 5)
    return lambda score, b, h, q, kv: score + bias[h, steps[b, q, kv]]


def graph_edges(t: Trial, most: int = 4, types: int = 3) -> Mod:
    bias, steps = t.randn(H, most, types), distances(graph(t, S), most) % (most + 1)
    kinds = torch.randint(0, types, (2, S, S, most), dtype=torch.int32, device=t.device)
    tables = [bias[:, i] for i in range(most)]

    def mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        length, total = steps[b, q, kv], 0.0
        for i, table in enumerate(tables):
            total = total + torch.where(length > i, table[h, kinds[b, q, kv, i]], 0.0)
        return score + total / torch.clamp(length, min=1)

    return mod


def graph_both(t: Trial) -> Mod:
    first, second = graph_distance(t), graph_edges(t)
    return lambda score, b, h, q, kv: second(first(score, b, h, q, kv), b, h, q, kv)


def latent(t: Trial) -> Mod:
    of_query, of_key = torch.randn(2, H, S, 16, device=t.device) / 4, torch.randn(2, 1, S, 16, device=t.device) / 4
    return lambda score, b, h, q, kv: score + 0.5 * torch.dot(of_query[b, h, q], of_key[b, h // H, kv])


def sandwich(t: Trial) -> Mod:
    pairs = 64
    rates = 10000.0 ** (-torch.arange(pairs, device=t.device) / pairs)
    difference = torch.arange(1.0 - S, S, device=t.device)
    bias = torch.cos(difference.abs()[:, None] * rates).sum(-1)
    of_head = H / (8.0 * torch.arange(1.0, H + 1, device=t.device))
    return lambda score, b, h, q, kv: score + bias[q - kv + S - 1] * of_head[h]


@functools.cache
def approximate_tanh() -> Any:
    """An operator of the user's own, as attention-gym registers one for the hardware's tanh."""
    torch.library.define("peer_tests::tanh", "(Tensor x) -> Tensor")
    torch.library.impl("peer_tests::tanh", "CompositeExplicitAutograd", torch.tanh)
    torch.library.register_fake("peer_tests::tanh", torch.tanh)

    class Approximate(torch.autograd.Function):
        @staticmethod
        def forward(x: Any) -> Any:
            return torch.ops.peer_tests.tanh(x)

        @staticmethod
        def setup_context(context: Any, inputs: Any, output: Any) -> None:
            context.save_for_backward(output)

        @staticmethod
        def backward(context: Any, up: Any) -> Any:
            return up * (1 - context.saved_tensors[0] ** 2)

        @staticmethod
        def vmap(info: Any, dims: Any, x: Any) -> Any:
            return torch.tanh(x), 0

    return Approximate.apply


def softcap(tanh: Mod, cap: int = 30) -> Mod:
    return lambda score, b, h, q, kv: cap * tanh(score / cap)


MODS: dict[str, Callable[[Trial], Mod]] = {
    "generate_activation_score_mod": lambda t: activation(torch.nn.functional.gelu),
    "generate_activation_score_mod_softplus": lambda t: activation(torch.nn.functional.softplus),
    "generate_activation_score_mod_relu": lambda t: activation(torch.relu),
    "generate_activation_score_mod_sigmoid": lambda t: activation(torch.sigmoid),
    "generate_alibi_bias": lambda t: alibi(H),
    "generate_graphormer_spatial_bias": graph_distance,
    "generate_graphormer_edge_bias": graph_edges,
    "generate_mla_rope_score_mod": latent,
    "generate_sandwich_bias": sandwich,
    "generate_tanh_softcap": lambda t: softcap(torch.tanh),
    "generate_tanh_softcap_approx": lambda t: softcap(approximate_tanh()),
}


@scenario(GYM, "mods", name="attn_gym.mods", mod=MODS, dtype=DTYPES)
def mod(t: Trial, mod: Any, dtype: torch.dtype) -> None:
    t.judge(attention(mod(t)), t.qkv((2, H, S, D), dtype=dtype))


# ---- its tests that call attention
@scenario(GYM, "tests")
def block_diffusion_flex_matches_sdpa(t: Trial) -> None:
    mod, (m, n) = block_diffusion(t)
    t.judge(attention(mask=block_mask(t, mod, None, None, m, n)), t.qkv((1, 4, n, 64)))


@scenario(GYM, "tests")
def global_sliding_window_flex_matches_sdpa(t: Trial) -> None:
    mod, (m, n) = global_window(t)
    t.judge(attention(mask=block_mask(t, mod, None, None, m, n)), t.qkv((1, 4, n, 64)))


COMPILED = {"eager": False, "compiled": True}


@scenario(GYM, "tests", gradients=BACKWARD, compile_flex=COMPILED)
def graphormer_flex_matches_sdpa_with_learnable_bias_grads(t: Trial, compile_flex: bool) -> None:
    t.judge(attention(graph_distance(t)), t.qkv((2, 4, 128, 64)), compiled=compile_flex)


@scenario(GYM, "tests", gradients=BACKWARD, compile_flex=COMPILED)
def graphormer_edge_bias_flex_matches_sdpa_with_grads(t: Trial, compile_flex: bool) -> None:
    t.judge(attention(graph_edges(t)), t.qkv((2, 4, 128, 64)), compiled=compile_flex)


@scenario(GYM, "tests", gradients=BACKWARD)
def graphormer_combined_spatial_and_edge_bias(t: Trial) -> None:
    t.judge(attention(graph_both(t)), t.qkv((2, 4, 128, 64)))


@scenario(GYM, "tests")
def jetspec_tree_causal_mask_flex_attention_matches_dense_reference_cuda(t: Trial) -> None:
    mod, (m, n) = tree(t, prefix=8)
    t.judge(attention(mask=block_mask(t, mod, 1, 2, m, n)), t.qkv((1, 2, m, 16), (1, 2, n, 16)))


@scenario(GYM, "tests")
def flex_attention_aux_lse_matches_natural_logsumexp_cuda(t: Trial) -> None:
    q, k, v = t.qkv((1, 2, 128, 64), dtype=torch.float16)
    _, aux = t.compile(t.ours.flex_attention)(q, k, v, return_aux=t.ours.AuxRequest(lse=True), kernel_options={"BACKEND": "TRITON"})
    close(aux.lse, torch.logsumexp(q.float() @ k.float().transpose(-2, -1) / 8, dim=-1), 1e-5, "LSE")


@scenario(GYM, "tests", gradients=BACKWARD)
def tanh_approx(t: Trial) -> None:
    tensors = t.qkv((1, 1, 128, 64), dtype=torch.float16)
    for tanh in (torch.tanh, approximate_tanh()):
        t.judge(attention(softcap(tanh)), tensors)


@scenario(GYM, "tests", gradients=BACKWARD)
def natten_masks(t: Trial) -> None:
    side, kernel, tile, heads = (128, 13, 8, 4) if t.native else (16, 5, 4, 2)
    n = side * side
    for at in (in_rows(side), in_tiles(side, tile), in_morton_order):
        mod, _ = neighbourhood(side, kernel, at)
        t.close(attention(mask=block_mask(t, mod, 1, 1, n, n)), t.qkv((2, heads, n, 64), dtype=torch.float16), 2e-2, dynamic=False)


@scenario(GYM, "tests", gradients=BACKWARD)
def sandwich_flex_matches_sdpa_with_grads(t: Trial) -> None:
    t.judge(attention(sandwich(t), block_mask(t, causal_mask, None, None, S, S)), t.qkv((2, H, S, 64)))


def merge(item: Any, one_lse: Any, second: Any, other_lse: Any) -> Any:
    most = torch.maximum(one_lse, other_lse)
    a, b = (torch.exp(lse - most)[..., None] for lse in (one_lse, other_lse))
    return (item * a + second * b) / (a + b)


@scenario(GYM, "tests")
def split_prefix_response_attention_matches_duplicated_causal_cuda(t: Trial) -> None:
    """Causal attention over a prefix and a response, put together of their parts by LSE."""
    q, k, v = t.qkv((1, 2, 256, 64), dtype=torch.float16)
    first, second = slice(0, 128), slice(128, 256)

    def part(rows: slice, columns: slice, mask: Any) -> Any:
        o, aux = t.ours.flex_attention(
            q[:, :, rows], k[:, :, columns], v[:, :, columns], block_mask=mask, return_aux=t.ours.AuxRequest(lse=True)
        )
        return o, aux.lse

    causal = t.ours.create_block_mask(causal_mask, 1, 1, 128, 128, device=t.device, BLOCK_SIZE=128)
    response = merge(*part(second, first, None), *part(second, second, causal))
    o = torch.cat([part(first, first, causal)[0], response], dim=2)
    close(o, attention(mask=block_mask(t, causal_mask, 1, 1, 256, 256))(t.torch_api)(q, k, v), 3e-3)


def causal_by_blocks(api: Any, b: int, h: int, m: int, n: int, size: int, device: str, separate: bool = True) -> Any:
    """A causal block mask made of block counts alone: no pair is looked at."""
    rows, columns = -(-m // size), -(-n // size)
    row = torch.arange(rows, device=device, dtype=torch.int32)
    column = torch.arange(columns, device=device, dtype=torch.int32)
    last = torch.clamp((row + 1) * size - 1, max=n - 1)
    on_diagonal = row < columns
    whole_too = on_diagonal & (row * size >= last)  # the diagonal block, where it is one of a single key
    full = row.clamp(max=columns) + whole_too.int()
    partial = (on_diagonal & ~whole_too).int()
    if separate:
        retained = torch.where(column < full[:, None], column, 0)
        diagonal = torch.zeros(rows, columns, dtype=torch.int32, device=device)
        diagonal[:, 0] = torch.where(partial > 0, row, 0)
        lists = (partial, diagonal, full, retained)
    else:
        total = row.clamp(max=columns) + on_diagonal.int()
        lists = (total, torch.where(column < total[:, None], column, 0))
    fields = [x.expand(b, h, *x.shape).contiguous() for x in lists]
    return api.BlockMask.from_kv_blocks(*fields, BLOCK_SIZE=(size, size), mask_mod=causal_mask, seq_lengths=(m, n))


def compare_causal(t: Trial, b: int, h: int, m: int, n: int, size: int) -> None:
    by_hand = causal_by_blocks(t.ours, b, h, m, n, size, t.device)
    result = t.ours.create_block_mask(causal_mask, b, h, m, n, device=t.device, BLOCK_SIZE=size)
    same_tensor(by_hand.to_dense(), result.to_dense(), "to_dense()")
    expect(by_hand.sparsity() == result.sparsity(), f"sparsity() is {by_hand.sparsity()} and {result.sparsity()}")
    expect(by_hand.shape == result.shape, f"the shapes are {by_hand.shape} and {result.shape}")


@scenario(GYM, "causal block masks", seq_len=(128, 256, 512, 232), block_size=(64, 128), batch_size=(1, 2), num_heads=(1, 4))
def causal_block_mask_correctness(t: Trial, seq_len: int, block_size: int, batch_size: int, num_heads: int) -> None:
    compare_causal(t, batch_size, num_heads, seq_len, seq_len, block_size)


@scenario(GYM, "causal block masks", gradients=BACKWARD, seq_len=(256, 232))
def causal_block_mask_with_flex_attention(t: Trial, seq_len: int) -> None:
    make = attention(mask=lambda api: causal_by_blocks(api, 2, 4, seq_len, seq_len, 128, t.device))
    t.judge(make, t.qkv((2, 4, seq_len, 64)), compiled=False)


@scenario(GYM, "causal block masks", separate_full_blocks={"True": True, "False": False})
def separate_full_blocks_option(t: Trial, separate_full_blocks: bool) -> None:
    mask = causal_by_blocks(t.ours, 1, 1, 256, 256, 64, t.device, separate_full_blocks)
    expect((mask.full_kv_num_blocks is not None) == separate_full_blocks, "full blocks are there or not")
    expect((mask.to_dense()[0, 0].triu(1) == 0).all(), "a block above the diagonal is kept")


@scenario(GYM, "causal block masks")
def causal_block_mask_edge_cases(t: Trial) -> None:
    for m, n in ((100, 150), (32, 32)):
        mask = causal_by_blocks(t.ours, 1, 1, m, n, 64, t.device)
        expect(mask.shape == (1, 1, m, n), f"the shape is {mask.shape}")
        expect(mask.to_dense()[0, 0, 0, 0] == 1, "the first block is not kept")


@scenario(GYM, "causal block masks", lengths=((100, 150), (200, 100), (300, 300)), block_size=(64, 128))
def non_square_sequences(t: Trial, lengths: tuple[int, int], block_size: int) -> None:
    compare_causal(t, 1, 1, *lengths, block_size)


@scenario(GYM, "causal block masks", sizes=((97, 97, 64), (130, 130, 64), (191, 191, 128), (45, 67, 32), (250, 180, 96)))
def non_aligned_sequences(t: Trial, sizes: tuple[int, int, int]) -> None:
    compare_causal(t, 1, 1, *sizes)


@scenario(GYM, "causal block masks")
def cross_attention_sequences(t: Trial) -> None:
    for m, n in ((50, 500), (500, 50), (1, 1000), (1000, 1)):
        compare_causal(t, 1, 1, m, n, 128)


# ---- video sparse attention: tiles of keys that were chosen for each tile of queries
@scenario(GYM, "tests", top_k=(1, 3))
def vsa_flex_attention_matches_dense_masked_reference(t: Trial, top_k: int) -> None:
    tiles, size = torch.rand(1, 2, 4, 5, device=t.device).topk(top_k).indices.to(torch.int32), 4

    def mod(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return (tiles[b, h, q // size] == (kv // size).unsqueeze(-1)).any(dim=-1)

    t.judge(attention(mask=block_mask(t, mod, 1, 2, 16, 20, size)), t.qkv((1, 2, 16, 8), (1, 2, 20, 8)), compiled=False)


@scenario(GYM, "tests")
def vsa_flex_attention_masks_padded_edge_tiles(t: Trial) -> None:
    mod, (m, n) = vsa(t, VSA_SIZES)
    t.judge(attention(mask=block_mask(t, mod, 1, H, m, n, VSA_TILE)), t.qkv((1, H, m, 8), (1, H, n, 8)), compiled=False)


def of_chosen_tiles(t: Trial, tiles: torch.Tensor, columns: int, size: int) -> Callable[[Any], Any]:
    """A mask of blocks that are fully kept, without a mask_mod."""
    rows, top = tiles.shape[2:]

    def make(api: Any) -> Any:
        full = torch.zeros(*tiles.shape[:3], columns, dtype=torch.int32, device=t.device)
        full[..., :top] = tiles
        counts = torch.full(tiles.shape[:3], top, dtype=torch.int32, device=t.device)
        return api.BlockMask.from_kv_blocks(
            torch.zeros_like(counts),
            torch.zeros_like(full),
            counts,
            full,
            BLOCK_SIZE=size,
            mask_mod=None,
            seq_lengths=(rows * size, columns * size),
        )

    return make


@scenario(GYM, "tests", gradients=BACKWARD)
def vsa_flex_attention_backward_cuda_matches_dense_reference(t: Trial) -> None:
    tiles = torch.rand(1, 1, 3, 4, device=t.device).topk(2).indices.to(torch.int32).sort(dim=-1).values

    def mod(b: Any, h: Any, q: Any, kv: Any) -> Any:  # PyTorch's eager call asks the mask_mod alone
        return (tiles[b, h, q // 64] == (kv // 64).unsqueeze(-1)).any(dim=-1)

    ours = attention(mask=of_chosen_tiles(t, tiles, 4, 64), kernel_options={"BACKEND": "TRITON"})
    dense = attention(mask=block_mask(t, mod, 1, 1, 3 * 64, 4 * 64, 64))
    t.judge(dense, t.qkv((1, 1, 3 * 64, 32), (1, 1, 4 * 64, 32)), ours=ours, dynamic=False)


@scenario(GYM, "tests")
def create_vsa_block_mask_matches_mask_mod_blocks(t: Trial) -> None:
    tiles = choose_tiles(t, 1, 2, 4)
    retained = torch.zeros(1, 1, 4, 4, dtype=torch.int32, device=t.device).scatter_(-1, tiles.long(), 1)
    same_tensor(of_chosen_tiles(t, tiles, 4, 2)(t.ours).to_dense(), retained, "to_dense() of blocks")

    def mod(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return (tiles[b, h, q // 2] == (kv // 2).unsqueeze(-1)).any(dim=-1)

    same_tensor(t.ours.create_block_mask(mod, 1, 1, 8, 8, device=t.device, BLOCK_SIZE=2).to_dense(), retained, "to_dense() of a mask_mod")


# ---- its examples that are more than a mask or a mod
@scenario(GYM, "examples", name="examples/rows_guaranteed_safe_demo", rows_safe={"True": True, "False": False})
def rows_guaranteed_safe_demo(t: Trial, rows_safe: bool) -> None:
    """The first query has no key in the first block; the option promises that each has. No NaN may come of it."""
    mod = block_mask(t, lambda b, h, q, kv: ~((q == 0) & (kv < 128)), 1, 1, 128, 256)
    options = {"kernel_options": {"ROWS_GUARANTEED_SAFE": rows_safe, "FORCE_USE_FLEX_ATTENTION": True}}
    t.judge(attention(mask=mod, **options), t.qkv((1, 1, 128, 16), (1, 1, 256, 16), torch.float16), fullgraph=True)


@scenario(GYM, "examples", name="examples/mla")
def mla(t: Trial) -> None:
    """Latent attention in decoding: one key head for all heads, with the product of the rotary parts added by a mod."""
    heads, n = 16, 128
    of_query, of_key = torch.randn(1, heads, 1, 64, device=t.device) / 8, torch.randn(1, 1, n, 64, device=t.device) / 8
    scale = 1 / math.sqrt(192)

    def mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return score + scale * torch.dot(of_query[b, h, q], of_key[b, h // heads, kv])

    q, latent = t.randn(1, heads, 1, 512, dtype=torch.float16), t.randn(1, 1, n, 512, dtype=torch.float16)
    t.judge(attention(mod, enable_gqa=True, scale=scale), (q, latent, latent))


@scenario(GYM, "examples", name="examples/debug_score_mod")
def debug_score_mod(t: Trial) -> None:
    def mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        difference = q - kv
        return torch.where(difference <= 4, score - 1.0, score + difference)

    t.judge(attention(mod), t.qkv((1, 1, 16, 16)), compiled=False)


@scenario(GYM, "examples", name="examples/flex_autotune_replay", dtype=(torch.bfloat16,))
def flex_autotune_replay(t: Trial, dtype: torch.dtype) -> None:
    t.judge(attention(mask=block_mask(t, causal_mask, None, None, S, S)), t.qkv((2, 4, S, 64), dtype=dtype))


aside(
    GYM,
    "its own functions in plain PyTorch: mask_mods on grids of indices, tables of graphs, pooling, merging; neither function is called",
    "test_block_diffusion_matches_reference",
    "test_block_diffusion_structure",
    "test_packed_causal_doc_mask_matches_generic_causal_doc_mask",
    "test_global_sliding_window_matches_reference",
    "test_shortest_path_distances_*",
    "test_shortest_path_edge_types_*",
    "test_build_tree_ancestor_matrix_*",
    "test_jetspec_tree_causal_mask_allows_*",
    "test_jetspec_training_mask_*",
    "test_merge_attention_matches_*",
    "test_sandwich_matches_paper_reference",
    "test_shared_prefix.py",
    "test_vsa.py (9)",
    "test_namespaces.py",
    count=48,
)
aside(
    GYM,
    "FlashAttention-4 through Flex's FLASH backend, which needs its CuTeDSL kernels",
    "test_sandwich_flex_flash_backend",
    "test_vsa_flex_flash_backend_sm100_*",
    count=3,
)
