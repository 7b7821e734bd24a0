"""Dispatch of a call to a setting of its kernel's const parameters.

The sources in their order are: values that the user gave, results of `cuir tune`, shipped tables of measurements, and a
cost model. Problems of one class share a decision.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ...checking.checked import Const
from ...checking.checker import pick_kernel
from ...runtime.cards import Card, find_shared_limit
from ...spec.specification import Lengths
from ...syntax.nodes import ConstType, Expr, Program
from ...syntax.types import DType
from ..search import space
from ..search import tuning_records as cache
from ..search.space import Consts, defaults, label
from ..timing.problem import Shape
from . import cost, warp_cost
from . import shipped_table as table
from .device import Device
from .work import Work

Source = Literal["given", "tuned", "table", "model", "start"]
Numbers = Mapping[str, int | float]
SOURCES: tuple[Source, ...] = ("tuned", "table", "start", "model")  # in order of precedence
BLOCKS_OF_WARPS = {"BM", "BN"}  # const parameters of kernels that the model of warps covers
RESULT_CONSTS = ("T", "D", "DV", "PARTS")  # const parameters that determine the result, not the schedule


@dataclass(frozen=True)
class Choice:
    """A setting for a call, with its source.

    Attributes:
        consts: All consts that the call's kernel is compiled with.
        source: given (the user named parameters of a setting), tuned, table, model, or start: the first of the kernel's
            space that fits, where there is no GPU, and for programs that no other source covers.
        why: A message for people.
        spilled: Bytes a thread with which a table's setting was measured to be the fastest.
    """

    consts: Consts
    source: Source
    why: str
    spilled: int = 0

    @property
    def setting(self) -> Consts:
        """The consts of the schedule."""
        return {n: v for n, v in self.consts.items() if n not in RESULT_CONSTS}

    def __str__(self) -> str:
        return f"{label(self.setting) or 'the defaults of its signature'}: {self.why}"

    def as_json(self) -> dict[str, object]:
        """Return setting, source and message as data."""
        return {"setting": self.setting, "source": self.source, "why": self.why}


@dataclass(frozen=True)
class Evidence:
    """Knowledge that a choice may rest on.

    Attributes:
        starts: Settings that are known to be good, the best first.
        exact: True if `starts` are for these head dims.
        sources: Sources that may be used.
        device: A device instead of the current one.
        card: The GPU, if the model of kernels by `mma` chooses for it.
    """

    starts: Sequence[Mapping[str, Const]] = ()
    exact: bool = False
    sources: Sequence[Source] = SOURCES
    device: Device | None = None
    card: Card | None = None


def choose(
    program: Program,
    fixed: Mapping[str, Const],
    at: Lengths,
    evidence: Evidence = Evidence(),
    *,
    kernel: str | None = None,
    numbers: Numbers | None = None,
    mask: Expr | None = None,
) -> Choice:
    """Choose the setting for a problem.

    The device is only queried for its name. Problems of one class (see `problem_class`) get one setting.

    Args:
        program: The program.
        fixed: T, D, DV, PARTS and the values that the user chose, which are kept.
        at: Lengths of the problem.
        evidence: Known settings, and the sources and the device to ask.
        kernel: Name of the kernel, if the program has several.
        numbers: Captured numbers, by the names of their parameters.
        mask: For a program that reads block lists, the mask of which they are made (`TransferResult.mask`).
    """
    device, starts, sources, fixed = evidence.device or Device.current(), evidence.starts, evidence.sources, dict(fixed)
    tunable = {p.name for p in pick_kernel(program, kernel).params if isinstance(p.type, ConstType)} - set(RESULT_CONSTS)
    requested = {n: v for n, v in fixed.items() if n in tunable}
    T, D = fixed.get("T"), fixed.get("D")

    shared_limit = find_shared_limit(pick_kernel(program, kernel).arch, evidence.card)

    def fits(setting: Mapping[str, Const]) -> bool:
        """Return whether a setting agrees with the user's values and passes the checker."""
        agrees = set(setting) <= tunable and all(setting.get(n, v) == v for n, v in requested.items())
        return agrees and space.fits(program, kernel, {**setting, **fixed}, shared_limit)

    def drop_defaults(setting: Mapping[str, Const]) -> Consts:
        """Return the tile, and the values that differ from the signature."""
        signature_defaults = defaults(program, kernel)
        return {n: v for n, v in setting.items() if n in ("BM", "BN") or signature_defaults.get(n) != v}

    if isinstance(T, DType) and type(D) is int and device.sms:
        DV, computed = fixed.get("DV", D), {n: v for n, v in fixed.items() if n == "PARTS"}
        assert type(DV) is int
        if "tuned" in sources and device.arch == cache.device()[0]:
            finding = cache.tuned(program, Shape(at.B, at.H, at.HK, at.M, at.N, D, DV), T.name, computed)
            if finding and not set(finding) & set(requested):
                return Choice({**finding, **fixed}, "tuned", "`cuir tune` has found it for shapes like this one")
        work = Work.of(program, kernel, mask)
        if work is not None:
            at, numbers = problem_class(work, at, numbers or {})
            shape = Shape(at.B, at.H, at.HK, at.M, at.N, D, DV)
            is_modelled_kernel = tunable >= cost.MODELLED_PARAMETERS  # tables and model cover kernels with these parameters
            modelled = "model" in sources and is_modelled_kernel

            def refine_for_mask(setting: Consts, source: Source, why: str, spilled: int = 0) -> Choice:
                """Return a measured setting, or a smaller tile if the mask's rows see too few keys for it."""
                smaller = (
                    (s for s in cost.rank_smaller_tiles(work, shape, numbers, device.sms, requested, setting) if fits(s))
                    if modelled
                    else iter(())
                )
                if (smaller_setting := next(smaller, None)) is None:
                    return Choice({**setting, **fixed}, source, why, spilled)
                tile, part = (
                    f"{smaller_setting['BM']} x {smaller_setting['BN']}",
                    cost.count_tile_pairs(work, shape, numbers, smaller_setting) / cost.count_tile_pairs(work, shape, numbers, setting),
                )
                finding = (
                    f"rows see few keys: tiles of {tile} visit {part:.0%} of the pairs that those of {setting['BM']} x {setting['BN']} do"
                )
                return Choice({**drop_defaults(smaller_setting), **fixed}, "model", f"{finding} ({why})")

            if evidence.card is not None and "model" in sources and not evidence.card.is_measured and tunable >= BLOCKS_OF_WARPS:
                card = evidence.card
                ranked = warp_cost.rank_candidates(work, shape, numbers, card, requested, {**defaults(program, kernel), **computed})
                setting = next((s for s in ranked if fits(s)), None)
                if setting is not None:
                    why = f"an estimate for {card.name}, which nobody measured; `cuir tune` measures"
                    return Choice({**drop_defaults(setting), **fixed}, "model", why)
            if "table" in sources and is_modelled_kernel and (row := table.find_nearest(work, shape, numbers, device, fits)) is not None:
                return refine_for_mask(dict(row.setting), "table", row.why, row.spilled)
            first = (
                next((dict(s) for s in starts if fits(s)), None)
                if evidence.exact and (T.itemsize < cost.MODELLED_BYTES or table.count_waves(shape, device.sms) >= table.MIN_WAVES)
                else None
            )
            if first is not None and "start" in sources:
                return refine_for_mask(first, "start", "the first start of the kernel's space for these head dims")
            if modelled:
                setting = next((s for s in cost.rank_candidates(work, shape, numbers, device.sms, requested) if fits(s)), None)
                if setting is not None:
                    return Choice(
                        {**drop_defaults(setting), **fixed}, "model", f"the model of cost finds it the fastest for shapes like {shape}"
                    )
    setting = next((dict(s) for s in starts if fits(s)), {})
    if requested and set(requested) >= set(setting):
        return Choice(fixed, "given", "as given")
    why = "the first start of the kernel's space that fits" if setting else "as in the signature"
    return Choice({**setting, **fixed}, "start", why)


def problem_class(work: Work, at: Lengths, numbers: Numbers) -> tuple[Lengths, dict[str, int | float]]:
    """Return the problem that represents its class.

    Batch, lengths, and the numbers on which its blocks depend are rounded to the nearest of 1, 2, 3, 4, 6, 8, 12, 16 and so on.
    """
    rounded_numbers = {n: round_length(x) if isinstance(x, int) else x for n, x in numbers.items() if n in work.dependencies}
    return replace(at, B=round_length(at.B), M=round_length(at.M), N=round_length(at.N)), rounded_numbers


def round_length(n: int) -> int:
    """Return the nearest power of two, or three times one, by the quotient."""
    if abs(n) < 4:
        return n
    power = 1 << (abs(n).bit_length() - 1)
    near = min((power, power * 3 // 2, power * 2), key=lambda x: abs(math.log(x / abs(n))))
    return near if n > 0 else -near


__all__ = ["SOURCES", "Choice", "Device", "Evidence", "Numbers", "Source", "choose", "problem_class", "round_length"]
