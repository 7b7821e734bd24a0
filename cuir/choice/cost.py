"""A model of what a launch of the attention kernel costs: blocks per tile, products, exponentials, other instructions, copies, tiles, waves. For what no table knows.

The formula and its units are explained in docs/tuning.md; its numbers are in cost.json, made by `python -m benchmarks.defaults fit` from measurements. It ranks settings
of one problem; the milliseconds that it gives are of an H200 at its usual clock.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from importlib.resources import files

from ..checking.checked import Const
from ..measure.problem import Shape
from .work import Arithmetic, Work

RATE = 4096.0  # operations of the tensor cores, a cycle and multiprocessor
EXPONENTIALS = 16.0  # a cycle and multiprocessor
LANES = 128.0  # instructions of a thread, a cycle and multiprocessor
CLOCK = 1.755e6  # cycles a millisecond
PAIRED = (128, 192)  # queries of two warpgroups and of three
LESS = 0.85  # of the pairs that a measured setting visits: what a smaller tile visits at most to take its place
KNOWN = frozenset({"BM", "BN", "QBUF", "STAGED", "AHEAD"})  # const parameters that a kernel has of which the model and the tables speak


@dataclass(frozen=True)
class Coefficients:
    """What measurements say. All are at least 0."""

    product: float = 1.15  # cycles for each that the products take at the full rate: power, and the issue of products
    score: float = 1.0  # for each of the instructions that `score` is counted to take
    special: float = 1.5  # exponentials and reciprocals for each that `score` is counted to take
    keep: float = 2.0  # for each that `keep` is counted to take
    masking: float = 1.0  # instructions for a pair of a block that needs the mask, beside these
    step: float = 150.0  # cycles of a block's step of a warpgroup in which nothing is computed: waits and votes
    copy: float = 0.02  # cycles for a byte of K and V
    serial: float = 0.7  # how much of its softmax a warpgroup waits for before its next product
    skipped: float = 0.5  # of a step, for a block that a warpgroup skips
    sharp: float = 5.0  # how near the slowest unit comes to being all: 1 is their sum, infinity their maximum
    tile: float = 1500.0  # cycles of a tile
    unstaged: float = 30.0  # cycles for each column of a warpgroup's results that do not go through shared memory
    single: float = 500.0  # cycles of a tile in which the next queries are waited for, where there is one buffer of them and the next tile begins before this one ends
    wave: float = 0.5  # how fast the idle time of multiprocessors in the last wave comes to count less with the number of waves
    turns: float = 1.0  # the factor of PINGPONG=True
    cluster: float = 1.02  # the factor of CLUSTER=2
    launch: float = 6.0  # microseconds of a launch

    @staticmethod
    @functools.cache
    def known() -> Coefficients:
        data = json.loads((files(__package__) / "cost.json").read_text(encoding="utf-8"))
        return Coefficients(**{f.name: float(data["coefficients"][f.name]) for f in fields(Coefficients)})

    def as_json(self) -> dict[str, float]:
        return asdict(self)


@functools.cache
def off() -> float:
    """By how much the model is off in one measured figure of ten, at least."""
    return float(json.loads((files(__package__) / "cost.json").read_text(encoding="utf-8"))["nine of ten within"])


@dataclass(frozen=True)
class Terms:
    """What of a problem and a setting enters the formula. groups: warpgroups of a CTA. bytes: of K and V that a warpgroup's block takes. steps, masked, skipped: blocks of all warpgroups
    of the launch, those of them that need the mask, and those that a warpgroup skips. tiles: of all CTAs. shortest: the blocks of the shortest tile over those of the mean one."""

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
        def number(name: str, usual: int) -> int:
            return int(setting.get(name, usual))  # type: ignore[arg-type]

        cluster, BN = number("CLUSTER", 1), number("BN", 128)
        groups, heads = number("BM", 128) // cluster // 64, shape.B * shape.H
        visits = work.visits(shape.lengths, numbers, setting)
        steps, masked, skipped = (float(x.mean()) * x.shape[-1] * heads for x in (visits.steps, visits.masked, visits.skipped))
        return Terms(
            groups=groups, BN=BN, D=-(-shape.D // 16) * 16, DV=-(-shape.DV // 16) * 16,
            bytes=2.0 * BN * (-(-shape.D // 64) + -(-shape.DV // 64)) * 64 / groups / cluster,
            steps=steps, masked=masked, skipped=skipped, tiles=heads * visits.steps.shape[-1] * cluster, sms=sms,
            shortest=float(visits.steps.min()) / max(float(visits.steps.mean()), 1e-9),
            staged=bool(setting.get("STAGED", True)), buffers=number("QBUF", 2), ahead=bool(setting.get("AHEAD", True)), turns=bool(setting.get("PINGPONG", False)), cluster=cluster > 1,
            score=work.score, keep=work.keep,
        )  # fmt: skip


def milliseconds(t: Terms, c: Coefficients) -> float:
    """Of a launch. The formula of docs/tuning.md, in its order."""
    product = c.product * 2 * 64 * t.BN * (t.D + t.DV) / RATE
    copy = c.copy * t.bytes

    def step(masked: bool) -> float:
        plain = c.score * t.score.plain + (c.masking + c.keep * t.keep.plain if masked else 0.0)
        issue = 64 * t.BN * plain / LANES
        special = 64 * t.BN * (1 + c.special * t.score.special) / EXPONENTIALS
        alone = (product * t.D / (t.D + t.DV) + c.serial * (issue + special) + c.step) / t.groups
        return float(sum(x**c.sharp for x in (product, issue, special, copy, alone)) ** (1 / c.sharp))

    inside = (t.steps - t.masked + c.skipped * t.skipped) * step(False) + t.masked * step(True)
    last = product * t.DV / (t.D + t.DV) / t.groups  # a tile's last product of weights and V, under which no other tile's softmax runs
    end = c.tile + (0.0 if t.staged else c.unstaged * t.DV * t.groups) + (last if not t.ahead else c.single if t.buffers == 1 else 0.0)
    each = inside / t.tiles + end
    waves = max(1.0, t.tiles / t.sms)
    idle = (math.ceil(waves) - waves) * min(1.0, t.shortest) / (1 + c.wave * (math.ceil(waves) - 1))
    factor = (c.turns if t.turns else 1.0) * (c.cluster if t.cluster else 1.0)
    return factor * (waves + idle) * each / CLOCK + c.launch * 1e-3


def candidates(shape: Shape, own: Mapping[str, Const]) -> Iterator[dict[str, Const]]:
    """Settings that registers and shared memory have room for and that agree with what is given. Few: each that is chosen is a kernel to compile. The checker has the last word."""
    for BM in (64, 128, 192):
        fitting = [s for BN in range(64, 129, 16) if (s := roomy(shape, BM, BN)) is not None]
        for setting in fitting:
            if setting["BN"] in (64, 128) or setting is fitting[-1] or setting["BN"] == own.get("BN"):
                yield {**setting}
                if setting["QBUF"] == 1:  # else the next queries are there before this tile ends
                    yield {**setting, "AHEAD": False}
    # what is given may be a tile that is not among these
    if {"BM", "BN"} <= set(own):
        yield {"BM": own["BM"], "BN": own["BN"]}


def roomy(shape: Shape, BM: int, BN: int) -> dict[str, int | bool] | None:
    """A tile with the best of the buffers for queries and results that there is room for, None if there is none."""
    columns = [-(-n // 64) * 64 for n in (shape.D, shape.DV)]  # of arrays in shared memory
    if REGISTERS[BM // 64] < (-(-shape.DV // 16) * 16 + BN) / 2 + BN / 4:
        return None
    for QBUF, STAGED in ((2, True), (1, True), (1, False)):
        elements = QBUF * BM * columns[0] + (BM * columns[1] if STAGED else UNSTAGED) + 2 * BN * sum(columns)
        if 2 * elements + BARRIERS <= SHARED:
            return {"BM": BM, "BN": BN, "QBUF": QBUF, "STAGED": STAGED}
    return None


REGISTERS = {1: 180, 2: 180, 3: 128}  # of a thread, by warpgroups, for accumulator, scores and weights: beyond, ptxas spills
SHARED, BARRIERS, UNSTAGED = (
    232448,
    1024,
    512,
)  # bytes of a CTA, what of them barriers take at most, and elements of the array that results do not go through


def area(work: Work, shape: Shape, numbers: Mapping[str, int | float], setting: Mapping[str, Const]) -> float:
    """Pairs that the tiles of a head compute, kept or not."""
    steps = work.visits(shape.lengths, numbers, setting).steps
    return 64.0 * int(setting["BN"]) * float(steps.mean()) * steps.shape[-1]  # type: ignore[arg-type]


def narrower(
    work: Work, shape: Shape, numbers: Mapping[str, int | float], sms: int, own: Mapping[str, Const], than: Mapping[str, Const]
) -> list[dict[str, Const]]:
    """Candidates for a mask whose rows see few keys, the fastest first: of a smaller tile than a setting that was measured for wider ones, which visit clearly less than it
    and are faster by more than the model is off. Of at least two warpgroups: one alone, in 64 x 64, took 0.72 ms where FlexAttention took 0.48 (`differing` of benchmarks.rules). None where
    only the device knows the blocks."""
    if not work.counts or work.blocks == "all" or not {"BM", "BN"} <= set(than):
        return []
    tile, most = _tile(than), LESS * area(work, shape, numbers, than)
    bound = milliseconds(Terms.of(work, shape, numbers, {**own, **than}, sms), Coefficients.known()) / (1 + off())
    return [
        s for s in ranked(work, shape, numbers, sms, own)
        if _tile(s) < tile and s["BM"] in PAIRED and area(work, shape, numbers, s) <= most
        and milliseconds(Terms.of(work, shape, numbers, {**own, **s}, sms), Coefficients.known()) < bound
    ]  # fmt: skip


def _tile(setting: Mapping[str, Const]) -> int:
    """Pairs of a CTA's tile and a block."""
    return int(setting["BM"]) // int(setting.get("CLUSTER", 1)) * int(setting["BN"])  # type: ignore[arg-type]


def ranked(work: Work, shape: Shape, numbers: Mapping[str, int | float], sms: int, own: Mapping[str, Const]) -> list[dict[str, Const]]:
    """Candidates that agree with what is given, the fastest first."""
    c = Coefficients.known()
    fitting = [s for s in candidates(shape, own) if all(s.get(n, v) == v for n, v in own.items())]
    return sorted(fitting, key=lambda s: milliseconds(Terms.of(work, shape, numbers, {**own, **s}, sms), c))
