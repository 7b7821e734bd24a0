"""Orders of the work items, as the splice point `tile`: (b, h, m) of the t-th work item."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal as OneOf

from ...ops.build_calls import cdiv
from ...ops.expressions import traits
from ...syntax.nodes import Binary, Call, Expr, Func, Kernel, Literal, Name, Return, Subscript, Tuple
from ...syntax.printer import show
from ...syntax.templates import Holes
from ...syntax.walk import walk

Work = OneOf["even", "growing", "falling", "listed"]  # the number of key blocks of query tiles 0, 1, 2, ...
_DESCENDING = Binary("-", cdiv(Name("M"), Name("BM")), Literal(1))

# 48: a postponed tile fetches K and V once more; with fewer some CTAs still end early, more gain nothing
# (docs/notes/performance_trials.md).
_IN_A_ROW = """\
@func
def tile(t):                             # t-th unit of work -> (b, h, m): the query tiles of a head in a row; the partly empty last ones of 48 heads at the end
    n, late = cdiv(M, BM), min(48, B * H) if M % BM > 0 else 0
    i = t - (B * H - late) * n
    j = i - late * (n - 1)
    head = t // n if i < 0 else B * H - late + (i // max(1, n - 1) if j < 0 else j)
    return head // H, head % H, t % n if i < 0 else i % max(1, n - 1) if j < 0 else n - 1
"""
_LONGEST_FIRST = """\
@func
def tile(t):                             # t-th unit of work -> (b, h, m): longest first, heads of one KV head adjacent
    return t // H % B, t % H, cdiv(M, BM) - 1 - t // (H * B)
"""
_LISTED = """\
@func
def tile(t):                             # t-th unit of work -> (b, h, m): the query tiles of a head in a row, the shortest of all at the end
    return {order}[t, 0], {order}[t, 1], {order}[t, 2]
"""


def tile_for(work: Work, kernel: Kernel, tile: Func, order: str) -> Func:
    """Return `tile` for a kernel with so much work in its query tiles; the origin's own if right.

    Even work: the query tiles of a head are adjacent, as they read the same K and V at the same time, but for some
    partly empty ones at the end. Otherwise the longest come first, so that none is left to the end. `order` names the
    tensor with the order of listed tiles.
    """
    if in_query_tiles(kernel):
        if work == "even":
            return _parse_tile(_IN_A_ROW)
        if work == "listed":
            return _parse_tile(_LISTED.format(order=order))
        if _is_transfer_made(tile):  # the origin is a variant itself
            tile = _parse_tile(_LONGEST_FIRST)
    return _reverse_tiles(tile) if work == "falling" else tile


def _is_transfer_made(tile: Func) -> bool:
    """Return True if an earlier variant's transfer made the function for its own work."""
    last = tile.body[-1]
    listed = isinstance(last, Return) and isinstance(last.value, Tuple) and isinstance(last.value.items[0], Subscript)
    return listed or tile.body == _parse_tile(_IN_A_ROW).body


def in_query_tiles(kernel: Kernel) -> bool:
    """Return True if the work items are the query tiles of all heads: tiles(cdiv(M, BM) * H * B)."""
    for node in walk(kernel):
        if isinstance(node, Call) and traits(node).makes == "units" and node.args:
            return sorted(map(show, _factors(node.args[0]))) == ["B", "H", "cdiv(M, BM)"]
    return False


def _factors(e: Expr) -> list[Expr]:
    return [*_factors(e.left), *_factors(e.right)] if isinstance(e, Binary) and "y" in traits(e).factors else [e]


def _reverse_tiles(tile: Func) -> Func:
    """Return the tile function with the first query tiles first.

    The function must be written as `..., cdiv(M, BM) - 1 - x`; others are unchanged.
    """
    last = tile.body[-1]
    if not isinstance(last, Return) or not isinstance(last.value, Tuple) or len(last.value.items) != 3:
        return tile
    m = last.value.items[2]
    if not isinstance(m, Binary) or traits(m).linear != (1, -1) or m.left != _DESCENDING:
        return tile
    value = replace(last.value, items=(*last.value.items[:2], m.right))
    return replace(tile, body=(*tile.body[:-1], replace(last, value=value)))


def _parse_tile(text: str) -> Func:
    return Holes().fill(text)["tile"]


__all__ = ["Work", "in_query_tiles", "tile_for"]
