"""Rules of attention-gym, by their definitions, in shapes like those of its examples at 4096 tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from .canvas import Place, in_morton_order, in_rows, in_tiles, near, near_tiles
from .rule import Mod, Mods, Rule, Size, mask, score


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    """Causal mask."""
    return q >= k


# ---- documents and prefixes
def lengths_of(at: Size, documents: int, seed: int = 0) -> list[int]:
    """Return lengths of documents that fill the positions, from cuts at random places."""
    cuts = torch.randperm(at.length - 1, generator=at.generator(seed))[: documents - 1].sort().values + 1
    return torch.diff(cuts, prepend=torch.tensor([0]), append=torch.tensor([at.length])).tolist()


def starts_and_ids(at: Size, lengths: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return where each document starts, and one past the last; and the document of each position, i32."""
    sizes = torch.tensor([0, *lengths])
    ids = torch.repeat_interleave(torch.arange(len(lengths), dtype=torch.int32), sizes[1:])
    return sizes.cumsum(0).to(torch.int32).to(at.device), ids.to(at.device)


def documents(at: Size, inner: Mod) -> Mods:
    """Documents, with a mask inside of each."""
    starts, ids = starts_and_ids(at, lengths_of(at, 12))
    return mask(lambda b, h, q, k: (ids[q] == ids[k]) & inner(b, h, q - starts[ids[q]], k - starts[ids[k]]))


def packed_documents(at: Size) -> Mods:
    """Causal documents, by their starts."""
    starts, ids = starts_and_ids(at, lengths_of(at, 12))
    return mask(lambda b, h, q, k: (k >= starts[ids[q]]) & causal(b, h, q, k))


def shared_prefix(at: Size) -> Mods:
    """Documents, of which 0 and 4 are prefixes that the three behind each of them see whole."""
    starts, ids = starts_and_ids(at, lengths_of(at, 8))
    prefix = torch.tensor([0, 0, 0, 0, 4, 4, 4, 4], dtype=torch.int32, device=at.device)

    def mod(b: Any, h: Any, q: Any, k: Any) -> Any:
        document = ids[q]
        shared = prefix[document]
        inside = (k >= starts[document]) & causal(b, h, q, k)
        return inside | ((document != shared) & (k >= starts[shared]) & (k < starts[shared + 1]))

    return mask(mod)


def batchified(at: Size) -> Mods:
    """Causal sequences of one length, one behind another."""
    size = at.length // 6 + 1
    return mask(lambda b, h, q, k: (q // size == k // size) & causal(b, h, q % size, k % size))


def prefix_lm(at: Size) -> Mods:
    """Causal mask with a prefix that all see."""
    prefix = at.length // 4
    return mask(lambda b, h, q, k: (k < prefix) | (k <= q))


# ---- windows
def sliding_window(at: Size) -> Mods:
    """Causal window."""
    window = at.length // 8
    return mask(lambda b, h, q, k: (q - k <= window) & (q >= k))


def dilated_window(at: Size) -> Mods:
    """Every fourth position of a window."""
    window, step = at.length // 16, 4

    def mod(b: Any, h: Any, q: Any, k: Any) -> Any:
        distance = torch.abs(q - k)
        return (distance <= window) & (distance % step == 0)

    return mask(mod)


def global_window(at: Size) -> Mods:
    """Window, and positions that see all and are seen by all."""
    window, everywhere = at.length // 32, torch.zeros(at.length, dtype=torch.bool)
    everywhere[torch.randperm(at.length, generator=at.generator(5))[:8]] = True
    everywhere = everywhere.to(at.device)
    return mask(lambda b, h, q, k: ((q - k).abs() <= window) | everywhere[q] | everywhere[k])


def block_diffusion(at: Size) -> Mods:
    """Noised tokens, then the clean ones."""
    n, size = at.length // 2, at.length // 64

    def mod(b: Any, h: Any, q: Any, k: Any) -> Any:
        q_noised, k_noised = q < n, k < n
        q_block, k_block = q % n // size, k % n // size
        same_block = (q_block == k_block) & (q_noised == k_noised)
        return same_block | ((q_block > k_block) & q_noised & ~k_noised) | ((q_block >= k_block) & ~q_noised & ~k_noised)

    return mask(mod)


def images(at: Size) -> Mods:
    """Text that sees the images of its interval."""
    count = 16
    first = torch.randint(at.length - at.length // 8, (count,), generator=at.generator(6)).sort().values
    last = first + torch.randint(at.length // 16, at.length // 2, (count,), generator=at.generator(7))
    first, last = (x.to(torch.int32).to(at.device) for x in (first, last))
    image = torch.repeat_interleave(torch.arange(count, device=at.device), at.length // count)
    return mask(lambda b, h, q, k: (q >= first[image[k]]) & (q < last[image[k]]))


def tree_training(at: Size) -> Mods:
    """Blocks of drafted tokens behind a prefix that all of them see."""
    prefix, size = at.length // 4, 16

    def mod(b: Any, h: Any, q: Any, k: Any) -> Any:
        draft = k - prefix
        return (k < prefix) | ((k >= prefix) & (q // size == draft // size) & (draft % size <= q % size))

    return mask(mod)


# ---- neighbourhoods
def neighbourhood(side: int, kernel: int, place: Place) -> Mods:
    """Square around each query."""
    return mask(near(side, kernel, place))


def kernel_of(at: Size) -> int:
    """Return the size of a neighbourhood."""
    return max(3, at.side // 5 | 1)


def sliding_tiles(canvas: tuple[int, ...], kernel: tuple[int, ...], tile: tuple[int, ...], text: int) -> Mods:
    """Sliding tiles; the text is the end of the canvas."""
    return mask(near_tiles(canvas, kernel, tile, math.prod(canvas) - text, text))


def tiles_2d(at: Size) -> Mods:
    """Sliding tiles of a square."""
    return sliding_tiles((at.side, at.side), (at.side // 4 + 8, at.side // 4 + 8), (8, 8), 0)


def tiles_3d(at: Size, text: int = 0) -> Mods:
    """Sliding tiles of a box."""
    frames, rows, columns = at.box
    return sliding_tiles(
        (frames, rows, columns), (max(4, frames // 2), rows // 2, columns // 2), (4, 4, 4) if at.length > 512 else (2, 2, 2), text
    )


def spatial_heads(at: Size) -> Mods:
    """Window, and a prompt that all see."""
    prompt, frame = at.length // 20, at.length // 17
    wide = 2 * frame // 16 * 16
    return mask(lambda b, h, q, k: (k < prompt) | (q < prompt) | (torch.abs(q - k) < wide))


def temporal_heads(at: Size) -> Mods:
    """Near places of all frames, and a prompt that all see."""
    prompt, frame = at.length // 20, at.length // 17
    wide = 2 * frame // 17

    def mod(b: Any, h: Any, q: Any, k: Any) -> Any:
        distance = (q - prompt) % frame - (k - prompt) % frame
        return (k < prompt) | (q < prompt) | (torch.abs(distance) < wide)

    return mask(mod)


# ---- chosen tiles (video sparse attention)
def choose_tiles(at: Size, tiles: int, top: int) -> torch.Tensor:
    """Return for each tile of queries the tiles of keys that it sees: i32 [1, heads, tiles, top]."""
    return torch.rand(1, at.heads, tiles, tiles, generator=at.generator(8)).topk(top).indices.to(torch.int32).sort().values.to(at.device)


def chosen_tiles(at: Size) -> Mods:
    """Chosen tiles with partly filled ends."""
    size, top = 64, 4
    tiles = choose_tiles(at, at.length // size, top)
    real = (at.draw(9, size // 2, at.length // size) + size // 2 + 1).to(at.device)

    def mod(b: Any, h: Any, q: Any, k: Any) -> Any:
        tile = k // size
        return (tiles[0, h, q // size] == tile.unsqueeze(-1)).any(dim=-1) & (k % size < real[tile])

    return mask(mod)


def map_of_tiles(at: Size) -> Mods:
    """Chosen tiles as a map."""
    size, top = 64, max(4, at.length // 512)
    tiles = choose_tiles(at, at.length // size, top)
    tile_map = torch.zeros(1, at.heads, at.length // size, at.length // size, dtype=torch.bool, device=at.device).scatter_(
        -1, tiles.long(), True
    )
    return mask(lambda b, h, q, k: tile_map[0, h, q // size, k // size])


# ---- scores
def alibi(at: Size) -> Mods:
    """Linear bias of the distance."""
    heads = at.heads
    return score(lambda s, b, h, q, k: s + torch.exp2(-8.0 * (h + 1) / heads) * (k - q))


def softcap(at: Size) -> Mods:
    """Soft cap of scores."""
    cap = 30.0
    return score(lambda s, b, h, q, k: cap * torch.tanh(s / cap))


def activation(at: Size) -> Mods:
    """Activation of scores."""
    return score(lambda s, b, h, q, k: torch.log(torch.nn.functional.softplus(s) + 1.0))


def sandwich(at: Size) -> Mods:
    """Sum of cosines of the distance, causal."""
    rates = 10000.0 ** (-torch.arange(64) / 64)
    distances = torch.arange(1.0 - at.length, at.length)
    bias = torch.cos(distances.abs()[:, None] * rates).sum(-1).to(at.device)
    of_head = (at.heads / (8.0 * torch.arange(1.0, at.heads + 1))).to(at.device)
    before = at.length - 1
    return Mods(causal, lambda s, b, h, q, k: s + bias[q - k + before] * of_head[h])


def graph_distance(at: Size) -> Mods:
    """Learned bias for the distance of two nodes."""
    steps, bias = at.draw(10, 7, at.batch, at.length, at.length), at.normal(11, at.heads, 7)
    return score(lambda s, b, h, q, k: s + bias[h, steps[b, q, k]])


GYM = tuple(
    Rule(name, "attention-gym", mods)
    for name, mods in {
        "causal": lambda at: mask(causal),
        "sliding_window": sliding_window,
        "prefix_lm": prefix_lm,
        "documents": lambda at: documents(at, lambda b, h, q, k: q == q),
        "documents_causal": lambda at: documents(at, causal),
        "documents_packed": packed_documents,
        "documents_shared_prefix": shared_prefix,
        "batchified_causal": batchified,
        "dilated_window": dilated_window,
        "global_window": global_window,
        "block_diffusion": block_diffusion,
        "images": images,
        "tree_training": tree_training,
        "natten": lambda at: neighbourhood(at.side, kernel_of(at), in_rows(at.side)),
        "natten_tiled": lambda at: neighbourhood(at.side, kernel_of(at), in_tiles(at.side, 8)),
        "natten_morton": lambda at: neighbourhood(at.side, kernel_of(at), in_morton_order),
        "sliding_tiles_2d": tiles_2d,
        "sliding_tiles_3d": tiles_3d,
        "sliding_tiles_3d_text": lambda at: tiles_3d(at, at.length // 16),
        "spatial_heads": spatial_heads,
        "temporal_heads": temporal_heads,
        "chosen_tiles": chosen_tiles,
        "map_of_tiles": map_of_tiles,
        "alibi": alibi,
        "softcap": softcap,
        "activation": activation,
        "sandwich_causal": sandwich,
        "graph_distance": graph_distance,
    }.items()
)
