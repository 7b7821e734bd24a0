"""A cost model of attention kernels whose warps multiply by `mma`, for cards on which nobody measured settings.

It counts cycles of a multiprocessor for a block of keys: of products, exponentials, other instructions, reads of shared
memory and copies. CTAs that are resident together hide each other's latency. Rates are the card's; the other numbers
are estimates, so the model ranks settings and predicts no times.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ...checking.checked import Const
from ...runtime.cards import Card
from ..timing.problem import Shape
from .work import Work

EXPONENTIALS = 16.0  # a cycle and multiprocessor
SHARED_READS = 128.0  # bytes of shared memory, a cycle and multiprocessor
COPIES = 48.0  # bytes of the L2 cache, a cycle and multiprocessor
PAIR = 6.0  # instructions of a pair besides its score: scale, maximum, sum, conversion
BLOCK = 200.0  # instructions of a warp for a block besides its pairs: maxima and sums of rows, addresses, waits
MEETING = 0.05  # share of a block's time that is lost where a CTA meets and no other one runs
LATENCY = 1500.0  # cycles of a block's chain: products, maximum, exponentials, products, and the CTA's meeting
TILE = 4000.0  # cycles of a tile: its queries arrive, its results are stored
SHARPNESS = 3.0  # exponent of the combination of units: 1 is the sum, infinity the maximum
OTHER_REGISTERS = 48  # of a thread, for addresses, maxima, sums and fragments in flight
SINGLE_REGISTERS = 40  # more of them for f32, whose fragments are twice as large
MOST_REGISTERS = 255
LEAST_ROWS = 16  # of a warp, which may spill
CTA_BYTES = 1024  # of shared memory, which the driver takes for each CTA
# values of the const parameters that such kernels may have
VALUES: Mapping[str, tuple[int | bool, ...]] = {
    "BM": (64, 128),
    "BN": (32, 64, 96, 128),
    "WARPS": (4, 8),
    "STAGES": (1, 2, 3),
    "QREGS": (False, True),
}


@dataclass(frozen=True)
class WarpSetting:
    """The values of a setting that the model reads, and the head dims in whole products."""

    BM: int
    BN: int
    warps: int
    stages: int
    keeps_queries: bool
    D: int
    DV: int
    loads: bool = False  # a kernel without stages: blocks of K and V pass through registers
    parts: int = 0  # numbers of TF32 that an operand of f32 is taken in; 0 for halves

    @staticmethod
    def of(shape: Shape, setting: Mapping[str, Const], defaults: Mapping[str, Const]) -> WarpSetting:
        """Read a setting; parameters that the kernel lacks have one value."""
        values = {"WARPS": 4, "STAGES": 1, "QREGS": False, "PARTS": 0, **defaults, **setting}
        BM, BN, warps, stages, parts = (int(values[n]) for n in ("BM", "BN", "WARPS", "STAGES", "PARTS"))  # type: ignore[arg-type]
        D, DV = (-(-n // 16) * 16 for n in (shape.D, shape.DV))
        return WarpSetting(BM, BN, warps, stages, bool(values["QREGS"]), D, DV, "STAGES" not in defaults, parts)

    @property
    def rows(self) -> int:
        """Queries of a warp."""
        return self.BM // self.warps

    @property
    def registers(self) -> int:
        """Registers of a thread: sums, scores, perhaps queries or blocks on their way, and others."""
        queries = self.rows * self.D * self.item_bytes // 128 if self.keeps_queries else 0
        blocks = self.BN * (self.D + self.DV) // (64 * self.warps) if self.loads else 0
        return count_registers(self.rows, self.DV + self.BN, self.parts) + queries + blocks

    @property
    def spilled(self) -> int:
        """Registers that a thread lacks."""
        return max(0, self.registers - MOST_REGISTERS)

    @property
    def item_bytes(self) -> int:
        """Bytes of a number of Q, K and V."""
        return 4 if self.parts else 2

    @property
    def products(self) -> int:
        """Time of a product, in those of halves: one of TF32 takes two, and an operand in two parts three of these."""
        return {0: 1, 1: 2, 2: 6}[self.parts]

    @property
    def shared_bytes(self) -> int:
        panel = 128 // self.item_bytes
        columns, value_columns = (-(-n // panel) * panel for n in (self.D, self.DV))
        return self.item_bytes * (self.BM * columns + self.stages * self.BN * (columns + value_columns))

    def count_resident(self, card: Card) -> int:
        """Return the CTAs that a multiprocessor holds; 0 if none fits."""
        threads = 32 * self.warps
        if (self.spilled and self.rows > LEAST_ROWS) or self.shared_bytes > card.shared_bytes or self.rows % LEAST_ROWS:
            return 0
        return min(
            card.shared_total // (self.shared_bytes + CTA_BYTES),
            card.threads // threads,
            card.register_file // (threads * min(self.registers, MOST_REGISTERS)),
        )


def count_registers(rows: int, columns: int, parts: int) -> int:
    """Return the registers of a thread of a warp with so many rows of sums and scores, of `columns` columns in all.

    parts: as in `WarpSetting`. Operands in two parts are both in registers for a while.
    """
    return max(1, parts) * rows * columns // 32 + OTHER_REGISTERS + (SINGLE_REGISTERS if parts else 0)


def estimate_cycles(work: Work, shape: Shape, numbers: Mapping[str, int | float], setting: WarpSetting, card: Card) -> float:
    """Estimate the cycles of a launch; infinite for a setting that does not fit."""
    resident = setting.count_resident(card)
    if resident == 0:
        return math.inf
    groups, heads = setting.BM // 64, shape.B * shape.H
    visits = work.count_visits(shape.lengths, numbers, {"BM": setting.BM, "BN": setting.BN})
    tiles = heads * visits.steps.shape[-1]
    steps, masked = (float(x.mean()) for x in (visits.steps, visits.masked))  # blocks of a tile, for each 64 of its queries
    pairs, columns = 64 * setting.BN, setting.D + setting.DV
    plain = PAIR + work.score.plain + work.keep.plain * masked / max(steps, 1.0)
    units = (
        2 * pairs * columns * setting.products / card.product_rate,
        pairs * (1 + work.score.special) / EXPONENTIALS,
        (pairs * plain + BLOCK * 32 * 64 / setting.rows) / card.lanes,
        64 / setting.rows * setting.item_bytes * setting.BN * columns / SHARED_READS,
        setting.item_bytes * setting.BN * columns / groups / COPIES,
    )
    busy = sum(x**SHARPNESS for x in units) ** (1 / SHARPNESS) * (1 + MEETING / resident)
    if setting.stages == 1:  # nothing but other CTAs hides the copies
        busy += units[-1] / resident
    waited = LATENCY * (2 if setting.stages == 1 else 1) / (resident * groups)
    tile = steps * max(busy, waited) + TILE / resident
    at_once = card.multiprocessors * resident
    waves = tiles / at_once
    last = math.ceil(waves) - waves  # idle share of the last wave; long kernels hand tiles out as CTAs end
    return (waves + last / max(1.0, waves)) * resident * tile


def generate_candidates(requested: Mapping[str, Const], tunable: frozenset[str]) -> Iterator[dict[str, Const]]:
    """Yield settings of a kernel's const parameters that agree with the requested values."""
    names = [n for n in VALUES if n in tunable]
    for values in itertools.product(*(VALUES[n] if n not in requested else (requested[n],) for n in names)):
        yield dict(zip(names, values, strict=True))


def rank_candidates(
    work: Work,
    shape: Shape,
    numbers: Mapping[str, int | float],
    card: Card,
    requested: Mapping[str, Const],
    defaults: Mapping[str, Const],
) -> list[dict[str, Const]]:
    """Rank candidates that fit a card, those with the fewest estimated cycles first.

    defaults: the values of the kernel's const parameters that have any.
    """
    cycles = [
        (estimate_cycles(work, shape, numbers, WarpSetting.of(shape, candidate, defaults), card), candidate)
        for candidate in generate_candidates(requested, frozenset(defaults))
    ]
    return [candidate for estimate, candidate in sorted(cycles, key=lambda pair: pair[0]) if estimate < math.inf]


def list_fitting(
    head_dims: tuple[int, int], fixed: Mapping[str, Const], defaults: Mapping[str, Const], card: Card
) -> list[dict[str, Const]]:
    """Return the settings that a card holds, those that spill least and the largest tiles first: for unknown problems."""
    shape = Shape(1, 1, 1, 1, 1, *head_dims)
    requested = {n: v for n, v in fixed.items() if n in VALUES}
    candidates = generate_candidates(requested, frozenset(defaults))
    fitting = [(s, c) for c in candidates if (s := WarpSetting.of(shape, c, defaults)).count_resident(card)]
    return [c for s, c in sorted(fitting, key=lambda pair: (pair[0].spilled, -pair[0].BM * pair[0].BN, -pair[0].stages, pair[0].warps))]


__all__ = ["VALUES", "WarpSetting", "count_registers", "estimate_cycles", "generate_candidates", "list_fitting", "rank_candidates"]
