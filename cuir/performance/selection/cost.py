"""A cost model of launches of the attention kernel, for problems that no table covers.

It counts blocks of each tile, products, exponentials, other instructions, copies, tiles and waves. The formula and its
units are explained in docs/notes/cost_model.md; its numbers are in cost.json, made by `python -m benchmarks.fitting fit` from
measurements. The model ranks settings of one problem; its milliseconds are those of an H200 at its usual clock.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from importlib.resources import files

from ...checking.checked import Const
from ..timing.problem import Shape
from .work import Arithmetic, Work

RATE = 4096.0  # operations of the tensor cores, a cycle and multiprocessor
EXPONENTIALS = 16.0  # a cycle and multiprocessor
LANES = 128.0  # instructions of a thread, a cycle and multiprocessor
CLOCK = 1.755e6  # cycles a millisecond
MULTI_WARPGROUP_ROWS = (128, 192)  # queries of two warpgroups and of three
MAX_PAIR_RATIO = 0.85  # a smaller tile replaces a measured setting if it visits at most this share of the setting's pairs
MODELLED_PARAMETERS = frozenset({"BM", "BN", "QBUF", "STAGED", "AHEAD"})  # const parameters of kernels that model and tables cover
MODELLED_BYTES = 2  # least size of the numbers whose kernels the model was fitted to


@dataclass(frozen=True)
class Coefficients:
    """Coefficients of the model, fitted to measurements; all are at least 0."""

    product: float = 1.15  # cycles for each cycle of products at the full rate: power, and the issue of products
    score: float = 1.0  # instructions for each counted instruction of `score`
    special: float = 1.5  # exponentials and reciprocals for each counted one of `score`
    keep: float = 2.0  # instructions for each counted instruction of `keep`
    masking: float = 1.0  # further instructions for a pair of a block that needs the mask
    step: float = 150.0  # cycles of a block's step of a warpgroup without computation: waits and votes
    copy: float = 0.02  # cycles for a byte of K and V
    serial: float = 0.7  # share of its softmax that a warpgroup waits for before its next product
    skipped: float = 0.5  # share of a step for a block that a warpgroup skips
    sharp: float = 5.0  # exponent of the combination of units: 1 is the sum, infinity the maximum
    tile: float = 1500.0  # cycles of a tile
    unstaged: float = 30.0  # cycles for each column of a warpgroup's results that bypass shared memory
    single: float = 500.0  # cycles of a tile that waits for its queries: one buffer, and tiles that overlap
    wave: float = 0.5  # decay of the weight of the last wave's idle time with the number of waves
    turns: float = 1.0  # the factor of PINGPONG=True
    cluster: float = 1.02  # the factor of CLUSTER=2
    launch: float = 6.0  # microseconds of a launch

    @staticmethod
    @functools.cache
    def load() -> Coefficients:
        """Load the fitted coefficients."""
        data = json.loads((files(__package__) / "cost.json").read_text(encoding="utf-8"))
        return Coefficients(**{f.name: float(data["coefficients"][f.name]) for f in fields(Coefficients)})

    def as_json(self) -> dict[str, float]:
        """Return the coefficients by name."""
        return asdict(self)


@functools.cache
def load_p90_relative_error() -> float:
    """Return the relative error that one measured figure of ten exceeds."""
    return float(json.loads((files(__package__) / "cost.json").read_text(encoding="utf-8"))["nine of ten within"])


@dataclass(frozen=True)
class Terms:
    """Terms of the formula for a problem and a setting.

    Attributes:
        groups: Warpgroups of a CTA.
        bytes: Bytes of K and V that a warpgroup's block takes.
        steps: Blocks of all warpgroups of the launch.
        masked: Blocks that need the mask.
        skipped: Blocks that a warpgroup skips.
        tiles: Tiles of all CTAs.
        shortest: The blocks of the shortest tile over those of the mean one.
    """

    groups: int
    BN: int
    D: int
    DV: int
    bytes: float
    steps: float
    masked: float
    skipped: float
    tiles: float
    sms: float
    shortest: float
    staged: bool
    buffers: int
    ahead: bool
    turns: bool
    cluster: bool
    score: Arithmetic
    keep: Arithmetic

    @staticmethod
    def of(work: Work, shape: Shape, numbers: Mapping[str, int | float], setting: Mapping[str, Const], sms: int) -> Terms:
        """Count the terms of a problem and a setting."""

        def number(name: str, default: int) -> int:
            return int(setting.get(name, default))  # type: ignore[arg-type]

        cluster, BN = number("CLUSTER", 1), number("BN", 128)
        groups, heads = number("BM", 128) // cluster // 64, shape.B * shape.H
        visits = work.count_visits(shape.lengths, numbers, setting)
        steps, masked, skipped = (float(x.mean()) * x.shape[-1] * heads for x in (visits.steps, visits.masked, visits.skipped))
        return Terms(
            groups=groups,
            BN=BN,
            D=-(-shape.D // 16) * 16,
            DV=-(-shape.DV // 16) * 16,
            bytes=2.0 * BN * (-(-shape.D // 64) + -(-shape.DV // 64)) * 64 / groups / cluster,
            steps=steps,
            masked=masked,
            skipped=skipped,
            tiles=heads * visits.steps.shape[-1] * cluster,
            sms=sms,
            shortest=float(visits.steps.min()) / max(float(visits.steps.mean()), 1e-9),
            staged=bool(setting.get("STAGED", True)),
            buffers=number("QBUF", 2),
            ahead=bool(setting.get("AHEAD", True)),
            turns=bool(setting.get("PINGPONG", False)),
            cluster=cluster > 1,
            score=work.score,
            keep=work.keep,
        )


def predict_milliseconds(t: Terms, c: Coefficients) -> float:
    """Predict the milliseconds of a launch by the formula of docs/notes/cost_model.md, in its order."""
    product = c.product * 2 * 64 * t.BN * (t.D + t.DV) / RATE
    copy = c.copy * t.bytes

    def step(masked: bool) -> float:
        plain = c.score * t.score.plain + (c.masking + c.keep * t.keep.plain if masked else 0.0)
        issue = 64 * t.BN * plain / LANES
        special = 64 * t.BN * (1 + c.special * t.score.special) / EXPONENTIALS
        serial_time = (product * t.D / (t.D + t.DV) + c.serial * (issue + special) + c.step) / t.groups
        return float(sum(x**c.sharp for x in (product, issue, special, copy, serial_time)) ** (1 / c.sharp))

    loop_time = (t.steps - t.masked + c.skipped * t.skipped) * step(False) + t.masked * step(True)
    last_product = product * t.DV / (t.D + t.DV) / t.groups  # of weights and V: no other tile's softmax overlaps it
    tile_overhead = (
        c.tile
        + (0.0 if t.staged else c.unstaged * t.DV * t.groups)
        + (last_product if not t.ahead else c.single if t.buffers == 1 else 0.0)
    )
    tile_time = loop_time / t.tiles + tile_overhead
    waves = max(1.0, t.tiles / t.sms)
    idle = (math.ceil(waves) - waves) * min(1.0, t.shortest) / (1 + c.wave * (math.ceil(waves) - 1))
    factor = (c.turns if t.turns else 1.0) * (c.cluster if t.cluster else 1.0)
    return factor * (waves + idle) * tile_time / CLOCK + c.launch * 1e-3


def generate_candidates(shape: Shape, requested: Mapping[str, Const]) -> Iterator[dict[str, Const]]:
    """Yield settings that fit into registers and shared memory and agree with the requested values.

    They are few, as each chosen one is a kernel to compile. The checker has the last word.
    """
    for BM in (64, 128, 192):
        fitting = [s for BN in range(64, 129, 16) if (s := fit_buffers(shape, BM, BN)) is not None]
        for setting in fitting:
            if setting["BN"] in (64, 128) or setting is fitting[-1] or setting["BN"] == requested.get("BN"):
                yield {**setting}
                if setting["QBUF"] == 1:  # with two buffers the next queries arrive before this tile ends
                    yield {**setting, "AHEAD": False}
    # the requested tile may not be among these
    if {"BM", "BN"} <= set(requested):
        yield {"BM": requested["BM"], "BN": requested["BN"]}


def fit_buffers(shape: Shape, BM: int, BN: int) -> dict[str, int | bool] | None:
    """Return a tile with the best buffers for queries and results that fit, or None if none do."""
    columns = [-(-n // 64) * 64 for n in (shape.D, shape.DV)]  # of arrays in shared memory
    if REGISTERS[BM // 64] < (-(-shape.DV // 16) * 16 + BN) / 2 + BN / 4:
        return None
    for QBUF, STAGED in ((2, True), (1, True), (1, False)):
        elements = QBUF * BM * columns[0] + (BM * columns[1] if STAGED else UNSTAGED) + 2 * BN * sum(columns)
        if 2 * elements + BARRIERS <= SHARED:
            return {"BM": BM, "BN": BN, "QBUF": QBUF, "STAGED": STAGED}
    return None


REGISTERS = {1: 180, 2: 180, 3: 128}  # of a thread for accumulator, scores and weights, by warpgroups; more spill
# Bytes of a CTA's shared memory, bytes of barriers at most, elements of the results' array if they are not staged.
SHARED, BARRIERS, UNSTAGED = 232448, 1024, 512


def count_tile_pairs(work: Work, shape: Shape, numbers: Mapping[str, int | float], setting: Mapping[str, Const]) -> float:
    """Return the pairs that the tiles of a head compute, masked or not."""
    steps = work.count_visits(shape.lengths, numbers, setting).steps
    return 64.0 * int(setting["BN"]) * float(steps.mean()) * steps.shape[-1]  # type: ignore[arg-type]


def rank_smaller_tiles(
    work: Work, shape: Shape, numbers: Mapping[str, int | float], sms: int, requested: Mapping[str, Const], measured: Mapping[str, Const]
) -> list[dict[str, Const]]:
    """Rank candidates with smaller tiles than a measured setting, for a mask whose rows see few keys.

    They visit clearly fewer pairs than the measured setting, and are faster by more than the model's error. They have at
    least two warpgroups: a single one, in 64 x 64, took 0.72 ms where FlexAttention took 0.48 (`differing` of
    benchmarks.rules). The result is empty if only the device knows the blocks.
    """
    if not work.can_count or work.blocks == "all" or not {"BM", "BN"} <= set(measured):
        return []
    tile, max_area = _tile(measured), MAX_PAIR_RATIO * count_tile_pairs(work, shape, numbers, measured)
    bound = predict_milliseconds(Terms.of(work, shape, numbers, {**requested, **measured}, sms), Coefficients.load()) / (
        1 + load_p90_relative_error()
    )
    return [
        s
        for s in rank_candidates(work, shape, numbers, sms, requested)
        if _tile(s) < tile
        and s["BM"] in MULTI_WARPGROUP_ROWS
        and count_tile_pairs(work, shape, numbers, s) <= max_area
        and predict_milliseconds(Terms.of(work, shape, numbers, {**requested, **s}, sms), Coefficients.load()) < bound
    ]


def _tile(setting: Mapping[str, Const]) -> int:
    """Return the pairs of a CTA's tile and a block."""
    return int(setting["BM"]) // int(setting.get("CLUSTER", 1)) * int(setting["BN"])  # type: ignore[arg-type]


def rank_candidates(
    work: Work, shape: Shape, numbers: Mapping[str, int | float], sms: int, requested: Mapping[str, Const]
) -> list[dict[str, Const]]:
    """Rank candidates that agree with the requested values, the fastest first."""
    c = Coefficients.load()
    fitting = [s for s in generate_candidates(shape, requested) if all(s.get(n, v) == v for n, v in requested.items())]
    return sorted(fitting, key=lambda s: predict_milliseconds(Terms.of(work, shape, numbers, {**requested, **s}, sms), c))
