"""The settings of kernels by `mma`, for gradients, KV caches and packed sequences, on any card.

Each is the first of a list, the best guess first, that the shared memory of the card holds. Those of gradients for head
dims to 128 were the fastest of a few on an H200; nobody measured the others.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ...checking.checked import Const
from ...checking.checker import pick_kernel
from ...ops.limits import TARGETS
from ...runtime.cards import Card, find_relative, find_shared_limit
from ...spec.specification import Lengths
from ...syntax.nodes import ConstType, Program
from ...syntax.types import F32
from . import decoding
from .serving_settings import SHORT, CacheSettings, VarlenSettings, make_captured_arguments

if TYPE_CHECKING:
    from ...performance.selection import Choice
    from ...spec.function_specification import AnySpecification
    from ..splicing.splice import TransferResult

WIDE = 128  # head dim from which warps share keys, each with its columns of dK and dV
NARROW = 64  # head dim up to which registers hold more rows
ROWS = 16  # queries of a warp's tile, two of which it may hold
RESIDENT = 2  # CTAs of decoding that a multiprocessor holds at a time, at most
LEAST_KEYS = 256  # keys of a CTA where CTAs share a sequence
UNIT_STEPS = 2  # time between two units of decoding, and ...
JOIN_STEPS = 4  # ... time to join shares, in steps of a CTA (as measured on an H200)
FULL_SPEED = 2 / 3  # share of the CTAs that read as fast as memory allows
SHARES = (1, 2, 4, 8, 16, 32, 64)  # of the keys of a sequence
LATENT_ROWS = (64, 32, ROWS)  # of a tile over a latent cache
BLOCK = 16  # keys that a warp copies at a time, of a page or several


def count_panel_columns(head_dim: int) -> int:
    """Return the columns of an array of halves in shared memory: whole panels."""
    return -(-head_dim // 64) * 64


def _has_stages(program: Program) -> bool:
    """Return whether the kernel copies blocks to rings of stages; else they pass through registers."""
    return any(p.name == "STAGES" for p in pick_kernel(program, None).params)


def choose_fitting(
    program: Program, kernel: str | None, fixed: Mapping[str, Const], candidates: Iterable[Mapping[str, Const]], card: Card | None
) -> dict[str, Const]:
    """Return the first candidate that a card holds, without parameters that the kernel lacks; the last one if none fits."""
    from ...performance.search.space import fits

    picked = pick_kernel(program, kernel)
    names = {p.name for p in picked.params if isinstance(p.type, ConstType)}
    limit, setting = find_shared_limit(picked.arch, card), dict[str, Const]()
    for candidate in candidates:
        setting = {n: v for n, v in candidate.items() if n in names}
        if fits(program, kernel, {**setting, **{n: v for n, v in fixed.items() if n in names}}, limit):
            break
    return setting


def list_by_keys(keys: int, values: int, single: bool, loads: bool = False, adds: bool = False) -> list[dict[str, Const]]:
    """Return settings of the kernel of dK and dV.

    With `SPLIT`, so many warps share keys, and each has its part of the queries, and of the columns.

    Args:
        single: numbers are f32.
        loads: blocks pass through registers, which hold fewer numbers of them.
        adds: dQ is added up, too.
    """
    if loads:
        return [{"BM": 32, "BN": 64, "SPLIT": 1} if max(keys, values) <= NARROW else {"BM": 32, "BN": 32, "SPLIT": 2}]
    widest, narrowest = max(keys, values), min(keys, values)
    if single:  # of twice the bytes, in parts that take registers
        return [_share_keys(m, n, ROWS, 2 if widest > WIDE else 1, 2) for m, n in ((32, 64), (32, 32), (16, 32), (16, 16))]
    if narrowest > WIDE:
        return [_share_keys(64, 64, 2 * ROWS, 4, 1), *(_share_keys(m, n, ROWS, 2, 1) for m, n in ((64, 32), (32, 32), (16, 16)))]
    if widest > WIDE:
        return [_share_keys(m, n, ROWS, 2, 1) for m, n in ((64, 64), (64, 32), (32, 32), (16, 16))]
    tiles = [(64, 128), (32, 128), (64, 64), (32, 64), (32, 32), (16, 32), (16, 16)]
    settings = [_share_keys(m, n, ROWS, 1, 2) for m, n in tiles]
    if widest <= NARROW:  # reads each query half as often
        return [{**_share_keys(64, 128, 2 * ROWS, 1, 2), "PQ": 32}, *settings]
    if adds and narrowest > WIDE - ROWS:
        return [_share_keys(64, 128, 2 * ROWS, 2, 2), _share_keys(64, 64, 2 * ROWS, 2, 1), *settings]
    return settings


def _share_keys(queries: int, keys: int, rows: int, warps: int, stages: int) -> dict[str, Const]:
    """Return a setting whose warps own `rows` keys, so many of them the same ones."""
    return {
        "BM": queries,
        "BN": keys,
        "ROWS": rows,
        "SPLIT": warps,
        "PQ": min(queries // warps, 64),
        "PG": 64 if warps == 2 else 32,
        "STAGES": stages,
    }


def list_by_queries(keys: int, values: int, single: bool, loads: bool = False) -> list[dict[str, Const]]:
    """Return settings of the kernel of dQ alone; the arguments are those of `list_by_keys`."""
    if loads:
        return [{"BM": 64, "BN": 64 if max(keys, values) <= NARROW else 32}, {"BM": 32, "BN": 32}, {"BM": 16, "BN": 16}]
    tiles = [(64, 64), (64, 32), (32, 32), (32, 16)]
    settings: list[dict[str, Const]] = [{"BM": m, "BN": n, "STAGES": 2} for m, n in tiles]
    if single or max(keys, values) > WIDE:
        return settings[1:]
    tall: dict[str, Const] = {
        "BM": 128,
        "BN": 64 if max(keys, values) <= NARROW else 32,
        "ROWS": 2 * ROWS,
        "STAGES": 2,
    }  # reads each key half as often
    return [tall, *settings]


class WarpCacheSettings(CacheSettings):
    """The settings of a decode kernel over a cache whose warps share the keys of a sequence, each with a ring of its own."""

    def choose_untuned(
        self, at: Lengths, numbers: Mapping[str, int | float] | tuple[tuple[str, int | float], ...] = ()
    ) -> dict[str, Const]:
        """Return the setting for lengths: as many shares of the keys as the card has room for."""
        heads = at.H // max(1, at.HK)
        needed = at.M * (heads if self.packed else 1)
        rows = ROWS if needed <= ROWS or not self.is_asynchronous else 2 * ROWS
        tile = decoding.make_tile(at, rows, self.packed)
        ring = self.ring(rows)
        warps, block, stages = (int(ring.get(n, 1)) for n in ("WG", "BN", "STAGES"))  # type: ignore[arg-type]
        D, DV = (count_panel_columns(int(self.fixed[n])) for n in ("D", "DV"))  # type: ignore[arg-type]
        splits = self.share_out(tile.units, at.N, warps * block, 2 * warps * (rows * D + stages * block * (D + DV)))
        shared: dict[str, Const] = {"SPLITS": splits, "G": F32} if splits > 1 else {}
        # longest_first.cuir, which finds an order, is for Hopper; any order is right
        slab: dict[str, Const] = {"ROWS": rows} if self.is_asynchronous else {}
        return {"BM": tile.queries, "GROUP": tile.group, **slab, **ring, "ORDERED": False, **shared, **self.fixed}

    def share_out(self, units: int, keys: int, step: int, shared_bytes: int) -> int:
        """Return the CTAs that share the keys of a unit of work: those with the least estimated time.

        step: keys of a step of a CTA. shared_bytes: of a CTA.
        """
        card = self.card or find_relative(TARGETS[pick_kernel(self.program, None).arch].capability)
        at_once = card.multiprocessors * max(1, min(RESIDENT, card.shared_total // shared_bytes))

        def count_steps(shares: int) -> float:
            """Estimate the time, in steps of a CTA."""
            turns, rest = divmod(units * shares, at_once)
            last = max(rest / at_once, FULL_SPEED) if rest else 0.0
            return (turns + last) * (keys / (step * shares) + UNIT_STEPS) + (JOIN_STEPS if shares > 1 else 0)

        most = max(1, keys // LEAST_KEYS) if self.joins else 1
        return min((s for s in SHARES if s <= most), key=count_steps)

    @functools.cached_property
    def is_asynchronous(self) -> bool:
        """True if the kernel copies blocks to rings; else they pass through registers, which hold 16 rows and keys."""
        return _has_stages(self.program)

    def ring(self, rows: int) -> Mapping[str, Const]:
        """Return the warps, the block of keys of each, and the stages, for a tile of so many rows."""
        if self.is_asynchronous:
            block = max(BLOCK, int(self.fixed.get("CHUNK", BLOCK)))  # type: ignore[arg-type]
            sizes = [(4, block, 4), (4, block, 3), (2, block, 4), (4, block, 2), (2, block, 2), (1, block, 2)]
            if rows > ROWS:  # whose products take longer: larger blocks, of which fewer are in flight
                sizes = [(4, 2 * block, 2), (2, 2 * block, 2), *sizes]
        else:
            sizes = [(4, BLOCK, 1), (2, BLOCK, 1), (1, BLOCK, 1)]
        candidates = [
            {"WG": warps, "BN": keys, "STAGES": max(stages, -(-2 * rows // keys)), "ROWS": rows, "BM": rows}
            for warps, keys, stages in sizes
        ]
        setting = choose_fitting(self.program, None, self.fixed, candidates, self.card)
        wide = max(int(self.fixed[n]) for n in ("D", "DV")) > WIDE  # type: ignore[arg-type]
        keeps = {"QREGS": True} if self.is_asynchronous and rows == ROWS and not wide else {}
        return {**{n: setting[n] for n in ("WG", "BN", "STAGES") if n in setting}, **keeps}

    def choose_judged(self, consts: Mapping[str, Const]) -> Mapping[str, Const]:
        """Return a smaller setting to verify in place of one that runs: two warps in place of more, and one share."""
        whole = {"SPLITS": 1, "G": consts["T"]} if "SPLITS" in consts else {}
        return {**consts, "WG": min(2, int(consts["WG"])), **whole}  # type: ignore[arg-type]


class WarpLatentSettings(WarpCacheSettings):
    """The settings of a decode kernel over a latent cache, whose warps share the rows and the columns of a tile."""

    def choose_untuned(
        self, at: Lengths, numbers: Mapping[str, int | float] | tuple[tuple[str, int | float], ...] = ()
    ) -> dict[str, Const]:
        """Return the setting for lengths: the tallest tile that they fill and the card holds, then the most stages."""
        needed = at.M * (at.H // max(1, at.HK) if self.packed else 1)
        tallest = 2 * needed - 1 if self.is_asynchronous else ROWS
        tiles = {rows: decoding.make_tile(at, rows, self.packed) for rows in LATENT_ROWS if rows <= max(ROWS, tallest)}
        candidates = [{"BM": t.queries, "GROUP": t.group, "STAGES": stages} for t in tiles.values() for stages in (3, 2, 1)]
        setting = choose_fitting(self.program, None, self.fixed, candidates, self.card)
        rows, stages = int(setting["BM"]) * int(setting["GROUP"]), int(setting.get("STAGES", 1))  # type: ignore[arg-type]
        columns = count_panel_columns(int(self.fixed["D"]))  # type: ignore[arg-type]
        pair = 2 * BLOCK
        splits = self.share_out(tiles[rows].units, at.N, pair, 2 * columns * (rows + stages * pair))
        shared: dict[str, Const] = {"SPLITS": splits, "G": F32} if splits > 1 else {}
        return {**setting, "ORDERED": False, **shared, **self.fixed}

    def choose_judged(self, consts: Mapping[str, Const]) -> Mapping[str, Const]:
        """Return the setting to verify: with one share, as no other launch joins shares there."""
        return {**consts, "SPLITS": 1, "G": consts["T"]}

    def specification(self, transferred: TransferResult) -> AnySpecification:
        from ..verification.serving_specifications import make_cached_specification

        return make_cached_specification(transferred.spec, make_captured_arguments(self.program, transferred), latent=True)


class WarpVarlenSettings(VarlenSettings):
    """The settings of a kernel of packed sequences, which follow from the queries of the longest one."""

    @functools.cached_property
    def start(self) -> dict[str, Const]:
        return self._choose(((128, 64, 32, 2), (128, 64, 16, 2), (128, 32, 32, 2), (64, 64, 16, 2), (64, 32, 16, 2), (32, 32, 16, 2)))

    @functools.cached_property
    def short(self) -> dict[str, Const]:
        """The setting where all sequences are short."""
        return self._choose(((64, 64, 16, 2), (64, 32, 16, 2), (32, 32, 16, 2)))

    def _choose(self, sizes: Iterable[tuple[int, int, int, int]]) -> dict[str, Const]:
        candidates = [
            {"BM": m, "BN": n, "ROWS": rows, "STAGES": stages} for m, n, rows, stages in sizes if self._has_registers(rows, n, m // rows)
        ]
        return {**choose_fitting(self.program, None, self.fixed, candidates, self.card), **self.fixed}

    def _has_registers(self, rows: int, keys: int, warps: int) -> bool:
        """Return whether a warp's registers hold its sums and scores, and its part of a block on its way to shared memory."""
        from ...performance.selection.warp_cost import MOST_REGISTERS, count_registers

        dim, values, parts = (int(self.fixed.get(n, 0)) for n in ("D", "DV", "PARTS"))  # type: ignore[arg-type]
        part = 0 if _has_stages(self.program) else keys // warps * max(dim, values) // 64
        return count_registers(rows, values + keys, parts) + part <= MOST_REGISTERS or rows == ROWS

    def choose_untuned(self, at: Lengths) -> dict[str, Const]:
        return self.start if at.M > SHORT else self.short

    def choice(self, at: Lengths, numbers: object = ()) -> Choice:
        from ...performance.selection import Choice

        return Choice(self.choose_untuned(at), "start", "an estimate, by the longest sequence: the device alone knows the others")


__all__ = ["WarpCacheSettings", "WarpLatentSettings", "WarpVarlenSettings", "choose_fitting", "list_by_keys", "list_by_queries"]
