"""Calls with few queries: they run on the decode kernels, which pack the query heads of a key head into one tile and share out the keys among many CTAs.

Owns which calls these are, and the const parameters that each gets. Does not own the kernels: decode_sm90.cuir and, over a cache, decode_cache_sm90.cuir or decode_cache_f8_sm90.cuir.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple

import torch

from ..checking.checked import Const
from ..spec.specification import Lengths
from ..syntax.nodes import Program
from ..syntax.types import F32
from ..syntax.walk import names_read
from ..text.diagnostics import CuirError
from ..variants import Traced

ORIGIN = "decode_sm90"
CACHE_ORIGIN = "decode_cache_sm90"
EIGHT_BIT_ORIGIN = "decode_cache_f8_sm90"
ROWS = 64  # of the tile that holds the queries of a key head: what the tensor core multiplies at least, of a warpgroup
ROWS_OF_A_WARP = 16
LEAST_KEYS = 256  # with fewer there is nothing to share out
ROOM = 227 * 1024 - 1024  # bytes of shared memory for Q and the rings, barriers aside
PROCESSORS = 132  # of a Hopper GPU, where none is there to be asked
WARPGROUPS = 2  # of a CTA that compute, at most
CLUSTERS = (1, 2, 4, 8)
CLUSTERS_OF_EIGHT_BITS = (1, 2, 4, 6, 8)
AT_ONCE = {
    1: 1.0,
    2: 1.0,
    4: 0.93,
    6: 0.75,  # 16 of them ran at a time; whether more do was not tried
    8: 0.88,
}  # of the clusters for which there are multiprocessors, those that run: one must fit a GPC, which has 14 to 18
BLOCK = 64  # keys
SINGLE_BLOCK = 16  # keys of f32 that all blocks are made of
SMALLEST = 8  # tokens that the copy engine fetches at a time, at least
JOIN = {1: 0, 2: 4, 4: 5, 6: 5.3, 8: 5.5}  # blocks in whose time the parts of a unit are joined, by how many CTAs share it
SHARES = (2, 4, 8, 16, 32, 64)  # CTAs that share a unit without a cluster; with clusters they were slower (docs/performance_trials.md)
JOIN_SHARES = {False: 11, True: 6}  # blocks in whose time what they give is joined by a launch of its own, of 16 and of 8 bits
LEAST_BLOCKS = 8  # of a CTA, where there are several
GAIN = 0.95  # of the time of one cluster, which they must stay under
READERS = 81  # CTAs of one warpgroup that take all that memory gives
BOTH = {False: 1.27, True: 1.15}  # how much faster a CTA reads with two warpgroups, keys in a row and in a cache
ALONE = 0.75  # of all multiprocessors: with fewer CTAs each must read faster than one warpgroup computes ...
LONG = 48  # ... if it has so many blocks to read
MANY = 128  # blocks of a CTA, from which on its warps take more keys at a time over 8-bit numbers
LONGEST_ALONE = 128  # blocks of a sequence that one CTA takes, where lengths may differ: joining is little beside more of them ...
FEW = 6  # ... and with so few units for each multiprocessor the longest may be all that is left
IN_FLIGHT = 128 * 1024  # bytes of keys and values


def decodes(query: torch.Tensor, key: torch.Tensor) -> bool:
    """Whether a call runs on the decode kernel: its queries of a key head are few enough for one tile, and its keys many enough to be shared out. In half precision."""
    heads, key_heads = query.shape[1], max(1, key.shape[1])
    return query.element_size() == 2 and 0 < query.shape[2] * (heads // key_heads) <= ROWS and key.shape[2] >= LEAST_KEYS


def packs(traced: Traced, program: Program, fixed: Mapping[str, Const]) -> bool:
    """Whether query heads of one key head may share a tile: which blocks it visits must not depend on the head, nor what the mods do with the head need it as a scalar."""
    from ..checking.checker import check

    by_head = traced.keep is not None and "h" in names_read(traced.keep)
    if by_head and "CHUNK" not in fixed:  # over a cache such a mask visits all blocks
        return False
    if not any("h" in names_read(e) for e in (traced.keep, traced.score, traced.factor, traced.sink) if e is not None):
        return True
    try:
        rings = _rings_of_eight_bits(fixed, ROWS_OF_A_WARP, False) if "TOKENS" in fixed else _rings(fixed, 2)
        rows = ROWS_OF_A_WARP if "TOKENS" in fixed else ROWS
        check(program, None, {**fixed, **rings, "GROUP": 2, "BM": rows // 2})
    except CuirError:
        return False
    return True


class Features(NamedTuple):
    """What of a call's kernel decides how its keys are shared out. joins: another launch may join what several clusters give. ruled: it has a score_mod. cached: keys lie in a
    cache, eight: of 8-bit numbers."""

    joins: bool
    ruled: bool
    cached: bool
    eight: bool


def consts_for(at: Lengths, fixed: Mapping[str, Const], packed: bool, joins: bool = False, ruled: bool = False) -> dict[str, Const]:
    """The setting for lengths. fixed: T, D and DV at least, and CHUNK of a cache, TOKENS of one of 8-bit numbers. packed: query heads of a key head may share a tile. joins, ruled: see
    Features."""
    eight, cached = "TOKENS" in fixed, "CHUNK" in fixed
    of = Features(joins, ruled, cached, eight)
    rows = _rows(fixed, at, packed)
    tile = _tile(at, rows, packed)
    blocks = -(-at.N // BLOCK)
    cluster, splits = _shared_out(tile.units, blocks, of)
    if (
        splits == 1
        and eight
        and rows > ROWS_OF_A_WARP
        and packed
        and at.M <= ROWS_OF_A_WARP
        and at.B * max(1, at.HK) * CLUSTERS[-1] <= _processors()
    ):
        rows = ROWS_OF_A_WARP  # the card has room for each tile of a warp in CTAs of its own
        tile = _tile(at, rows, packed)
        cluster, splits = _shared_out(tile.units, blocks, of)
    units = tile.units * splits
    several = cached and at.B > 1 and units > _at_once(cluster)  # whose sequences have lengths of their own, and some wait for others
    if several and cluster == splits == 1 and blocks >= LONGEST_ALONE and units < FEW * _processors():
        cluster = 2
    if eight:
        rings = _rings_of_eight_bits(fixed, rows, blocks >= MANY * cluster * splits)
    else:
        rings = _rings(fixed, WARPGROUPS if _of_two(units, cluster, -(-blocks // splits), of) else 1)
    while cluster > 1 and cluster * (1 if eight else rings["WG"]) > -(-at.N // rings["BN"]):  # each has one
        cluster = 4 if cluster == 6 else cluster // 2
    # where each cluster has one unit none is drawn, and no CTA waits for another before it leaves
    alone = {"DYNAMIC": False} if (cluster > 1 or splits > 1) and units <= _at_once(cluster) else {}
    ordered = {"ORDERED": several} if cached else {}
    shared: dict[str, Const] = {"SPLITS": splits, "G": F32} if splits > 1 else {}
    return {"BM": tile.queries, "GROUP": tile.group, **rings, "CLUSTER": cluster, **alone, **ordered, **shared, **fixed}


class _Tile(NamedTuple):
    """Of queries: how many of each head, of how many heads, and how many such tiles there are."""

    queries: int
    group: int
    units: int


def _tile(at: Lengths, rows: int, packed: bool) -> _Tile:
    heads = at.H // max(1, at.HK)
    group = min(_power(heads), rows // _power(min(at.M, rows))) if packed else 1
    queries = rows // group
    return _Tile(queries, group, at.B * max(1, at.HK) * -(-heads // group) * -(-at.M // queries))


def _rows(fixed: Mapping[str, Const], at: Lengths, packed: bool) -> int:
    """Of a tile of queries. Over 8-bit numbers a tile of a warp, or two where there are queries for them."""
    if "TOKENS" not in fixed:
        return ROWS
    needed = at.M * (at.H // max(1, at.HK) if packed else 1)
    return ROWS_OF_A_WARP if _wide(fixed) or needed <= ROWS_OF_A_WARP else 2 * ROWS_OF_A_WARP


def _rings(fixed: Mapping[str, Const], groups: int) -> dict[str, int]:
    """Blocks of keys, and stages for each of `groups` warpgroups: what is in flight hides the memory's latency."""
    D, DV = _head_dims(fixed)
    tiles = 2 if D <= 128 else 1  # of queries: the next one's are fetched ahead where there is room
    queries = tiles * ROWS * -(-D // 64) * 64 * 2
    columns = -(-D // 64) * 64 + -(-DV // 64) * 64
    cached = "CHUNK" in fixed  # where a warpgroup clears rows of a block, which it can for 64 at a time

    def stages(keys: int, room: int = ROOM - queries) -> int:
        return min(8 * groups, room // (columns * keys * 2))

    if max(D, DV) <= 128:  # as measured (docs/serving.md); with more in flight each was slower
        keys = BLOCK if cached or groups > 1 else 2 * BLOCK
        return {"QBUF": tiles, "BN": keys, "WG": groups, "STAGES": stages(keys, IN_FLIGHT) // groups}
    groups = WARPGROUPS
    if stages(BLOCK) >= 2 * groups:
        return {"QBUF": tiles, "BN": BLOCK, "WG": groups, "STAGES": stages(BLOCK) // groups}
    if cached:
        return {"QBUF": tiles, "BN": BLOCK, "WG": 1, "STAGES": max(1, stages(BLOCK))}
    return {"QBUF": tiles, "BN": 32, "WG": groups, "STAGES": stages(32) // groups}


def _rings_of_eight_bits(fixed: Mapping[str, Const], rows: int, many: bool) -> dict[str, int]:
    """Of a cache of 8-bit numbers: rows of queries of a warp, how many warps share their keys, how many each has of a block, and stages of the blocks as they lie in memory.

    many: whether a CTA has so many keys that large blocks are worth their wait at its begin, and longer joins at its end.
    """
    D, DV = _head_dims(fixed)
    wide = _wide(fixed)
    own = rows if many else ROWS_OF_A_WARP  # a key is widened once for all of them
    groups = (4 if wide else 8) * own // rows  # of as many warps as registers leave room for, ...
    rounds = own // ROWS_OF_A_WARP  # ... and the sums of how many of them shared memory has room for at a time
    keys = (32 if not wide and (many or rows > ROWS_OF_A_WARP) else 16) * groups  # as measured (docs/performance_trials.md)
    queries = 1 if wide else 2
    sums = groups * rows * (-(-DV // 32) * 32 * 4 // rounds + 3 * 4)  # of each warp, and three numbers a row
    room = ROOM - queries * rows * -(-D // 64) * 64 * 2 - sums
    stage = keys * (-(-D // 128) * 128 + -(-DV // 128) * 128)
    return {"QBUF": queries, "BN": keys, "WG": groups, "ROWS": own, "LOADED": min(8, min(room, IN_FLIGHT) // stage)}


def _wide(fixed: Mapping[str, Const]) -> bool:
    return max(_head_dims(fixed)) > 128


def _head_dims(fixed: Mapping[str, Const]) -> tuple[int, int]:
    D, DV = fixed["D"], fixed["DV"]
    assert isinstance(D, int) and isinstance(DV, int)
    return D, DV


def _shared_out(units: int, blocks: int, of: Features) -> tuple[int, int]:
    """CTAs of a cluster, and clusters that share a unit of work: those with which all is done first."""

    def turns(way: tuple[int, int]) -> float:
        cluster, splits = way
        at_once = _at_once(cluster)
        reading = min(units * splits, at_once) * cluster
        faster = BOTH[of.cached or of.ruled] if _of_two(units * splits, cluster, -(-blocks // splits), of) else 1.0
        each = -(-blocks // (cluster * splits)) * max(1.0 / faster, reading / READERS) + JOIN[cluster]
        return -(-units * splits // at_once) * each + (JOIN_SHARES[of.eight] if splits > 1 else 0)

    clusters = CLUSTERS_OF_EIGHT_BITS if of.eight else CLUSTERS
    alone = min([(c, 1) for c in clusters if c <= blocks] or [(1, 1)], key=turns)
    several = [(1, s) for s in SHARES if s * LEAST_BLOCKS <= blocks] if of.joins else []
    best = min([alone, *several], key=turns)
    return best if turns(best) < GAIN * turns(alone) else alone


def _of_two(units: int, cluster: int, blocks: int, of: Features) -> bool:
    """Whether two warpgroups of a CTA compute, for so many units of so many blocks: each has much to read, and multiprocessors are left over. 8-bit numbers are read by warps."""
    return not of.eight and blocks >= LONG * cluster and units * cluster <= ALONE * _processors()


def _at_once(cluster: int) -> int:
    """Clusters of so many CTAs that run at a time."""
    return max(1, int(_processors() // cluster * AT_ONCE[cluster]))


@functools.cache
def _processors() -> int:
    return torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count if torch.cuda.is_available() else PROCESSORS


def _power(n: int) -> int:
    """The least power of two from n on."""
    return 1 << max(0, n - 1).bit_length()


__all__ = ["CACHE_ORIGIN", "EIGHT_BIT_ORIGIN", "ORIGIN", "consts_for", "decodes", "packs"]
