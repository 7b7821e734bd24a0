"""Instructions in which the lanes of a warp exchange values; arrays are [warps, 32], `member` marks the lanes that take part."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from .instruction_table import Array, Opcode, UnknownForm

LANES = np.arange(32, dtype=np.int64)
BITS = np.uint32(1) << np.arange(32, dtype=np.uint32)


def pack_lanes(p: Array) -> Array:
    """Return predicates [..., 32] as the bits of a word."""
    return (p * BITS).sum(-1, dtype=np.uint32)


def unpack_lanes(mask: Array) -> Array:
    """Return a word's bits as predicates [..., 32]."""
    return (mask[..., None] & BITS) != 0


def shuffle(op: Opcode, a: Array, b: Array, c: Array) -> tuple[Array, Array, Array]:
    """Compute shfl: the values, whether the source lane is in range, and the source lanes."""
    inside, source = find_source_lanes(op.pick("up", "down", "bfly", "idx"), b, c)
    return np.take_along_axis(a, source, -1), inside, source


def shuffle_by_numbers(op: Opcode, a: Array, b: int, c: int) -> tuple[Array, Array]:
    """Compute shfl with operands that are the same in all lanes: the values, and whether the source lane is in range."""
    inside, source = find_fixed_lanes(op.pick("up", "down", "bfly", "idx"), b, c)
    return a[:, source], np.broadcast_to(inside, a.shape)


@functools.cache
def find_fixed_lanes(mode: str, b: int, c: int) -> tuple[Array, Array]:
    """Return what `find_source_lanes` does for a warp with these numbers in all lanes."""
    return find_source_lanes(mode, np.full(32, b, np.uint32), np.full(32, c, np.uint32))


def find_source_lanes(mode: str, b: Array, c: Array) -> tuple[Array, Array]:
    """Return whether the source lane of each lane is in range, and the lane whose value it gets."""
    amount, clamp, segment = (b & 31).astype(np.int64), (c & 31).astype(np.int64), (c >> 8 & 31).astype(np.int64)
    lowest = LANES & segment
    highest = lowest | (clamp & ~segment & 31)
    source = {
        "up": LANES - amount,
        "down": LANES + amount,
        "bfly": LANES ^ amount,
        "idx": lowest | (amount & ~segment & 31),
    }[mode]
    inside = source >= highest if mode == "up" else source <= highest
    return inside, np.where(inside, source, LANES)


def vote(op: Opcode, p: Array, member: Array) -> Array:
    """Compute vote: a predicate for each lane, or the ballot."""
    if op.has("ballot"):
        return np.broadcast_to(pack_lanes(p & member)[:, None], p.shape)
    every, some = (p | ~member).all(-1), (p & member).any(-1)
    result = every if op.has("all") else some if op.has("any") else every | ~some
    return np.broadcast_to(result[:, None], p.shape)


def match(op: Opcode, a: Array, member: Array) -> tuple[Array, Array]:
    """Compute match: the lanes with an equal value, and for `.all` whether all have it."""
    equal = (a[:, :, None] == a[:, None, :]) & member[:, None, :]
    if op.has("any"):
        return pack_lanes(equal), np.ones(a.shape, np.bool_)
    same = (equal | ~member[:, None, :]).all(-1)
    return np.where(same, pack_lanes(member)[:, None], np.uint32(0)), same


REDUCTIONS: dict[str, tuple[np.ufunc, Callable[[np.dtype], int]]] = {
    "add": (np.add, lambda _: 0),
    "min": (np.minimum, lambda t: int(np.iinfo(t).max)),
    "max": (np.maximum, lambda t: int(np.iinfo(t).min)),
    "and": (np.bitwise_and, lambda t: -1 if t.kind == "i" else int(np.iinfo(t).max)),
    "or": (np.bitwise_or, lambda _: 0),
    "xor": (np.bitwise_xor, lambda _: 0),
}


def reduce_warp(op: Opcode, a: Array, member: Array) -> Array:
    """Compute redux."""
    name = op.pick(*REDUCTIONS)
    if not name or a.dtype.kind == "f":
        raise UnknownForm(f"the instruction `{op.text}`")
    function, neutral = REDUCTIONS[name]
    result = function.reduce(np.where(member, a, a.dtype.type(neutral(a.dtype))), -1, dtype=a.dtype)
    return np.broadcast_to(result[:, None], a.shape)
