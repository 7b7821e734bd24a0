"""The calls with few queries, which run on the decode kernels, and the const parameters of each call.

The kernels, decode_sm90.cuir and, over a cache, decode_cache_sm90.cuir or decode_cache_f8_sm90.cuir, pack the query
heads of
a key head into one tile and split the keys among many CTAs.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple

import torch

from ...checking.checked import Const
from ...spec.specification import Lengths
from ...syntax.nodes import Program
from ...syntax.types import F32
from ...syntax.walk import names_read
from ...text.diagnostics import CuirError
from ..tracing.traced_result import Traced

ROWS = 64  # of the tile that holds the queries of a key head: the least that a warpgroup's product takes
ROWS_OF_A_WARP = 16
LEAST_KEYS = 256  # fewer are not worth splitting
ROOM = 227 * 1024 - 1024  # bytes of shared memory for Q and the rings, without barriers
PROCESSORS = 132  # multiprocessors of a Hopper GPU, assumed where there is no GPU
WARPGROUPS = 2  # of a CTA that compute, at most
CLUSTERS = (1, 2, 4, 8)
CLUSTERS_OF_EIGHT_BITS = (1, 2, 4, 6, 8)
# Share of the clusters that run at a time, of those for which there are multiprocessors: a GPC has 14 to 18 of these, and a
# cluster lies in one GPC.
AT_ONCE = {
    1: 1.0,
    2: 1.0,
    4: 0.93,
    6: 0.75,  # 16 of them ran at a time; more were not tried
    8: 0.88,
}
BLOCK = 64  # keys
SINGLE_BLOCK = 16  # keys of f32: the sizes of all blocks are multiples of it
SMALLEST = 8  # least tokens of a copy by the copy engine
# time to join the parts of a work item within a cluster, in blocks, by CTAs of the cluster
JOIN = {1: 0, 2: 4, 4: 5, 6: 5.3, 8: 5.5}
# CTAs that split a work item without a cluster; with clusters they were slower (docs/notes/performance_trials.md)
SHARES = (2, 4, 8, 16, 32, 64)
FIXED_SHARES = (1, *SHARES)  # of a sequence's keys, at fixed blocks
FIXED_SHARE = 1024  # keys of each of the first shares: fewer leave more to join, more leave a long sequence to few CTAs
GROWTH = 32, 4  # shares of this size, and how many times larger those behind them are, as in the kernels
# time of the launch that joins the results of several clusters, in blocks, of 16 and of 8 bits
JOIN_SHARES = {False: 11, True: 6}
LEAST_BLOCKS = 8  # least blocks of a CTA where keys are split
GAIN = 0.95  # a split must take less than this share of the time without one
READERS = 81  # CTAs of one warpgroup that saturate the bandwidth of memory
SECOND_WARPGROUP_SPEEDUP = {False: 1.27, True: 1.15}  # speedup of a CTA's reads by a second warpgroup, of contiguous keys and over a cache
ALONE = 0.75  # share of the multiprocessors: with fewer CTAs each must read faster than one warpgroup computes ...
LONG = 48  # ... if it has so many blocks to read
MANY = 128  # least blocks of a CTA for which its warps take more keys at a time over 8-bit numbers
# most blocks of a sequence for one CTA where lengths may differ: joining costs little next to more blocks ...
LONGEST_ALONE = 128
FEW = 6  # ... and with so few work items for each multiprocessor the longest may be the last to run
IN_FLIGHT = 128 * 1024  # bytes of keys and values


def runs_on_decode_kernel(query: torch.Tensor, key: torch.Tensor) -> bool:
    """Return True if a call in half precision runs on the decode kernel.

    Its queries of a key head fit one tile, and its keys are many enough to be split.
    """
    heads, key_heads = query.shape[1], max(1, key.shape[1])
    return query.element_size() == 2 and 0 < query.shape[2] * (heads // key_heads) <= ROWS and key.shape[2] >= LEAST_KEYS


def can_pack_heads(traced: Traced, program: Program, fixed: Mapping[str, Const]) -> bool:
    """Decide whether query heads of one key head may share a tile.

    The blocks to visit must not depend on the head, and the mods must not need the head as a scalar.
    """
    from ...checking.checker import check, pick_kernel

    by_head = traced.keep is not None and "h" in names_read(traced.keep)
    if by_head and "CHUNK" not in fixed:  # over a cache such a mask visits all blocks
        return False
    if not any("h" in names_read(e) for e in (traced.keep, traced.score, traced.factor, traced.sink) if e is not None):
        return True
    rows = ROWS_OF_A_WARP if "TOKENS" in fixed else ROWS
    try:
        names = {p.name for p in pick_kernel(program, None).params}
        if "WG" not in names:  # a kernel whose warpgroups share a tile
            rings, rows = {}, ROWS
        elif "ROWS" in names and "TOKENS" not in fixed:
            rings, rows = {"WG": 1}, ROWS_OF_A_WARP  # a kernel by `mma`, whose other defaults are for a warp
        else:
            rings = _rings_of_eight_bits(fixed, ROWS_OF_A_WARP, False) if "TOKENS" in fixed else _rings(fixed, 2)
        check(program, None, {**fixed, **rings, "GROUP": 2, "BM": rows // 2})
    except CuirError:
        return False
    return True


class Features(NamedTuple):
    """The features of a call's kernel that decide how its keys are split.

    Attributes:
        joins: another launch may join the results of several clusters.
        ruled: it has a score_mod.
        cached: keys lie in a cache.
        eight: the cache is of 8-bit numbers.
    """

    joins: bool
    ruled: bool
    cached: bool
    eight: bool


def consts_for(at: Lengths, fixed: Mapping[str, Const], packed: bool, joins: bool = False, ruled: bool = False) -> dict[str, Const]:
    """Return the setting for lengths.

    Args:
        fixed: at least T, D and DV, CHUNK over a cache, and TOKENS over one of 8-bit numbers.
        packed: query heads of a key head may share a tile.
        joins, ruled: as in `Features`.
    """
    eight, cached = "TOKENS" in fixed, "CHUNK" in fixed
    features = Features(joins, ruled, cached, eight)
    rows = _rows(fixed, at, packed)
    tile = make_tile(at, rows, packed)
    blocks = -(-at.N // BLOCK)
    cluster, splits = _shared_out(tile.units, blocks, features)
    if (
        splits == 1
        and eight
        and rows > ROWS_OF_A_WARP
        and packed
        and at.M <= ROWS_OF_A_WARP
        and at.B * max(1, at.HK) * CLUSTERS[-1] <= count_processors()
    ):
        rows = ROWS_OF_A_WARP  # the card has room for each tile of a warp in CTAs of its own
        tile = make_tile(at, rows, packed)
        cluster, splits = _shared_out(tile.units, blocks, features)
    units = tile.units * splits
    several = cached and at.B > 1 and units > _at_once(cluster)  # sequences differ in length, and some wait for others
    if several and cluster == splits == 1 and blocks >= LONGEST_ALONE and units < FEW * count_processors():
        cluster = 2
    if eight:
        rings = _rings_of_eight_bits(fixed, rows, blocks >= MANY * cluster * splits)
    else:
        rings = _rings(fixed, WARPGROUPS if _of_two(units, cluster, -(-blocks // splits), features) else 1)
    while cluster > 1 and cluster * (1 if eight else rings["WG"]) > -(-at.N // rings["BN"]):  # each has one
        cluster = 4 if cluster == 6 else cluster // 2
    # with one work item for each cluster the scheduler draws none, and no CTA waits for another before it exits
    alone = {"DYNAMIC": False} if (cluster > 1 or splits > 1) and units <= _at_once(cluster) else {}
    ordered = {"ORDERED": several} if cached else {}
    shared: dict[str, Const] = {"SPLITS": splits, "G": F32} if splits > 1 else {}
    return {"BM": tile.queries, "GROUP": tile.group, **rings, "CLUSTER": cluster, **alone, **ordered, **shared, **fixed}


def choose_invariant(at: Lengths, fixed: Mapping[str, Const], packed: bool, joins: bool) -> dict[str, Const]:
    """Return the setting for lengths in which each key has its place in the sums, whatever the lengths; see `consts_for`.

    A share of keys begins at a fixed block, and one warpgroup, or the warps of one tile of 8-bit numbers, computes it.
    """
    eight = "TOKENS" in fixed
    rows = ROWS_OF_A_WARP if eight else ROWS
    tile, rings = make_tile(at, rows, packed), _rings_of_fixed_shares(fixed)
    splits = count_fixed_shares(at, int(fixed["SHARE"]), rings["BN"]) if joins else 1  # type: ignore[arg-type]
    units = tile.units * splits
    several = at.B > 1 and units > _at_once(1)
    alone = {} if units > _at_once(1) else {"DYNAMIC": False}
    shared: dict[str, Const] = {"SPLITS": splits, "G": F32} if splits > 1 else {}
    return {"BM": tile.queries, "GROUP": tile.group, **rings, "CLUSTER": 1, **alone, "ORDERED": several, **shared, **fixed}


def count_fixed_shares(at: Lengths, share: int, block: int) -> int:
    """Return the number of shares that hold the keys of the longest sequence; the last one has all further keys.

    Args:
        share: blocks of each of the first shares.
        block: keys of a block.
    """
    equal, growth = GROWTH
    blocks = -(-at.N // block)
    return next((n for n in FIXED_SHARES if (n + (growth - 1) * max(0, n - equal)) * share >= blocks), FIXED_SHARES[-1])


def fix_share(fixed: Mapping[str, Const]) -> int:
    """Return the blocks of a share that begins at a fixed key."""
    return FIXED_SHARE // _rings_of_fixed_shares(fixed)["BN"]


def _rings_of_fixed_shares(fixed: Mapping[str, Const]) -> dict[str, int]:
    """Return the block of keys and the stages, which the head dims alone decide."""
    if "TOKENS" in fixed:
        return _rings_of_eight_bits(fixed, ROWS_OF_A_WARP, False)
    rings = _rings(fixed, 1)
    return {**rings, "BN": BLOCK, "WG": 1, "STAGES": max(1, rings["STAGES"] * rings["WG"] * rings["BN"] // BLOCK)}


class Tile(NamedTuple):
    """A tile of queries: queries of each head, heads, and the number of such tiles in the problem."""

    queries: int
    group: int
    units: int


def make_tile(at: Lengths, rows: int, packed: bool) -> Tile:
    """Return the tile of so many rows for a problem; `packed` as in `consts_for`."""
    heads = at.H // max(1, at.HK)
    group = min(_power(heads), rows // _power(min(at.M, rows))) if packed else 1
    queries = rows // group
    return Tile(queries, group, at.B * max(1, at.HK) * -(-heads // group) * -(-at.M // queries))


def _rows(fixed: Mapping[str, Const], at: Lengths, packed: bool) -> int:
    """Return the rows of a tile of queries.

    Over 8-bit numbers this is the tile of one warp, or two of them where there are enough queries.
    """
    if "TOKENS" not in fixed:
        return ROWS
    needed = at.M * (at.H // max(1, at.HK) if packed else 1)
    return ROWS_OF_A_WARP if _wide(fixed) or needed <= ROWS_OF_A_WARP else 2 * ROWS_OF_A_WARP


def _rings(fixed: Mapping[str, Const], groups: int) -> dict[str, int]:
    """Return the block of keys and the stages of each of `groups` warpgroups.

    Enough bytes are in flight to hide the latency of memory.
    """
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
    """Return the setting of the rings over a cache of 8-bit numbers.

    ROWS: rows of queries of a warp. WG: warps that share the keys of these. BN: keys of a block. LOADED: stages of
    blocks as they lie in memory.

    Args:
        many: a CTA has so many keys that large blocks are worth the longer wait for the first one, and longer joins at
            the end.
    """
    D, DV = _head_dims(fixed)
    wide = _wide(fixed)
    warp_rows = rows if many else ROWS_OF_A_WARP  # a key is widened once for all of these
    groups = (4 if wide else 8) * warp_rows // rows  # of as many warps as registers have room for
    rounds = warp_rows // ROWS_OF_A_WARP  # shared memory holds the sums of one round of warps at a time
    # as measured (docs/notes/performance_trials.md)
    keys = (32 if not wide and (many or rows > ROWS_OF_A_WARP) else 16) * groups
    queries = 1 if wide else 2
    sums = groups * rows * (-(-DV // 32) * 32 * 4 // rounds + 3 * 4)  # of each warp, and three numbers a row
    room = ROOM - queries * rows * -(-D // 64) * 64 * 2 - sums
    stage = keys * (-(-D // 128) * 128 + -(-DV // 128) * 128)
    return {"QBUF": queries, "BN": keys, "WG": groups, "ROWS": warp_rows, "LOADED": min(8, min(room, IN_FLIGHT) // stage)}


def _wide(fixed: Mapping[str, Const]) -> bool:
    return max(_head_dims(fixed)) > 128


def _head_dims(fixed: Mapping[str, Const]) -> tuple[int, int]:
    D, DV = fixed["D"], fixed["DV"]
    assert isinstance(D, int) and isinstance(DV, int)
    return D, DV


def _shared_out(units: int, blocks: int, features: Features) -> tuple[int, int]:
    """Return the CTAs of a cluster and the clusters of a work item with the least estimated time."""

    def turns(way: tuple[int, int]) -> float:
        cluster, splits = way
        at_once = _at_once(cluster)
        reading = min(units * splits, at_once) * cluster
        faster = (
            SECOND_WARPGROUP_SPEEDUP[features.cached or features.ruled]
            if _of_two(units * splits, cluster, -(-blocks // splits), features)
            else 1.0
        )
        each = -(-blocks // (cluster * splits)) * max(1.0 / faster, reading / READERS) + JOIN[cluster]
        return -(-units * splits // at_once) * each + (JOIN_SHARES[features.eight] if splits > 1 else 0)

    clusters = CLUSTERS_OF_EIGHT_BITS if features.eight else CLUSTERS
    alone = min([(c, 1) for c in clusters if c <= blocks] or [(1, 1)], key=turns)
    several = [(1, s) for s in SHARES if s * LEAST_BLOCKS <= blocks] if features.joins else []
    best = min([alone, *several], key=turns)
    return best if turns(best) < GAIN * turns(alone) else alone


def _of_two(units: int, cluster: int, blocks: int, features: Features) -> bool:
    """Decide whether two warpgroups of a CTA compute, for so many work items of so many blocks.

    They do where each has much to read and multiprocessors are left over. 8-bit numbers are read by warps.
    """
    return not features.eight and blocks >= LONG * cluster and units * cluster <= ALONE * count_processors()


def _at_once(cluster: int) -> int:
    """Return the number of clusters of so many CTAs that run at a time."""
    return max(1, int(count_processors() // cluster * AT_ONCE[cluster]))


@functools.cache
def count_processors() -> int:
    """Return the multiprocessors of the current GPU, or of a Hopper GPU where there is none."""
    return torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count if torch.cuda.is_available() else PROCESSORS


def _power(n: int) -> int:
    """Return the least power of two that is at least n."""
    return 1 << max(0, n - 1).bit_length()


__all__ = [
    "FIXED_SHARE",
    "Tile",
    "can_pack_heads",
    "choose_invariant",
    "consts_for",
    "count_fixed_shares",
    "count_processors",
    "fix_share",
    "make_tile",
    "runs_on_decode_kernel",
]
