"""The masks of attention-gym, under the names that generate them there, in shapes like those of its examples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.attention.flex_attention import and_masks, noop_mask, or_masks

from benchmarks.rules.canvas import Place, in_morton_order, in_rows, in_tiles, near, near_tiles
from tests.peer.cases import GYM, scenario
from tests.peer.mods import Mod, causal_mask
from tests.peer.scores import block_mask
from tests.peer.trial import Trial, attention

S, D, H = 256, 64, 4
DTYPES = (torch.float32, torch.float16)
Lengths = tuple[int, int]  # queries, keys


# ---- masks: each gives a mask_mod and the lengths that it is for
def starts_of(lengths: Sequence[int], device: str) -> torch.Tensor:
    return torch.tensor([0, *lengths], device=device).cumsum(0).to(torch.int32)


def documents(lengths: Sequence[int], device: str) -> torch.Tensor:
    """The document of each token."""
    return torch.repeat_interleave(torch.arange(len(lengths), dtype=torch.int32, device=device), torch.tensor(lengths, device=device))


LENGTHS = (70, 3, 90, 1, 92)


def batchify(t: Trial, inner: Mod) -> tuple[Mod, Lengths]:
    size = 48

    def mod(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return (q // size == kv // size) & inner(b, h, q % size, kv % size)

    return mod, (S, S)


def block_diffusion(t: Trial) -> tuple[Mod, Lengths]:
    n, size = 128, 32  # noised tokens, then the clean ones

    def mod(b: Any, h: Any, q: Any, kv: Any) -> Any:
        q_noised, kv_noised = q < n, kv < n
        q_block, kv_block = q % n // size, kv % n // size
        ours = (q_block == kv_block) & (q_noised == kv_noised)
        before = (q_block > kv_block) & q_noised & ~kv_noised
        clean = (q_block >= kv_block) & ~q_noised & ~kv_noised
        return ours | before | clean

    return mod, (2 * n, 2 * n)


def dilated(t: Trial) -> tuple[Mod, Lengths]:
    def mod(b: Any, h: Any, q: Any, kv: Any) -> Any:
        difference = torch.abs(q - kv)
        return (difference <= 40) & (difference % 4 == 0)

    return mod, (S, S)


def of_documents(t: Trial, inner: Mod) -> tuple[Mod, Lengths]:
    starts, ids = starts_of(LENGTHS, t.device), documents(LENGTHS, t.device)

    def mod(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return (ids[q] == ids[kv]) & inner(b, h, q - starts[ids[q]], kv - starts[ids[kv]])

    return mod, (S, S)


def packed_documents(t: Trial) -> tuple[Mod, Lengths]:
    starts, ids = starts_of(LENGTHS, t.device), documents(LENGTHS, t.device)
    return lambda b, h, q, kv: (kv >= starts[ids[q]]) & causal_mask(b, h, q, kv), (S, S)


def flamingo(t: Trial) -> tuple[Mod, Lengths]:
    intervals = torch.tensor([[0, 90], [90, 91], [91, 200], [120, 256]], device=t.device)
    image = torch.repeat_interleave(torch.arange(4, device=t.device), 32)

    def mod(b: Any, h: Any, q: Any, kv: Any) -> Any:
        interval = intervals[image[kv]]
        return (q >= interval[0]) & (q < interval[1])

    return mod, (S, 4 * 32)


def global_window(t: Trial, n: int = S, window: int = 16, places: Sequence[int] = (0, 100)) -> tuple[Mod, Lengths]:
    everywhere = torch.zeros(n, dtype=torch.bool, device=t.device)
    everywhere[list(places)] = True
    return or_masks(lambda b, h, q, kv: (q - kv).abs() <= window, lambda b, h, q, kv: everywhere[q] | everywhere[kv]), (n, n)


def ancestors(parents: Sequence[int], device: str) -> torch.Tensor:
    rows = torch.eye(len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            rows[node] |= rows[parent]
    return rows.to(device)


PARENTS = (-1, 0, 1, 1, 3, 3, 0)


def tree(t: Trial, prefix: int = 100, parents: Sequence[int] = PARENTS) -> tuple[Mod, Lengths]:
    of_node, nodes = ancestors(parents, t.device), len(parents)

    def mod(b: Any, h: Any, q: Any, kv: Any) -> Any:
        node = (kv - prefix).clamp(min=0, max=nodes - 1)
        return (kv < prefix) | ((kv >= prefix) & (kv < prefix + nodes) & of_node[q, node])

    return mod, (nodes, prefix + nodes)


def tree_training(t: Trial) -> tuple[Mod, Lengths]:
    prefix, size, blocks = 96, 16, 6

    def mod(b: Any, h: Any, q: Any, kv: Any) -> Any:
        ours = kv - prefix
        same = (kv >= prefix) & (q // size == ours // size) & (ours % size <= q % size)
        return (kv < prefix) | same

    return mod, (size * blocks, prefix + size * blocks)


def neighbourhood(side: int, kernel: int, place: Place) -> tuple[Mod, Lengths]:
    return near(side, kernel, place), (side * side, side * side)


def prefix_lm(t: Trial) -> tuple[Mod, Lengths]:
    return or_masks(lambda b, h, q, kv: kv < 70, causal_mask), (S, S)


def shared_prefix(t: Trial) -> tuple[Mod, Lengths]:
    lengths = (30, 20, 25, 53, 40, 88)
    starts, ids = starts_of(lengths, t.device), documents(lengths, t.device)
    prefix = torch.tensor([0, 0, 0, 3, 3, 3], device=t.device)

    def mod(b: Any, h: Any, q: Any, kv: Any) -> Any:
        ours = ids[q]
        shared = prefix[ours]
        inside = (kv >= starts[ours]) & causal_mask(b, h, q, kv)
        return inside | ((ours != shared) & (kv >= starts[shared]) & (kv < starts[shared + 1]))

    return mod, (S, S)


def window(t: Trial) -> tuple[Mod, Lengths]:
    return and_masks(lambda b, h, q, kv: q - kv <= 64, causal_mask), (S, S)


def sliding_tiles(t: Trial, canvas: tuple[int, ...], kernel: tuple[int, ...], tile: tuple[int, ...], text: int) -> tuple[Mod, Lengths]:
    """In two dimensions or three; the text follows the canvas."""
    observed = math.prod(canvas)
    return near_tiles(canvas, kernel, tile, observed, text), (observed + text, observed + text)


def spatial(t: Trial, sink: bool) -> tuple[Mod, Lengths]:
    prompt, frames, tokens, multiple = 20, 10, 28, 16
    wide = 2 * tokens // multiple * multiple
    columns = prompt + tokens if sink else prompt
    return lambda b, h, q, kv: (kv < columns) | (q < prompt) | (torch.abs(q - kv) < wide), (prompt + frames * tokens,) * 2


def temporal(t: Trial) -> tuple[Mod, Lengths]:
    prompt, frames, tokens = 20, 10, 28
    wide = 2 * tokens // frames

    def mod(b: Any, h: Any, q: Any, kv: Any) -> Any:
        difference = (q - prompt) % tokens - (kv - prompt) % tokens
        return (kv < prompt) | (q < prompt) | (torch.abs(difference) < wide)

    return mod, (prompt + frames * tokens,) * 2


VSA_TILE, VSA_SIZES = 32, (32, 32, 20, 32, 32, 7)


def choose_tiles(t: Trial, heads: int, top: int = 2, tiles: int = len(VSA_SIZES)) -> torch.Tensor:
    """For each tile of queries the tiles of keys that it sees: i32 [1, heads, tiles, top]."""
    return torch.rand(1, heads, tiles, tiles, device=t.device).topk(top, dim=-1).indices.to(torch.int32).sort(dim=-1).values


def vsa(t: Trial, sizes: Sequence[int] | None, top: int = 2) -> tuple[Mod, Lengths]:
    tiles, n = choose_tiles(t, H, top), VSA_TILE * len(VSA_SIZES)
    real = None if sizes is None else torch.tensor(sizes, device=t.device)

    def mod(b: Any, h: Any, q: Any, kv: Any) -> Any:
        tile = kv // VSA_TILE
        retained = (tiles[b, h, q // VSA_TILE] == tile.unsqueeze(-1)).any(dim=-1)
        return retained if real is None else retained & (kv % VSA_TILE < real[tile])

    return mod, (n, n)


def vsa_map(t: Trial) -> tuple[Mod, Lengths]:
    tiles, n = choose_tiles(t, H), VSA_TILE * len(VSA_SIZES)
    pairs = torch.zeros(1, H, len(VSA_SIZES), len(VSA_SIZES), dtype=torch.bool, device=t.device).scatter_(-1, tiles.long(), True)
    return lambda b, h, q, kv: pairs[b, h, q // VSA_TILE, kv // VSA_TILE], (n, n)


MASKS: dict[str, Callable[[Trial], tuple[Mod, Lengths]]] = {
    "batchify_mask_mod": lambda t: batchify(t, noop_mask),
    "batchify_mask_mod_causal": lambda t: batchify(t, causal_mask),
    "generate_block_diffusion_mask": block_diffusion,
    "causal_mask": lambda t: (causal_mask, (S, S)),
    "generate_dilated_sliding_window": dilated,
    "generate_doc_mask_mod": lambda t: of_documents(t, noop_mask),
    "generate_doc_mask_mod_causal": lambda t: of_documents(t, causal_mask),
    "generate_packed_causal_doc_mask_mod": packed_documents,
    "generate_vision_cross_attention_mask_mod": flamingo,
    "generate_global_sliding_window": global_window,
    "generate_jetspec_tree_causal_mask_mod": tree,
    "generate_jetspec_training_mask_mod": tree_training,
    "generate_natten": lambda t: neighbourhood(16, 5, in_rows(16)),
    "generate_tiled_natten": lambda t: neighbourhood(16, 5, in_tiles(16, 4)),
    "generate_morton_natten": lambda t: neighbourhood(16, 5, in_morton_order),
    "generate_prefix_lm_mask": prefix_lm,
    "generate_shared_prefix_mask_mod": shared_prefix,
    "generate_sliding_window": window,
    "generate_sta_mask_mod_2d": lambda t: sliding_tiles(t, (16, 24), (8, 12), (4, 4), 0),
    "generate_sta_mask_mod_2d_text": lambda t: sliding_tiles(t, (16, 24), (12, 12), (4, 4), 19),
    "generate_sta_mask_mod_3d": lambda t: sliding_tiles(t, (8, 8, 6), (4, 6, 6), (2, 2, 2), 0),
    "generate_sta_mask_mod_3d_text": lambda t: sliding_tiles(t, (8, 8, 6), (6, 4, 2), (2, 2, 2), 19),
    "generate_spatial_head_mask_mod": lambda t: spatial(t, False),
    "generate_spatial_head_mask_mod_attn_sink": lambda t: spatial(t, True),
    "generate_temporal_head_mask_mod": temporal,
    "generate_vsa_mask_mod": lambda t: vsa(t, None),
    "generate_vsa_mask_mod_variable_block_sizes": lambda t: vsa(t, VSA_SIZES),
    "generate_vsa_block_map_mask_mod": vsa_map,
}


@scenario(GYM, "masks", name="attn_gym.masks", mask=MASKS, dtype=DTYPES)
def mask(t: Trial, mask: Any, dtype: torch.dtype) -> None:
    mod, (m, n) = mask(t)
    t.judge(attention(mask=block_mask(t, mod, 1, H, m, n)), t.qkv((1, H, m, D), (1, H, n, D), dtype))
