"""Arguments of any kernel for one problem, drawn from its signature: inputs of a kind, outputs full of NaN. Owns which values are tried where a specification is a function; lengths are lengths.py's."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ..bind import TORCH
from ..checked import Checked, ScalarParam, TensorParam
from ..diagnostics import CuirError
from ..interp.launch import _read_tensors
from ..requirements import copy_of, padded
from ..spec import LENGTHS, Lengths
from ..spec_function import FunctionSpecification, Value, scale_of
from ..types import BF16, BOOL, F16, F32, I32, DType
from ..views import root_name
from .lengths import Draw, all_draws, from_case, known_sizes, shape_of_tensor
from .problems import SCALED, Case, attention_inputs, is_attention
from .sizes import Problem


@dataclass
class FunctionLaunch:
    """Arguments of a run by name: what the kernel reads, and its outputs as they were before (NaN; 0 if it adds to them)."""

    inputs: dict[str, Value]
    before: dict[str, torch.Tensor]
    outputs: dict[str, torch.Tensor] = field(default_factory=dict)
    positive: tuple[str, ...] = ()  # scalars that were drawn negative, for which the specification says less

    def __post_init__(self) -> None:
        self.outputs = self.outputs or {n: copy_of(x) for n, x in self.before.items()}

    def arguments(self) -> dict[str, Any]:
        """Of one run: copies of the inputs, since a kernel may write them, and the specification is asked about what they were."""
        return {**{n: copy_of(x) if isinstance(x, torch.Tensor) else x for n, x in self.inputs.items()}, **self.outputs}

    def fresh(self) -> FunctionLaunch:
        """The same inputs, outputs as before."""
        return FunctionLaunch(self.inputs, self.before, positive=self.positive)


def half_dtype(checked: Checked) -> DType:
    """The dtype in which PyTorch would compute: that of the kernel's 16-bit tensors, f32 if it has none.."""
    return next((t.dtype for t in checked.tensors if t.dtype in (F16, BF16)), F32)


def added(checked: Checked) -> set[str]:
    """Tensors that atomic additions write, in any order."""
    found = {root_name(c.args[a.arg]) for c in checked.calls.values() if "add" in c.args for a in c.op.effects.accesses if a.mode != "read"}
    return {name for name in found if name is not None}


def function_launch(
    checked: Checked, spec: FunctionSpecification, draw: Draw | Case, tile: Mapping[str, int] | None = None
) -> FunctionLaunch:
    """Arguments for one problem; tile: other values of BM and BN than the kernel's, for inputs that depend on them. Raises CuirError: X105, X106, X113 of the specification's functions, X108 for inputs that nothing gives.

    A negative float scalar is made positive where the specification fails for it, or gives more NaN, or does so for twice as much: an `eps` below a root.
    """
    if isinstance(draw, Case):
        draw = from_case(checked, spec, draw)
    given = _launch(checked, spec, draw, tile, {})
    negative = [s.name for s in checked.scalars if s.dtype == F32 and given.inputs[s.name] < 0]
    if not negative:
        return given

    def open_places(factors: Mapping[str, float]) -> float:
        """How much is not asked of the kernel."""
        try:
            made = _launch(checked, spec, draw, tile, factors)
            return sum(int(x.isnan().sum()) for x in spec.exact(readable(checked, made), list(made.before)).values())
        except CuirError:
            return math.inf

    def turned(names: Iterable[str]) -> dict[str, float]:
        return dict.fromkeys(names, -1.0)

    least = open_places(turned(negative))
    positive = [n for n in negative if any(open_places({**turned(negative), n: times}) > least for times in (1.0, 2.0))]
    if open_places(turned(positive)) > least:  # some are right only together
        positive = negative
    return replace(_launch(checked, spec, draw, tile, turned(positive)), positive=tuple(positive)) if positive else given


def _launch(
    checked: Checked, spec: FunctionSpecification, draw: Draw, tile: Mapping[str, int] | None, factors: Mapping[str, float]
) -> FunctionLaunch:
    """The arguments that the draw says; factors: of float scalars that are drawn."""
    generator = torch.Generator().manual_seed(draw.seed)
    reads, adds = _read_tensors(checked), added(checked)
    lengths = {**known_sizes(checked), **draw.sizes, **(tile or {})}
    outputs = [t for t in checked.tensors if t.written and t.name not in reads]
    drawn: dict[str, Value] = {s.name: _scalar(s.name, s.dtype, lengths, generator) for s in checked.scalars}
    drawn |= {n: drawn[n] * times for n, times in factors.items()}
    if draw.kind == "scaled" and "scale" in drawn and spec.asks("scale"):
        drawn["scale"] *= SCALED
    needed = [t for t in checked.tensors if t not in outputs]
    floats = [t for t in needed if t.dtype != I32]
    for t in floats:
        drawn[t.name] = _tensor(t, lengths, draw.kind, generator, first=t is floats[0])
    if is_attention(checked.origin):
        case = Case(draw.name, Lengths(*(lengths[n] for n in LENGTHS)), draw.kind, draw.seed)  # type: ignore[arg-type]
        q, k, v = attention_inputs(case, lengths["D"], lengths.get("BN", 128), scale_of(lengths["D"]))
        drawn |= {n: x.to(TORCH[half_dtype(checked)]) for n, x in (("Q", q), ("K", k), ("V", v))}
    if draw.kind == "strided":
        drawn = {n: _strided(x) if isinstance(x, torch.Tensor) else x for n, x in drawn.items()}
    params: dict[str, TensorParam | ScalarParam] = {t.name.lower(): t for t in checked.tensors} | {
        s.name.lower(): s for s in checked.scalars
    }
    for name, value in spec.made(lengths, generator, drawn).items():
        p = params.get(name.lower())
        if p is None or p in outputs:
            raise CuirError.of("X108", f"inputs of `{spec.name}` gives `{name}`, which `{checked.name}` does not read", checked.origin.span,
                               f"it reads: {', '.join([*(t.name for t in needed), *(s.name for s in checked.scalars)])}")  # fmt: skip
        drawn[p.name] = value.to(TORCH[p.dtype]) if isinstance(value, torch.Tensor) else value
    missing = [t.name for t in needed if t.name not in drawn]
    if missing:
        raise CuirError.of("X108", f"`{checked.name}` reads `{missing[0]}`, integers whose meaning its signature does not say", checked.origin.span,
                           f"give them: FunctionSpecification(..., inputs=lambda sizes, generator: {{{missing[0]!r}: ...}})")  # fmt: skip
    before = {t.name: _output(t, lengths, adds) for t in outputs}
    inputs = {n: drawn[n] for n in (*(t.name for t in needed), *(s.name for s in checked.scalars))}
    return FunctionLaunch(padded(checked, inputs), padded(checked, before))


def readable(checked: Checked, launch: FunctionLaunch) -> dict[str, Value]:
    """What a reference may ask for: what the kernel reads (before the run), dims and integer consts."""
    tensors = {n: x for n, x in launch.arguments().items() if isinstance(x, torch.Tensor)}
    dims = {d: tensors[t.name].shape[i] for t in checked.tensors for i, d in enumerate(t.dims) if isinstance(d, str)}
    return {**launch.inputs, **dims, **known_sizes(checked)}


def draws(checked: Checked, spec: FunctionSpecification, level: str) -> list[Draw]:
    """Problems for the numbers: those of lengths.py about which the specification says something."""
    return [d for d in all_draws(checked, spec, level) if min(d.sizes.values(), default=1) or _means_something(checked, spec, d)]


def _means_something(checked: Checked, spec: FunctionSpecification, draw: Draw) -> bool:
    """Whether the specification says anything where a length is 0: many functions fail there, or give NaN."""
    try:
        given = function_launch(checked, spec, draw)
        return not any(x.numel() and bool(x.isnan().all()) for x in spec.exact(readable(checked, given), list(given.before)).values())
    except CuirError as error:
        if error.diagnostics[0].code != "X113":
            raise
        return False


def contract_problems(checked: Checked, spec: FunctionSpecification, problems: Iterable[Problem]) -> dict[Problem, Mapping[str, Value]]:
    """Problems for the contracts of an attention kernel, those and with those lengths that the specification admits; and the integers that the kernel reads for each."""
    found: dict[Problem, Mapping[str, Value]] = {}
    for p in problems:
        tile = {"BM": p.BM, "BN": p.BN}
        sizes = {**known_sizes(checked), **{d: getattr(p.lengths, d, 1) for d in checked.dims}, **tile}
        admitted = spec.admitted(sizes) if p.lengths.N else None
        if admitted is None:
            continue
        draw = Draw("contracts", {d: admitted[d] for d in checked.dims})
        inputs = function_launch(checked, spec, draw, tile).inputs
        extra = {**draw.sizes, **{n: x for n, x in inputs.items() if n not in ("Q", "K", "V", "scale")}}
        found[Problem(Lengths(*(admitted[n] for n in LENGTHS)), p.BM, p.BN)] = extra
    return found


def _tensor(t: TensorParam, sizes: Mapping[str, int], kind: str, generator: torch.Generator, first: bool) -> torch.Tensor:
    """Floats of a kind: `large` and `wide` scale the first tensor alone, so that products stay far from an overflow; `wide` each of its rows by 2^-12 to 2^9."""
    x = torch.randn(shape_of_tensor(t, sizes), generator=generator)
    if kind == "large" and first:
        x = x * 30
    elif kind == "wide" and first:
        x = x * 2.0 ** torch.randint(-12, 10, (*x.shape[:-1], 1), generator=generator)
    elif kind == "tiny":
        x = x * 2.0**-12
    elif kind == "zero" and first:
        x = torch.zeros_like(x)
    elif kind == "spikes":
        x = torch.where(torch.rand(x.shape, generator=generator) < 1 / 256, torch.sign(x) * 40, x * 0.1)
    elif kind == "constant" and x.dim() > 1 and x.shape[-2]:
        x = x[..., :1, :].expand(x.shape).clone()
    return x.to(TORCH[t.dtype])


def _strided(x: torch.Tensor) -> torch.Tensor:
    """The same values, the two dims before the last in the other order in memory."""
    return x.transpose(-2, -3).contiguous().transpose(-2, -3) if x.dim() > 2 else x


def _scalar(name: str, dtype: DType, sizes: Mapping[str, int], generator: torch.Generator) -> Value:
    if name == "scale" and "D" in sizes:
        return scale_of(sizes["D"])
    if dtype == BOOL:
        return bool(torch.randint(2, (), generator=generator))
    if dtype == I32:
        return int(torch.randint(max(sizes.values(), default=1) + 1, (), generator=generator))
    return float(torch.randn((), generator=generator))


def _output(t: TensorParam, sizes: Mapping[str, int], added: set[str]) -> torch.Tensor:
    """Poisoned, so that what is not written shows; zeros if the kernel adds to it."""
    shape, dtype = shape_of_tensor(t, sizes), TORCH[t.dtype]
    if t.name in added:
        return torch.zeros(shape, dtype=dtype)
    return torch.full(shape, -(2**31) if t.dtype == I32 else torch.nan, dtype=dtype)
