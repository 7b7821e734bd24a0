"""Problems for any kernel, drawn from its signature: lengths of dims, inputs, outputs full of NaN. Owns what is tried where a specification is a function."""

from __future__ import annotations

import contextlib
import functools
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ..bind import TORCH
from ..checked import Checked, ScalarParam, TensorParam
from ..diagnostics import CuirError
from ..interp.launch import _read_tensors
from ..nodes import Subscript
from ..spec import LENGTHS, Lengths
from ..spec_function import FunctionSpecification, Value, scale_of
from ..types import BF16, BOOL, F16, F32, I32, DType, TileType
from ..views import Range, root_name, view_of
from ..walk import walk
from .problems import SCALED, Case, attention_inputs, cases, is_attention, less_than
from .sizes import Problem

KINDS = ("normal", "strided", "large", "tiny", "spikes", "constant", "wide")
_SHORT = (1, 2, 3)  # lengths of dims that the kernel only steps through
_ELEMENTS = 6_000_000  # of one tensor


@dataclass(frozen=True)
class Draw:
    """One problem: lengths of the kernel's run-time dims, and how inputs are drawn (`Case` says what the kinds are)."""

    name: str
    sizes: Mapping[str, int]
    kind: str = "normal"
    seed: int = 0

    def __str__(self) -> str:
        seed = f", seed {self.seed}" if self.seed else ""
        return f"{self.name}: {', '.join(f'{n}={v}' for n, v in self.sizes.items())}, {self.kind} inputs{seed}"


@dataclass
class FunctionLaunch:
    """Arguments of a run by name: what the kernel reads, and its outputs as they were before (NaN; 0 if it adds to them)."""

    inputs: dict[str, Value]
    before: dict[str, torch.Tensor]
    outputs: dict[str, torch.Tensor] = field(default_factory=dict)
    positive: tuple[str, ...] = ()  # scalars that were drawn negative, for which the specification says less

    def __post_init__(self) -> None:
        self.outputs = self.outputs or {n: x.clone() for n, x in self.before.items()}

    def arguments(self) -> dict[str, Any]:
        """Of one run: copies of the inputs, since a kernel may write them, and the specification is asked about what they were."""
        return {**{n: x.clone() if isinstance(x, torch.Tensor) else x for n, x in self.inputs.items()}, **self.outputs}

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
    return FunctionLaunch({n: drawn[n] for n in (*(t.name for t in needed), *(s.name for s in checked.scalars))}, before)


def readable(checked: Checked, launch: FunctionLaunch) -> dict[str, Value]:
    """What a reference may ask for: what the kernel reads (before the run), dims and integer consts."""
    tensors = {n: x for n, x in launch.arguments().items() if isinstance(x, torch.Tensor)}
    dims = {d: tensors[t.name].shape[i] for t in checked.tensors for i, d in enumerate(t.dims) if isinstance(d, str)}
    return {**launch.inputs, **dims, **known_sizes(checked)}


def known_sizes(checked: Checked) -> dict[str, int]:
    """Integer consts."""
    return {n: v for n, v in checked.consts.items() if isinstance(v, int) and not isinstance(v, bool)}


def draws(checked: Checked, spec: FunctionSpecification, level: str) -> list[Draw]:
    """Problems for the numbers: one of each dim, none, whole tiles, one more and one less, ragged ends, extreme values, and drawn ones."""
    if is_attention(checked.origin):
        BM, BN = (int(checked.consts.get(n, 128)) for n in ("BM", "BN"))  # type: ignore[arg-type]
        found = [from_case(checked, spec, c) for c in cases(spec, BM, BN, [], level)]
    else:
        found = _of_tiles(checked, level)
    return [d for d in _admitted(checked, spec, found) if min(d.sizes.values(), default=1) or _means_something(checked, spec, d)]


def _means_something(checked: Checked, spec: FunctionSpecification, draw: Draw) -> bool:
    """Whether the specification says anything where a length is 0: many functions fail there, or give NaN."""
    try:
        given = function_launch(checked, spec, draw)
        return not any(x.numel() and bool(x.isnan().all()) for x in spec.exact(readable(checked, given), list(given.before)).values())
    except CuirError as error:
        if error.diagnostics[0].code != "X113":
            raise
        return False


def schedule_draws(checked: Checked, spec: FunctionSpecification) -> list[Draw]:
    """Problems for many schedules: one dim after the other so long that short rings are used over and over; short rows, of which a CTA has several."""
    tiles = tile_of_dims(checked)
    stepped = [d for d in checked.dims if not tiles[d] and d != "HK"]
    each = [d for d in checked.dims if tiles[d]]
    lengths = functools.partial(_lengths, checked, stepped)
    found = [Draw(f"long {d}", lengths(2, **{x: 5 * tiles[x] + 3 if x == d else tiles[x] + 9 for x in each})) for d in each]
    found.append(Draw("short rows", lengths(4, **{x: max(1, tiles[x] // 2) for x in each}), "strided"))
    if len(stepped) > 1:
        found.append(
            Draw(
                "more of every step",
                _paired({d: tiles[d] + 9 if tiles[d] else 2 for d in checked.dims} | ({"H": 1} if "HK" in checked.dims else {})),
            )
        )
    return _admitted(checked, spec, found)


def ring_draws(checked: Checked, spec: FunctionSpecification) -> list[Draw]:
    """Problems for a few schedules: one dim after the other so long that each of two CTAs, whose units of work or whose steps it makes, comes to the third round of every ring."""
    tiles = tile_of_dims(checked)
    each, stepped = [d for d in checked.dims if tiles[d]], [d for d in checked.dims if not tiles[d] and d != "HK"]
    many = 2 * (2 * checked.longest_ring + 1)
    found = [
        Draw(f"rings go round by {d}", _lengths(checked, stepped, 1, **{x: (many - 1) * tiles[x] + 3 if x == d else 1 for x in each}))
        for d in each
    ]
    found += [Draw("rings go round by steps", _lengths(checked, stepped, many, **dict.fromkeys(each, 1)))] if stepped else []
    return _fitting(checked, spec, found)[0]  # may be none: the stage says so


def _lengths(checked: Checked, stepped: Sequence[str], short: int, **long: int) -> dict[str, int]:
    """`short` in one of the dims that the kernel steps through, so that the number of units of work stays small."""
    return _paired({d: long.get(d) or (short if stepped[-1:] == [d] else 1) for d in checked.dims})


def from_case(checked: Checked, spec: FunctionSpecification, case: Case) -> Draw:
    """An attention problem as lengths of the kernel's dims; dims of other tensors are 1 unless the specification's `sizes` says more."""
    at = case.lengths
    sizes = {d: getattr(at, d, 1) for d in checked.dims}
    return _admitted(checked, spec, [Draw(case.name, sizes, case.kind, case.seed)], required=True)[0]


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


def tile_of_dims(checked: Checked) -> dict[str, int]:
    """For each run-time dim the longest box or tile of it that the kernel moves, 0 if it only steps through it, as it does through batches and heads."""
    found = dict.fromkeys(checked.dims, 0)
    dims = {t.name: t.dims for t in checked.tensors}

    def seen(name: str, position: int, length: int | None) -> None:
        d = dims[name][position]
        if isinstance(d, str) and d not in ("B", "H", "HK"):
            found[d] = max(found[d], length or 16)

    for node in (n for role in checked.roles for stmt in role.body for n in walk(stmt)):
        name = root_name(node) if isinstance(node, Subscript) else None
        if name not in dims or not isinstance(node, Subscript):
            continue
        view = view_of(node, len(dims[name]))
        for i, part in enumerate(view.parts if view is not None else ()):
            if isinstance(part, Range):
                seen(name, i, part.size)
            elif isinstance(t := checked.types.get(id(part.index)), TileType):
                seen(name, i, t.rows * t.cols)
    return found


def simpler_draws(checked: Checked, spec: FunctionSpecification, draw: Draw) -> Iterator[Draw]:
    """Problems a little smaller or plainer than one, the boldest first."""
    for name, n in draw.sizes.items():
        for less in less_than(n):
            with contextlib.suppress(CuirError):  # lengths that the specification refuses
                found = _admitted(checked, spec, [replace(draw, sizes=_multiple({**draw.sizes, name: less}))])[0]
                if sum(found.sizes.values()) < sum(draw.sizes.values()):
                    yield found
    if draw.kind != "normal":
        yield replace(draw, kind="normal")
    if draw.seed:
        yield replace(draw, seed=0)


def _multiple(sizes: dict[str, int]) -> dict[str, int]:
    """H a multiple of HK after one of them has shrunk."""
    H, HK = sizes.get("H", 1), sizes.get("HK", 1)
    return sizes if not HK or H % HK == 0 else {**sizes, "HK": 1}


def _of_tiles(checked: Checked, level: str) -> list[Draw]:
    tiles = tile_of_dims(checked)
    rng = random.Random(0)

    def every(name: str, length: Any, short: Sequence[int] = _SHORT, kind: str = "normal") -> Draw:
        sizes = {d: length(tiles[d]) if tiles[d] else rng.choice(short) for d in checked.dims}
        return Draw(name, _paired(sizes, rng), kind)

    found = [
        every("whole tiles", lambda n: 2 * n, kind="large"),
        every("one more", lambda n: n + 1),
        every("one less", lambda n: max(1, 2 * n - 1), kind="strided"),
        every("ragged", lambda n: 2 * n + 17),
        every("one of each", lambda n: 1, (1,)),
        every("less than a tile", lambda n: max(1, n // 2 - 1), kind="constant"),
    ]
    for none in (d for d in checked.dims if tiles[d]):
        found.append(Draw(f"no {none}", _paired({d: 0 if d == none else n + 1 for d, n in tiles.items()}, rng)))
    found += [every(kind, lambda n: n + 9, kind=kind) for kind in ("tiny", "spikes", "zero", "wide")]
    for i in range(4 if level == "quick" else 24):
        d = every(f"drawn {i}", lambda n: max(1, rng.choice([rng.randint(1, 3 * n), rng.randint(1, 3) * n + rng.randint(-2, 2)])))
        found.append(replace(d, kind=rng.choice(KINDS), seed=rng.randrange(1, 2**31)))
    for t in (d for d in checked.dims if tiles[d]):  # one dim longer than the others, so that what belongs to it shows
        found.append(Draw(f"long {t}", _paired({d: (5 * n + 3 if d == t else n) or 2 for d, n in tiles.items()}, rng)))
    return found


def _paired(sizes: dict[str, int], rng: random.Random | None = None) -> dict[str, int]:
    """H a multiple of HK, where a kernel has both."""
    if "H" not in sizes or "HK" not in sizes:
        return sizes
    group = max(1, sizes["H"]) if rng is None else rng.choice((1, 2, 3))
    return {**sizes, "H": sizes["HK"] * group}


def _admitted(checked: Checked, spec: FunctionSpecification, found: Sequence[Draw], required: bool = False) -> list[Draw]:
    """Those that the specification admits, with the lengths that it gives them. Raises CuirError X108 if there is none."""
    kept, large = _fitting(checked, spec, found)
    if not kept and large:
        elements, name, draw = min(large, key=lambda one: one[0])
        raise CuirError.of("X108", f"`{name}` has {elements:,} elements in the problem {draw}, and problems are tried with tensors of at most {_ELEMENTS:,}", checked.origin.span,
                           "let `sizes` of the specification give shorter lengths" if spec.sizes is not None else "smaller consts make smaller tensors")  # fmt: skip
    if not kept:
        if required:
            raise CuirError.of("X108", f"sizes of `{spec.name}` refuses the lengths {found[0]}", checked.origin.span)
        raise CuirError.of("X108", f"sizes of `{spec.name}` refuses every problem that was drawn", checked.origin.span, "let it give near lengths instead of None")  # fmt: skip
    return kept


def _fitting(checked: Checked, spec: FunctionSpecification, found: Sequence[Draw]) -> tuple[list[Draw], list[tuple[int, str, Draw]]]:
    """Those that the specification admits, with the lengths that it gives them; and those whose largest tensor has too many elements, with how many and its name."""
    kept: list[Draw] = []
    large: list[tuple[int, str, Draw]] = []
    for d in found:
        sizes = spec.admitted({**known_sizes(checked), **d.sizes})
        if sizes is None:
            continue
        elements, name = max(((_elements(t, sizes), t.name) for t in checked.tensors), default=(0, ""))
        if elements > _ELEMENTS:
            large.append((elements, name, replace(d, sizes={n: sizes[n] for n in checked.dims})))
            continue
        same = replace(d, sizes={n: sizes[n] for n in checked.dims})
        if not any((k.sizes, k.kind, k.seed) == (same.sizes, d.kind, d.seed) for k in kept):  # lengths that the specification made alike
            kept.append(same)
    return kept, large


def _elements(t: TensorParam, sizes: Mapping[str, int]) -> int:
    total = 1
    for n in _shape(t, sizes):
        total *= n
    return total


def _shape(t: TensorParam, sizes: Mapping[str, int]) -> list[int]:
    return [sizes[d] if isinstance(d, str) else d for d in t.dims]


def _tensor(t: TensorParam, sizes: Mapping[str, int], kind: str, generator: torch.Generator, first: bool) -> torch.Tensor:
    """Floats of a kind: `large` and `wide` scale the first tensor alone, so that products stay far from an overflow; `wide` each of its rows by 2^-12 to 2^9."""
    x = torch.randn(_shape(t, sizes), generator=generator)
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
    shape, dtype = _shape(t, sizes), TORCH[t.dtype]
    if t.name in added:
        return torch.zeros(shape, dtype=dtype)
    return torch.full(shape, -(2**31) if t.dtype == I32 else torch.nan, dtype=dtype)
