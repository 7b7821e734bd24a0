"""Which setting of its const parameters a call gets: what the user gave, what `cuir tune` has found, what a shipped table says, what a model of cost finds best.

The one place that decides. Owns the order of the sources, classes of problems that share a decision, and the words that say why; does not own tuning's cache, the tables, nor the
model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ..checking.checked import Const
from ..checking.checker import pick_kernel
from ..measure.problem import Shape
from ..spec.specification import Lengths
from ..syntax.nodes import ConstType, Expr, Program
from ..syntax.types import DType
from ..tuning import cache
from ..tuning.space import Consts, defaults, label, ruled_out
from . import cost, table
from .device import Device
from .work import Work

Source = Literal["given", "tuned", "table", "model", "start"]
Numbers = Mapping[str, int | float]
SOURCES: tuple[Source, ...] = ("tuned", "table", "start", "model")  # in the order in which they are asked
COMPUTED = ("T", "D", "DV", "PARTS")  # const parameters that say what is computed, not how


@dataclass(frozen=True)
class Choice:
    """consts: all that a call's kernel is compiled with. source: given (the user named parameters of a setting), tuned, table, model, or start: the first of the kernel's space
    that fits, where there is no GPU, and for programs that none of the others knows. why: in words. spilled: bytes a thread with which a table's setting was measured to be the fastest."""

    consts: Consts
    source: Source
    why: str
    spilled: int = 0

    @property
    def setting(self) -> Consts:
        return {n: v for n, v in self.consts.items() if n not in COMPUTED}

    def __str__(self) -> str:
        return f"{label(self.setting) or 'the defaults of its signature'}: {self.why}"

    def as_json(self) -> dict[str, object]:
        return {"setting": self.setting, "source": self.source, "why": self.why}


def choose(
    program: Program, fixed: Mapping[str, Const], at: Lengths, *, numbers: Numbers | None = None, starts: Sequence[Mapping[str, Const]] = (), exact: bool = False,
    kernel: str | None = None, device: Device | None = None, sources: Sequence[Source] = SOURCES, mask: Expr | None = None,
) -> Choice:  # fmt: skip
    """The setting for a problem. fixed: T, D, DV, PARTS and what the user chose, which stands. numbers: captured ones, by the names of their parameters.
    starts: settings that are known to be good, the best first; exact: for these head dims. device: another than that which is here. mask: of a program that reads block lists,
    what they are made of (`TransferResult.mask`).

    Nothing is asked of the device but its name. Problems that `problem_class` says to be of one class get one setting.
    """
    device, fixed = device or Device.here(), dict(fixed)
    tunable = {p.name for p in pick_kernel(program, kernel).params if isinstance(p.type, ConstType)} - set(COMPUTED)
    own = {n: v for n, v in fixed.items() if n in tunable}
    T, D = fixed.get("T"), fixed.get("D")

    def fits(setting: Mapping[str, Const]) -> bool:
        agrees = set(setting) <= tunable and all(setting.get(n, v) == v for n, v in own.items())
        return agrees and ruled_out(program, kernel, {**setting, **fixed}) is None

    def named(setting: Mapping[str, Const]) -> Consts:
        """The tile, and what is not as in the signature."""
        usual = defaults(program, kernel)
        return {n: v for n, v in setting.items() if n in ("BM", "BN") or usual.get(n) != v}

    if isinstance(T, DType) and type(D) is int and device.sms:
        DV = fixed.get("DV", D)
        assert type(DV) is int
        if "tuned" in sources and device.arch == cache.device()[0]:
            computed = {n: v for n, v in fixed.items() if n == "PARTS"}
            found = cache.tuned(program, Shape(at.B, at.H, at.HK, at.M, at.N, D, DV), T.name, computed)
            if found and not set(found) & set(own):
                return Choice({**found, **fixed}, "tuned", "`cuir tune` has found it for shapes like this one")
        work = Work.of(program, kernel, mask)
        if work is not None:
            at, numbers = problem_class(work, at, numbers or {})
            shape = Shape(at.B, at.H, at.HK, at.M, at.N, D, DV)
            own_kind = tunable >= cost.KNOWN  # tables and model are of kernels with these parameters
            modelled = "model" in sources and own_kind

            def unless_narrow(setting: Consts, source: Source, why: str, spilled: int = 0) -> Choice:
                """A setting that was measured, or a smaller tile where the mask's rows see too few keys for it."""
                smaller = (s for s in cost.narrower(work, shape, numbers, device.sms, own, setting) if fits(s)) if modelled else iter(())
                if (less := next(smaller, None)) is None:
                    return Choice({**setting, **fixed}, source, why, spilled)
                tile, part = (
                    f"{less['BM']} x {less['BN']}",
                    cost.area(work, shape, numbers, less) / cost.area(work, shape, numbers, setting),
                )
                found = (
                    f"rows see few keys: tiles of {tile} visit {part:.0%} of the pairs that those of {setting['BM']} x {setting['BN']} do"
                )
                return Choice({**named(less), **fixed}, "model", f"{found} ({why})")

            if "table" in sources and own_kind and (row := table.nearest(work, shape, numbers, device, fits)) is not None:
                return unless_narrow(dict(row.setting), "table", row.why, row.spilled)
            first = next((dict(s) for s in starts if fits(s)), None) if exact and table.waves(shape, device.sms) >= table.WAVES else None
            if first is not None and "start" in sources:
                return unless_narrow(first, "start", "the first start of the kernel's space for these head dims")
            if modelled:
                setting = next((s for s in cost.ranked(work, shape, numbers, device.sms, own) if fits(s)), None)
                if setting is not None:
                    return Choice({**named(setting), **fixed}, "model", f"the model of cost finds it the fastest for shapes like {shape}")
    setting = next((dict(s) for s in starts if fits(s)), {})
    if own and set(own) >= set(setting):
        return Choice(fixed, "given", "as given")
    why = "the first start of the kernel's space that fits" if setting else "as in the signature"
    return Choice({**setting, **fixed}, "start", why)


def problem_class(work: Work, at: Lengths, numbers: Numbers) -> tuple[Lengths, dict[str, int | float]]:
    """The problem that stands for its class: batch, lengths, and the numbers on which its blocks depend, at the nearest of 1, 2, 3, 4, 6, 8, 12, 16 and so on."""
    known = {n: rounded(x) if isinstance(x, int) else x for n, x in numbers.items() if n in work.read}
    return replace(at, B=rounded(at.B), M=rounded(at.M), N=rounded(at.N)), known


def rounded(n: int) -> int:
    """The nearest power of two, or three times one, by the quotient."""
    if abs(n) < 4:
        return n
    power = 1 << (abs(n).bit_length() - 1)
    near = min((power, power * 3 // 2, power * 2), key=lambda x: abs(math.log(x / abs(n))))
    return near if n > 0 else -near


__all__ = ["SOURCES", "Choice", "Device", "Numbers", "Source", "choose", "problem_class", "rounded"]
