"""Generator of rules: kinds of masks and biases with random parameters, and products of these.

Parameters are drawn from a seed. The same seed gives the same rule everywhere.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from typing import Any

import torch

from .rule import Mod, Mods, Rule, Size

Draw = random.Random
Kind = Callable[[Draw, Size], Mod]


# ---- masks: each draws its parameters and gives a mask_mod
def band(draw: Draw, at: Size) -> Mod:
    """Keys near a line of the slope 1."""
    width, offset = draw.choice((16, 48, 100)), draw.randrange(-at.length // 8, at.length // 8)
    return lambda b, h, q, k: (q - k - offset).abs() <= width


def bands(draw: Draw, at: Size) -> Mod:
    """Narrow bands at equal distances, behind the query."""
    distance, width = at.length // draw.choice((3, 5, 8)) + 1, draw.choice((4, 12, 30))
    return lambda b, h, q, k: (q >= k) & ((q - k) % distance <= width)


def slanted(draw: Draw, at: Size) -> Mod:
    """Queries that walk through the keys in steps."""
    step, width = draw.choice((3, 5, 48)), draw.choice((20, 64, 150))
    return lambda b, h, q, k: (q // step * step - k).abs() <= width


def dilated(draw: Draw, at: Size) -> Mod:
    """Every n-th key behind the query, as far as a window reaches."""
    step, reach = draw.choice((3, 7, 16)), at.length // draw.choice((2, 4, 8))
    return lambda b, h, q, k: (q >= k) & (q - k < reach) & ((q - k) % step == 0)


def strided(draw: Draw, at: Size) -> Mod:
    """Window, and the last key of each chunk."""
    chunk, window = draw.choice((24, 64, 100)), draw.choice((32, 100, 128))
    return lambda b, h, q, k: (q >= k) & ((q - k < window) | (k % chunk == chunk - 1))


def square(draw: Draw, at: Size) -> Mod:
    """Neighbours on a square canvas, perhaps every other one."""
    across, reach, step = at.side, draw.choice((2, 4, 7)), draw.choice((1, 2))

    def mod(b: Any, h: Any, q: Any, k: Any) -> Any:
        dx, dy = q % across - k % across, q // across - k // across
        return (dx.abs() <= reach * step) & (dy.abs() <= reach * step) & (dx % step == 0) & (dy % step == 0)

    return mod


def disc(draw: Draw, at: Size) -> Mod:
    """Neighbours within a distance on a canvas that is not as wide as high."""
    across, reach = at.side * 2 - draw.choice((0, 5)), draw.choice((3, 5, 9))

    def mod(b: Any, h: Any, q: Any, k: Any) -> Any:
        dx, dy = q % across - k % across, q // across - k // across
        return dx * dx + dy * dy <= reach * reach

    return mod


def box(draw: Draw, at: Size) -> Mod:
    """Neighbours in a box of frames, moved inside at its edges."""
    frames, rows, columns = at.box
    reach = tuple(min(draw.choice((1, 2, 3)), (n - 1) // 2) for n in at.box)

    def mod(b: Any, h: Any, q: Any, k: Any) -> Any:
        near = q == q
        for x, y, n, r in zip(place(q), place(k), (frames, rows, columns), reach):
            near = near & ((x.clamp(r, n - 1 - r) - y).abs() <= r)
        return near

    def place(i: Any) -> tuple[Any, Any, Any]:
        return i // (rows * columns), i // columns % rows, i % columns

    return mod


def frames(draw: Draw, at: Size) -> Mod:
    """The same place in all frames, or the same frame."""
    _, rows, columns = at.box
    size = rows * columns
    return lambda b, h, q, k: (q % size == k % size) | (q // size == k // size)


def heap(draw: Draw, at: Size) -> Mod:
    """Ancestors in a tree of nodes numbered level by level."""
    bits = draw.choice((1, 2))
    steps = at.length.bit_length() // bits

    def mod(b: Any, h: Any, q: Any, k: Any) -> Any:
        ancestors = k == q
        for step in range(1, steps):
            ancestors = ancestors | (k + 1 == (q + 1) >> (bits * step))
        return ancestors | (k < 8)

    return mod


def nested(draw: Draw, at: Size) -> Mod:
    """Ancestors in a random tree, by the first and the last position below each node."""
    last = torch.arange(at.length)
    parents = [-1] + [draw.randrange(max(0, i - draw.choice((8, 200))), i) for i in range(1, at.length)]
    order = [0] * at.length
    below: list[list[int]] = [[] for _ in range(at.length)]
    for i, parent in enumerate(parents[1:], 1):
        below[parent].append(i)
    stack, clock, ends = [(0, False)], 0, [0] * at.length
    while stack:
        node, leaving = stack.pop()
        if leaving:
            ends[node] = clock - 1
            continue
        order[node], clock = clock, clock + 1
        stack += [(node, True), *((child, False) for child in below[node])]
    first, last = (torch.tensor(x, dtype=torch.int32, device=at.device) for x in (order, ends))
    return lambda b, h, q, k: (first[k] <= first[q]) & (first[q] <= last[k])


def hashed(draw: Draw, at: Size) -> Mod:
    """Positions whose multiplicative hash agrees."""
    factor, bits = draw.choice((40503, 30011)), draw.choice((3, 4))
    return lambda b, h, q, k: ((q * factor & 65535) >> (16 - bits)) == ((k * factor & 65535) >> (16 - bits))


def differing(draw: Draw, at: Size) -> Mod:
    """Positions whose numbers differ in bits of one half, as in butterflies."""
    low = draw.choice((15, 63, 127))
    return lambda b, h, q, k: (((q ^ k) & low) == 0) | ((q ^ k) <= low)


def buckets(draw: Draw, at: Size) -> Mod:
    """Positions that a table puts into one bucket, a different one for each head."""
    of = at.draw(draw.randrange(1 << 30), draw.choice((8, 32)), at.heads, at.length).sort(-1).values
    return lambda b, h, q, k: (of[h, q] == of[h, k]) | (of[h, q] == of[h, k] + 1)


def scattered(draw: Draw, at: Size) -> Mod:
    """Buckets whose positions lie anywhere."""
    of = at.draw(draw.randrange(1 << 30), draw.choice((4, 16)), at.length)
    return lambda b, h, q, k: of[q] == of[k]


def table(draw: Draw, at: Size) -> Mod:
    """Any pairs, from a dense mask."""
    mask = at.draw(draw.randrange(1 << 30), draw.choice((4, 50)), at.length, at.length) == 0
    return lambda b, h, q, k: mask[q, k] | (q == k)


def coarse(draw: Draw, at: Size) -> Mod:
    """Blocks of a table, whose size is none of a tile's."""
    size = draw.choice((24, 40, 96))
    n = -(-at.length // size)
    mask = at.draw(draw.randrange(1 << 30), 5, at.heads, n, n) == 0
    return lambda b, h, q, k: mask[h, q // size, k // size] | (q // size == k // size)


def padded(draw: Draw, at: Size) -> Mod:
    """Sequences of a batch that end early."""
    ends = (at.length // 4 + at.draw(draw.randrange(1 << 30), at.length * 3 // 4, at.batch)).to(torch.int32)
    return lambda b, h, q, k: k < ends[b]


def padded_left(draw: Draw, at: Size) -> Mod:
    """Sequences of a batch that begin late, causal."""
    starts = at.draw(draw.randrange(1 << 30), at.length // 2, at.batch)
    return lambda b, h, q, k: (k >= starts[b]) & (q >= k)


def windows_of_heads(draw: Draw, at: Size) -> Mod:
    """Window of each head."""
    least = draw.choice((8, 32))
    return lambda b, h, q, k: (q >= k) & (q - k < (h + 1) * least)


def steps_of_heads(draw: Draw, at: Size) -> Mod:
    """Dilation of each head."""
    steps, reach = torch.tensor([1 + i % 4 for i in range(at.heads)], dtype=torch.int32, device=at.device), draw.choice((64, 256))
    return lambda b, h, q, k: ((q - k).abs() <= reach * steps[h]) & ((q - k) % steps[h] == 0)


def wheel(draw: Draw, at: Size) -> Mod:
    """Positions on a ring, near by the shorter way."""
    n, reach = at.length - draw.choice((0, 7)), draw.choice((30, 200))

    def mod(b: Any, h: Any, q: Any, k: Any) -> Any:
        distance = (q - k).abs() % n
        return torch.minimum(distance, n - distance) <= reach

    return mod


# ---- biases: each gives a score_mod
def logarithmic(draw: Draw, at: Size) -> Mod:
    """Logarithm of the distance."""
    weight = draw.choice((0.5, 1.5))
    return lambda s, b, h, q, k: s - weight * torch.log1p((q - k).abs().float())


def powers(draw: Draw, at: Size) -> Mod:
    """Square root of the distance, scaled by a number of each head."""
    scale = at.normal(draw.randrange(1 << 30), at.heads).abs() + 0.1
    return lambda s, b, h, q, k: s - scale[h] * torch.sqrt((q - k).abs().float())


def bell(draw: Draw, at: Size) -> Mod:
    """Bell curve of the distance."""
    wide = draw.choice((50.0, 300.0))
    return lambda s, b, h, q, k: s + torch.exp(-(((q - k) / wide) ** 2))


def distance_buckets(draw: Draw, at: Size) -> Mod:
    """Buckets of distances as in T5: each near distance, far ones by their logarithm."""
    bias, near, far = at.normal(draw.randrange(1 << 30), at.heads, 32), 16, at.length // 4

    def mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        distance = (q - k).abs()
        ratio = torch.log(torch.clamp(distance, min=1).float() / near) / math.log(far / near)
        bucket = torch.where(distance < near, distance, torch.clamp(near + (ratio * 15.0).int(), min=near, max=31))
        return s + bias[h, bucket]

    return mod


def waves(draw: Draw, at: Size) -> Mod:
    """Cosine of the distance."""
    rate = draw.choice((0.1, 0.37))
    return lambda s, b, h, q, k: s + torch.cos(rate * (q - k))


def of_positions(draw: Draw, at: Size) -> Mod:
    """Bias of the query and one of the key."""
    a, c = at.normal(draw.randrange(1 << 30), at.heads, at.length), at.normal(draw.randrange(1 << 30), at.length)
    return lambda s, b, h, q, k: s + torch.sigmoid(a[h, q]) * torch.log1p(c[k] * c[k])


def cells(draw: Draw, at: Size) -> Mod:
    """Table of distances on a canvas."""
    across = at.side
    bias = at.normal(draw.randrange(1 << 30), at.heads, 2 * across - 1, 2 * across - 1)
    return lambda s, b, h, q, k: s + bias[h, q // across - k // across + across - 1, q % across - k % across + across - 1]


MASKS: tuple[Kind, ...] = (
    band, bands, slanted, dilated, strided, square, disc, box, frames, heap, nested, hashed, differing, buckets, scattered, table, coarse, padded,
    padded_left, windows_of_heads, steps_of_heads, wheel,
)  # fmt: skip
BIASES: tuple[Kind, ...] = (logarithmic, powers, bell, distance_buckets, waves, of_positions, cells)
PRODUCTS: tuple[tuple[Kind, Kind], ...] = (
    (dilated, padded), (square, padded_left), (windows_of_heads, coarse), (hashed, bands), (box, differing), (padded, logarithmic), (strided, powers),
    (square, cells),
)  # fmt: skip
UNIONS = ((band, dilated), (slanted, heap))


def make_rule(seed: int) -> Rule:
    """Return the rule of a seed.

    The kinds take turns, first those of masks, then biases, then products and unions of two.
    """
    every: list[tuple[str, tuple[Kind, ...]]] = [("mask", (m,)) for m in MASKS]
    every += [("bias", (m,)) for m in BIASES] + [("product", pair) for pair in PRODUCTS] + [("union", pair) for pair in UNIONS]
    kind, parts = every[seed % len(every)]
    name = "_".join(p.__name__ for p in parts) + (f"_{seed // len(every)}" if seed >= len(every) else "")

    def mods(at: Size) -> Mods:
        draw = Draw(seed)
        mods_of_parts = [part(draw, at) for part in parts]
        if kind == "mask":
            return Mods(mask_mod=mods_of_parts[0])
        if kind == "bias":
            return Mods(score_mod=mods_of_parts[0])
        first, second = mods_of_parts
        if parts[1] in BIASES:
            return Mods(first, second)
        if kind == "union":
            return Mods(lambda b, h, q, k: first(b, h, q, k) | second(b, h, q, k))
        return Mods(lambda b, h, q, k: first(b, h, q, k) & second(b, h, q, k))

    return Rule(name, kind, mods)


COUNT = len(MASKS) + len(BIASES) + len(PRODUCTS) + len(UNIONS)
GENERATED = tuple(make_rule(seed) for seed in itertools.islice(itertools.count(), COUNT))
