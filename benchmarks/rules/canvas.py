"""Positions of a sequence as places of a canvas, and masks of keys around a query's place or tile."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from .rule import Mod

Place = Callable[[Any], tuple[Any, Any]]  # of a position: its coordinates


def near(side: int, kernel: int, place: Place) -> Mod:
    """Return a mask of a square of `kernel` x `kernel` places around each query.

    The square is moved inside at the edges of a canvas of `side` x `side`.
    """
    half = kernel // 2

    def mod(b: Any, h: Any, q: Any, k: Any) -> Any:
        (qx, qy), (kx, ky) = place(q), place(k)
        return ((qx.clamp(half, side - 1 - half) - kx).abs() <= half) & ((qy.clamp(half, side - 1 - half) - ky).abs() <= half)

    return mod


def near_tiles(canvas: Sequence[int], kernel: Sequence[int], tile: Sequence[int], canvas_size: int, text: int) -> Mod:
    """Return a mask in which tiles of a canvas of two or three dimensions see the tiles around them.

    `canvas_size` positions are the canvas; `text` positions after it see all and are seen by all.
    """
    tiles = [c // x for c, x in zip(canvas, tile)]
    reach = [max(1, k // x) for k, x in zip(kernel, tile)]
    size = math.prod(tile)

    def at(i: Any) -> list[Any]:
        tile_index, places = i // size, []
        for across in reversed(tiles[1:]):
            places.append(tile_index % across)
            tile_index = tile_index // across
        return [tile_index, *reversed(places)]

    def mod(b: Any, h: Any, q: Any, k: Any) -> Any:
        near = (q < canvas_size) & (k < canvas_size)
        for x, y, across, r in zip(at(q), at(k), tiles, reach):
            before, after = r // 2, r // 2 + (r % 2 - 1)
            centre = x.clamp(before, across - 1 - after)
            near = near & (y >= centre - before) & (y <= centre + after)
        if not text:
            return near
        to_text = (q < canvas_size) & (k >= canvas_size) & (k < canvas_size + text)
        return near | to_text | ((q >= canvas_size) & (k < canvas_size + text))

    return mod


def in_rows(side: int) -> Place:
    """Return the place of positions row by row."""
    return lambda i: (i // side, i % side)


def in_tiles(side: int, tile: int) -> Place:
    """Return the place of positions square tile by square tile, and row by row in each."""

    def at(i: Any) -> tuple[Any, Any]:
        tile_index, inside, across = i // (tile * tile), i % (tile * tile), side // tile
        return tile_index % across * tile + inside % tile, tile_index // across * tile + inside // tile

    return at


def in_morton_order(i: Any) -> tuple[Any, Any]:
    """Return the place along a Z-order curve: the bits of both coordinates take turns."""
    return _even_bits(i), _even_bits(i >> 1)


def _even_bits(code: Any) -> Any:
    """Return the number that every second bit of a code makes."""
    code = code & 0x55555555
    for shift, keep in ((1, 0x33333333), (2, 0x0F0F0F0F), (4, 0x00FF00FF), (8, 0x0000FFFF)):
        code = (code | (code >> shift)) & keep
    return code
