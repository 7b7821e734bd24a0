"""Special values that inputs of a kernel may hold, found by evaluating its specification."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from ..spec.functions import Value
from .mentioned_numbers import Mentioned
from .special_values import beside, hide, make_close, make_large, make_near, make_vast, scatter, scatter_few
from .together import Meeting, find_meetings, find_steep, make_steep, meet

SPECIAL = ("hidden", "bounds", "infinite", "steep", "vast", "near", "both", "edges")  # kinds of inputs
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_USUAL = (0.0, -0.0, 1.0, -1.0)
_SCALARS = (0.0, 1.0, -1.0, -0.7)
_BLOCKS = (16, 32, 64, 128)
_SHARE = 1 / 4  # of the elements that special values change: so many finite ones make a problem
_VIEWS = ("Expand", "Unsqueeze", "Squeeze", "View", "Reshape", "Slice", "Select", "ToCopy", "Clone", "Permute", "Transpose", "T", "Repeat", "Index", "UnsafeView", "Alias", "ConstantPadNd", "Cat", "MaskedFill", "Gather", "IndexSelect")  # fmt: skip

_ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Neg")
_PRODUCTS = frozenset(["Mm", "Bmm", "Addmm", "Baddbmm", "Mv", "Addmv", "Dot", "Convolution", "ScaledDotProductAttentionMath", "ScaledDotProductFlashAttentionForCpu"])  # fmt: skip
Outputs = Mapping[str, torch.Tensor]
Tried = Callable[[Mapping[str, Value]], Outputs | None]


@dataclass(frozen=True)
class Uses:
    """Uses of a tensor by the specification. added: as a summand, such as an additive mask or a bias.

    multiplied: in a product of matrices, where infinities give NaN on a tensor core.
    """

    added: bool = False
    multiplied: bool = False


@dataclass(frozen=True)
class SpecialPlan:
    """Special values by the names of inputs.

    hidden: summands, such as additive masks and biases, that may have runs of -inf. infinite, bounds: values that elements
    may have; meetings: those that enter at once, with scalars at 0 and 1. steep: tensors whose rows may fall or rise by more than
    exponentials admit, with what they are multiplied by. tensors: those that may be vast or near one another; alike: pairs of one shape. scalars: values of those that are tried.
    integers: integer scalars; mentioned: numbers that they are compared with. derived: whether the specification gives floats that
    follow from others, as the LSE of a forward pass: they have roundings of their own, which vast numbers would show.
    """

    hidden: tuple[str, ...] = ()
    infinite: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    meetings: tuple[Meeting, ...] = ()
    steep: tuple[tuple[str, str], ...] = ()
    bounds: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    tensors: tuple[str, ...] = ()
    alike: tuple[tuple[str, str], ...] = ()
    scalars: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    integers: tuple[str, ...] = ()
    mentioned: tuple[int, ...] = ()
    derived: bool = False

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """All pairs of tensors."""
        return [(a, b) for i, a in enumerate(self.tensors) for b in self.tensors[i + 1 :]]

    def count(self, kind: str) -> int:
        """Count the distinct problems of a kind; 0 if it does not apply."""
        if kind == "edges":
            longest = max((len(values) for values in self.scalars.values()), default=0)
            return max(longest, 12 if self.integers else 0)
        several = len(self.tensors) > 1 and not self.derived
        return {
            "hidden": len(self.hidden),
            "infinite": len(self.meetings) + len(self.infinite),
            "steep": len(self.steep),
            "bounds": 2 * bool(self.bounds),
            "vast": len(self.tensors) + several,
            "near": len(self.tensors) + len(self.alike),
            "both": len(self.pairs) * (1 if self.derived else 2),
        }[kind]

    def values(self, kind: str, seed: int, given: Mapping[str, Value], block: int) -> dict[str, Value]:
        """Special values in place of some that are given; the seed says which, modulo `count`. block: columns that a kernel takes at once."""
        generator, count = torch.Generator().manual_seed(seed), self.count(kind)
        which, turn = (seed % count, seed // count) if count else (0, 0)
        tensors = {n: x for n in given if isinstance(x := given[n], torch.Tensor)}
        if kind == "edges":
            return self.edges(which, turn, given)
        if kind == "bounds":
            short = {
                n: torch.tensor(given[n], dtype=torch.bfloat16).item() for n in self.scalars if type(given[n]) is float
            }  # all dtypes hold it
            scalars = [v for v in ({**given, **short}).values() if type(v) is float and math.isfinite(v)]
            near = {n: [v for s in scalars for v in beside(s, tensors[n].dtype)] for n in self.bounds}
            return short | {n: scatter(tensors[n], [*values, *near[n]], seed, block, generator) for n, values in self.bounds.items()}
        if kind == "hidden":
            name = self.hidden[which]
            return {name: hide(tensors[name], 2 * turn, block, generator)}  # a single row begins with a run, then ends with one
        if kind == "infinite":
            if which < len(self.meetings):
                return meet(self.meetings[which], tensors, turn, generator)
            name = list(self.infinite)[which - len(self.meetings)]
            return {name: scatter_few(tensors[name], self.infinite[name], turn, generator)}
        if kind == "steep":
            name, form = self.steep[which]
            return {name: make_steep(tensors[name], form, turn)}
        if kind == "vast":
            alone = self.tensors[which : which + 1]
            return {n: make_vast(tensors[n], turn, not self.derived, bool(alone)) for n in alone or self.tensors}
        if kind == "near":
            if which < len(self.tensors):
                return {(n := self.tensors[which]): make_near(tensors[n], turn)}
            a, b = self.alike[which - len(self.tensors)]
            return {b: make_close(tensors[a], tensors[b], turn)}
        pair, far = (which, False) if self.derived else (which // 2, (which + turn) % 2 == 1)
        return {n: make_large(tensors[n], far) for n in self.pairs[pair]}

    def edges(self, which: int, turn: int, given: Mapping[str, Value]) -> dict[str, Value]:
        """Values of scalars at their edges, other combinations at each turn."""
        longest = max((max(x.shape, default=1) for x in given.values() if isinstance(x, torch.Tensor)), default=1)
        lists = {**self.scalars, **{n: tuple(integer_edges(longest, self.mentioned)) for n in self.integers}}
        return {n: values[(which + i * (1 + which // len(values) + turn)) % len(values)] for i, (n, values) in enumerate(lists.items())}


def integer_edges(longest: int, mentioned: Sequence[int]) -> list[int]:
    """Integers at edges: none, the first and last valid one, numbers of blocks, and those that are compared with, with their neighbours."""
    least = -1 if any(n < 0 for n in mentioned) else 0
    near = [m + off for m in mentioned for off in (0, -1, 1)]
    blocks = [n + off for n in _BLOCKS for off in (0, -1, 1)]
    return list(dict.fromkeys(n for n in (0, 1, longest, longest - 1, *near, *blocks) if least <= n <= longest))


def make_plan(
    tensors: Mapping[str, torch.Tensor],
    scalars: Mapping[str, Value],
    tried: Tried,
    mentioned: Mentioned,
    uses: Callable[[str], Uses],
    dims: Mapping[str, Sequence[str | int]],
    exponential: bool = False,
) -> SpecialPlan:
    """Try special values of each tensor and scalar. tried: what the specification gives with these values in place of normal ones, None if it fails.

    uses: how a tensor enters the outputs. dims: of each tensor, as the kernel declares them. exponential: whether the kernel has an exponential.
    """
    plain = tried({})
    if plain is None or not all(x.numel() for x in plain.values()):
        return SpecialPlan()
    drawn = {n: x for n, x in tensors.items() if x.dtype in DTYPES and x.dim() and x.numel()}

    def finite(values: Mapping[str, Value], least: float = _SHARE) -> bool:
        return is_defined(plain, tried(values), least)

    generator = torch.Generator().manual_seed(0)
    hidden, infinite, bounds = list[str](), dict[str, tuple[float, ...]](), dict[str, tuple[float, ...]]()
    for n, x in drawn.items():
        use = uses(n)
        if use.added and not use.multiplied and finite({n: hide(x, 0, max(1, x.shape[-1] // 4), generator)}):
            hidden.append(n)
        values = (math.inf, -math.inf, *((math.nan,) if mentioned.open else ()))
        if kept := () if use.multiplied else tuple(v for v in values if finite({n: scatter_few(x, (v,), 0, generator)})):
            infinite[n] = kept
        near = dict.fromkeys(v for number in mentioned.floats for v in beside(number, x.dtype))
        for some in ((*_USUAL, *near), _USUAL, (1.0, -1.0, *(v for v in near if v)), (1.0, *(v for v in near if v > 0)), (1.0,)):
            if finite({n: scatter(x, some, 0, max(1, x.shape[-1] // 4), generator)}):
                bounds[n] = some
                break
    floats = {n: v for n, v in scalars.items() if type(v) is float}
    edges: dict[str, tuple[Value, ...]] = {n: (False, True) for n, v in scalars.items() if isinstance(v, bool)}
    near = dict.fromkeys(v for number in mentioned.floats for v in beside(number, torch.float32))
    for n in floats:
        if kept := tuple(v for v in dict.fromkeys((*_SCALARS, *near)) if _admits(plain, tried({n: v}), v < 0)):
            edges[n] = kept
    names = list(drawn)
    alike = tuple((a, b) for i, a in enumerate(names) for b in names[i + 1 :] if dims[a] == dims[b])
    integers = tuple(n for n, v in scalars.items() if type(v) is int)
    unspoiled = {n: x for n, x in drawn.items() if not uses(n).multiplied}
    meetings = find_meetings(unspoiled, infinite, edges, tried, is_defined)
    steep = find_steep(unspoiled, tried, plain) if exponential else ()
    return SpecialPlan(tuple(hidden), infinite, meetings, steep, bounds, tuple(names), alike, edges, integers, mentioned.integers)


def is_defined(plain: Outputs, found: Outputs | None, least: float) -> bool:
    """Return whether enough changed elements are finite, and each output has a finite number.

    least: the share of finite elements among those that differ from the outputs of the plain inputs.
    """
    if found is None or not has_numbers(found):
        return False
    changed = finite = 0
    for n, x in found.items():
        differs = ~((x == plain[n]) | (x.isnan() & plain[n].isnan())) if x.shape == plain[n].shape else torch.ones_like(x, dtype=torch.bool)
        changed, finite = changed + int(differs.sum()), finite + int((differs & x.isfinite()).sum())
    return finite > 0 and finite >= least * changed


def has_numbers(found: Outputs) -> bool:
    """Return whether each output has a finite number or is empty."""
    return all(not x.numel() or bool(widen(x).isfinite().any()) for x in found.values())


def widen(x: torch.Tensor) -> torch.Tensor:
    """An output, as float32 where it is a float of 8 bits, of which PyTorch does not say what is finite."""
    return x.float() if x.is_floating_point() and x.dtype.itemsize == 1 else x


def _admits(plain: Outputs, found: Outputs | None, negative: bool) -> bool:
    """Return whether a scalar may have a value: the outputs are numbers; for a negative one no fewer."""
    if found is None or not has_numbers(found):
        return False
    return not negative or _open(found.values()) <= _open(plain.values())


def _open(outputs: Iterable[torch.Tensor]) -> int:
    return sum(int((~x.isfinite()).sum()) for x in outputs)


def find_uses(outputs: Iterable[torch.Tensor], leaf: torch.Tensor) -> Uses | None:
    """Find how a tensor enters the outputs, by the graph that autograd keeps; None if it does not tell."""
    above: dict[object, list[object]] = {}
    left, seen = [x.grad_fn for x in outputs if x.grad_fn is not None], set[object]()
    entry: object = None
    while left:
        node = left.pop()
        if node in seen:
            continue
        seen.add(node)
        for other, _ in node.next_functions:
            if other is None:
                continue
            above.setdefault(other, []).append(node)
            left.append(other)
            if getattr(other, "variable", None) is leaf:
                entry = other
    if entry is None:
        return None
    return Uses("Add" in _reached(above, entry, _VIEWS), not _PRODUCTS.isdisjoint(_reached(above, entry, (*_VIEWS, *_ARITHMETIC))))


def _reached(above: Mapping[object, Sequence[object]], entry: object, through: Collection[str]) -> set[str]:
    """Names of the operations that a node enters, at once or through others of these names."""
    users, known, names = list(above.get(entry, ())), set[object](), set[str]()
    while users:
        user = users.pop()
        if user in known:
            continue
        known.add(user)
        name = type(user).__name__.partition("Backward")[0].removesuffix("_")
        names.add(name)
        if name in through:
            users += above.get(user, ())
    return names


__all__ = ["SPECIAL", "SpecialPlan", "Uses", "find_uses", "has_numbers", "integer_edges", "is_defined", "make_plan"]
