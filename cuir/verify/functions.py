"""Numbers where the specification is a function: every output against float64, judged by the error of the same function in the kernel's dtype. Owns the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ..bind import TORCH
from ..checked import Checked
from ..diagnostics import CuirError, Diagnostic, Note
from ..spec_function import FunctionSpecification
from .inputs import FunctionLaunch, half_dtype, readable
from .lengths import Draw
from .numeric import RATIO, RATIO_ROW

_CANCELLED = 2.0**-20  # of the largest input: what float32 leaves of a row whose terms cancel, as those of a gradient that is 0 do
_EDGE = 0.99  # of the largest number of a dtype: near it rounding decides between a number and infinity


@dataclass(frozen=True)
class OutputNumbers:
    """Errors of one output against float64, relative in the norm: of all of it, and of its worst row (along the last dim), for the kernel and for PyTorch in its dtype."""

    name: str
    error: float
    yardstick: float
    row: float
    row_yardstick: float


def judge_function(checked: Checked, spec: FunctionSpecification, given: FunctionLaunch, case: Draw) -> list[OutputNumbers]:
    """The verdict on outputs that are there already, one entry for each that the specification gives.

    Raises CuirError: V301 wrong numbers, V302 unwritten outputs, X105 to X107 and X113 of the specification.
    """
    names, inputs = list(given.before), readable(checked, given)
    dtype = TORCH[half_dtype(checked)]
    exact = spec.exact(inputs, names)
    for name, wanted in exact.items():
        if wanted.shape != given.outputs[name].shape:
            raise CuirError.of("X106", f"`{spec.name}` gives {name} of shape {list(wanted.shape)}, the kernel's is {list(given.outputs[name].shape)} in the case {case}",
                               hint="the kernel's signature gives the shape")  # fmt: skip
        if wanted.numel() and bool(wanted.isnan().all()):
            raise CuirError.of(
                "X106", f"`{spec.name}` gives NaN for all of {name} in the case {case}", hint="NaN says that nothing is asked there"
            )
    half = spec.yardstick(inputs, names, exact, dtype)
    largest = max((x[x.isfinite()].abs().max().item() for x in inputs.values() if isinstance(x, torch.Tensor) and x.is_floating_point() and x.isfinite().any()), default=1.0)  # fmt: skip
    return [_judged(checked, given.outputs[n], exact[n], half[n], n, dtype, case, _CANCELLED * largest) for n in names if n in exact]


def _judged(
    checked: Checked, found: torch.Tensor, wanted: torch.Tensor, half: torch.Tensor, name: str, dtype: torch.dtype, case: Draw, floor: float
) -> OutputNumbers:
    def wrong(code: str, message: str, hint: str | None = None) -> CuirError:
        return CuirError([Diagnostic(code, message, checked.origin.span, (Note(f"in the case {case}"),), hint)])

    if not found.dtype.is_floating_point:
        differs = found != wanted
        if differs.any():
            at = torch.nonzero(differs)[0].tolist()
            raise wrong(
                "V301",
                f"{name}{at} is {found[tuple(at)].item()}, the specification gives {wanted[tuple(at)].item():g}; {int(differs.sum())} of {found.numel()} differ",
            )
        return OutputNumbers(name, 0.0, 0.0, 0.0, 0.0)
    x, w, h = found.double(), wanted.double(), half.to(found.dtype).double()
    limit = torch.finfo(found.dtype).max
    free = w.isnan() | ((w.abs() > _EDGE * limit) & (w.abs() < limit / _EDGE))
    if (unwritten := x.isnan() & ~free).any():
        raise wrong("V302", f"{name} is NaN, as before the launch, or computed so, at {_place(unwritten)}; {int(unwritten.sum())} of {x.numel()} elements",
                    "every element is stored, and nothing divides 0 by 0")  # fmt: skip
    endless = ~free & (w.abs() >= limit)
    if (differs := endless & (x != torch.where(w > 0, torch.inf, -torch.inf))).any():
        at = torch.nonzero(differs)[0].tolist()
        raise wrong(
            "V301",
            f"{name}{at} is {x[tuple(at)].item():g}, the specification gives {w[tuple(at)].item():g}; {int(differs.sum())} such elements",
        )
    x, w, h = (torch.where(free | endless, 0.0, y) for y in (x, w, h))
    unit = torch.finfo(found.dtype).eps / 2  # what rounding the output costs
    off, off_half = (y.norm(dim=-1) for y in (x - w, h - w))  # of each row
    beyond = (off - floor).clamp(min=0)
    size, sizes = w.norm().item() or 1.0, w.norm(dim=-1)
    sizes = torch.where(sizes == 0, 1.0, sizes)  # rows whose output is 0 count absolutely
    yardstick, row_yardstick = off_half.norm().item() / size, _largest(off_half / sizes)
    error, row, bad = off.norm().item() / size, _largest(off / sizes), beyond / sizes
    if not beyond.norm().item() / size <= RATIO * yardstick + unit or not _largest(bad) <= RATIO_ROW * row_yardstick + 2 * unit:
        words = str(dtype).removeprefix("torch.")
        raise wrong("V301", f"{name} differs from float64 by {error:.2e} (worst row {row:.2e}), PyTorch in {words} by {yardstick:.2e} (worst row {row_yardstick:.2e}); "
                    f"{_worst(name, x, w, bad)}", _pattern(~(bad <= RATIO_ROW * row_yardstick + 2 * unit), name))  # fmt: skip
    return OutputNumbers(name, error, yardstick, row, row_yardstick)


def _largest(x: torch.Tensor) -> float:
    return x.max().item() if x.numel() else 0.0


def _worst(name: str, found: torch.Tensor, wanted: torch.Tensor, bad: torch.Tensor) -> str:
    """Where an output is farthest off: a row, or the element of an output of one dim."""
    if found.dim() > 1:
        return f"the worst row is {_place(~(bad < _largest(bad)))}"
    at = int((found - wanted).abs().argmax())
    return f"{name}[{at}] is {found.flatten()[at].item():g}, the specification gives {wanted.flatten()[at].item():g}"


def _place(where: torch.Tensor) -> str:
    return str(torch.nonzero(where)[0].tolist()) if where.any() else "no place"


def _pattern(bad: torch.Tensor, name: str) -> str | None:
    """Which rows are wrong, dim by dim, if that says something."""
    if not bad.any() or bad.all() or not bad.dim():
        return None
    said = []
    for d, n in enumerate(bad.shape):
        places = bad.movedim(d, 0).reshape(n, -1).any(1).nonzero().flatten().tolist()
        if len(places) < n:
            said.append(f"of dim {d}: {places[0]} to {places[-1]} ({len(places)} of {n})")
    return f"wrong rows of {name}: {int(bad.sum())} of {bad.numel()}" + (", " + "; ".join(said) if said else "")


def table_rows(case: Draw, found: Sequence[OutputNumbers], positive: Sequence[str]) -> list[Mapping[str, object]]:
    """Rows for the table of the numbers stage; positive: scalars that had to be."""
    return [{"case": str(case), "output": n.name, "error": n.error, "PyTorch, same dtype": n.yardstick, "worst row": n.row, "worst row, same dtype": n.row_yardstick,
             "made positive": ", ".join(positive)} for n in found]  # fmt: skip
