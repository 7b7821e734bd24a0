"""Special values that inputs of a kernel may hold, found by evaluating its specification."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from ...checking.checked import Checked
from ...spec.function_specification import Value
from .joint_extremes import Meeting, find_meetings, find_steep, make_steep, meet
from .mentioned_numbers import Mentioned
from .special_values import (
    ALONE,
    END,
    OPPOSED,
    SMALL,
    find_spread,
    hide,
    list_neighbours,
    list_others,
    list_vast_factors,
    make_close,
    make_large,
    make_near,
    make_vast,
    put_few,
    scatter,
    scatter_few,
)
from .special_values import SPREAD_NAN as NAN

SPECIAL = ("hidden", "bounds", "infinite", "nan", "steep", "vast", "near", "both", "edges")  # kinds of inputs
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_USUAL = (0.0, -0.0, 1.0, -1.0)
_SCALARS = (0.0, 1.0, -1.0, -0.7)
_BLOCKS = (16, 32, 64, 128)
_TURNS = 3  # forms of problems with hidden values; in the last one all other tensors have rows alike
_LEAST_FLOOR, _LARGEST_FLOOR = 1e-30, 1e-2  # of numbers that keep a root, a logarithm or a quotient away from 0
_SCALED = 2.0**8  # an exact factor, in all dtypes
_ROUNDED = 1e-12  # relative difference of results in float64 that are the same
_SHARE = 1 / 4  # share of the changed elements that must be finite
_VIEWS = (
    "Expand", "Unsqueeze", "Squeeze", "View", "Reshape", "Slice", "Select", "ToCopy", "Clone", "Permute", "Transpose",
    "T", "Repeat", "Index", "UnsafeView", "Alias", "ConstantPadNd", "Cat", "MaskedFill", "Gather", "IndexSelect",
)  # fmt: skip

_ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Neg")
_PRODUCTS = frozenset(
    [
        "Mm",
        "Bmm",
        "Addmm",
        "Baddbmm",
        "Mv",
        "Addmv",
        "Dot",
        "Convolution",
        "ScaledDotProductAttentionMath",
        "ScaledDotProductFlashAttentionForCpu",
    ]
)
Outputs = Mapping[str, torch.Tensor]
Evaluate = Callable[[Mapping[str, Value]], Outputs | None]


@dataclass(frozen=True)
class Uses:
    """Uses of a tensor by the specification.

    added: as a summand, such as an additive mask or a bias. multiplied: in a matrix product, where infinities give NaN
    on a tensor core.
    """

    added: bool = False
    multiplied: bool = False


@dataclass(frozen=True)
class Operations:
    """Kinds of operations that a kernel has: reductions of rows or columns, matrix products, exponentials."""

    reductions: bool
    products: bool
    exponentials: bool


def list_operations(checked: Checked) -> Operations:
    """List the kinds of operations that a kernel calls."""
    traits = [c.op.traits for c in checked.calls()]
    return Operations(
        any(t.reduction or t.column_reduction for t in traits),
        any(t.product for t in traits),
        any(t.exponential or t.logistic for t in traits),
    )


@dataclass(frozen=True)
class SpecialPlan:
    """Special values by the names of inputs.

    hidden: tensors that may have runs of -inf: summands, such as additive masks and biases, and what is reduced, which
    are also in `reduced`, with the answer to whether whole rows may be -inf. infinite, bounds: values that
    elements may have; meetings: infinities that occur together, with scalars at 0 and 1. steep: tensors whose rows may
    fall or rise by more than exponentials admit, with their factors. tensors: those that may be vast or near one
    another; floors: small numbers that values are compared with, below which rows lie; alike: pairs of one shape.
    scalars: values of those that are tried. integers: integer scalars; mentioned: numbers that they are compared with. derived: the specification gives floats that follow from others, such as the
    LSE of a forward pass: they are rounded separately, which vast numbers would show. free: tensors on whose scale
    outputs do not depend: only of these may sums not leave f32. selected: tensors of whose
    elements outputs are extremes, NaN if one of these is.
    """

    hidden: tuple[str, ...] = ()
    infinite: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    meetings: tuple[Meeting, ...] = ()
    steep: tuple[tuple[str, str], ...] = ()
    bounds: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    tensors: tuple[str, ...] = ()
    floors: tuple[float, ...] = ()
    alike: tuple[tuple[str, str], ...] = ()
    scalars: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    integers: tuple[str, ...] = ()
    mentioned: tuple[int, ...] = ()
    derived: bool = False
    free: tuple[str, ...] = ()
    reduced: Mapping[str, bool] = field(default_factory=dict)
    selected: tuple[str, ...] = ()

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """All pairs of tensors."""
        return [(a, b) for i, a in enumerate(self.tensors) for b in self.tensors[i + 1 :]]

    @property
    def vast_forms(self) -> list[tuple[str, tuple[str, ...]]]:
        """The forms of problems with vast and tiny rows, each with the tensors that have them."""
        alone = [(form, (n,)) for n in self.tensors for form in (ALONE, SMALL, *((END,) if n in self.free else ()))]
        return [*([(OPPOSED, self.tensors)] if len(self.tensors) > 1 and not self.derived else []), *alone]

    def count(self, kind: str) -> int:
        """Count the distinct problems of a kind; 0 if it does not apply."""
        if kind == "edges":
            longest = max((len(values) for values in self.scalars.values()), default=0)
            return max(longest, 12 if self.integers else 0)
        return {
            "hidden": len(self.hidden),
            "infinite": len(self.meetings) + len(self.infinite),
            "nan": len(self.selected),
            "steep": len(self.steep),
            "bounds": 2 * bool(self.bounds),
            "vast": len(self.vast_forms),
            "near": len(self.tensors) + len(self.alike),
            "both": len(self.pairs) * (1 if self.derived else 2),
        }[kind]

    def values(self, kind: str, seed: int, inputs: Mapping[str, Value], block: int) -> dict[str, Value]:
        """Return special values that replace some inputs; the seed modulo `count` selects them.

        block: columns that a kernel processes at once.
        """
        generator, count = torch.Generator().manual_seed(seed), self.count(kind)
        index, turn = (seed % count, seed // count) if count else (0, 0)
        tensors = {n: x for n in inputs if isinstance(x := inputs[n], torch.Tensor)}
        if kind == "edges":
            return self.edges(index, turn, inputs)
        if kind == "bounds":
            short = {
                n: torch.tensor(inputs[n], dtype=torch.bfloat16).item() for n in self.scalars if type(inputs[n]) is float
            }  # all dtypes represent it
            scalars = [v for v in ({**inputs, **short}).values() if type(v) is float and math.isfinite(v)]
            near = {n: [v for s in scalars for v in list_neighbours(s, tensors[n].dtype)] for n in self.bounds}
            return short | {n: scatter(tensors[n], [*values, *near[n]], seed, block, generator) for n, values in self.bounds.items()}
        if kind == "hidden":
            name = self.hidden[index]
            level = turn % _TURNS == _TURNS - 1
            # a single row begins with a run at one turn, and ends with one at the next
            is_reduced = name in self.reduced
            # logits times log2(e), the usual form of an exponential, overflow beside the lowest number itself
            share = 0.5 if is_reduced else 1.0
            rows = hide(tensors[name], 2 * turn, block, generator, level or not is_reduced, self.reduced.get(name, True), share)
            return {**(self._level_others(name, tensors) if level else {}), name: rows}
        if kind == "infinite":
            if index < len(self.meetings):
                return meet(self.meetings[index], tensors, turn, generator)
            name = list(self.infinite)[index - len(self.meetings)]
            return {name: scatter_few(tensors[name], self.infinite[name], turn, generator)}
        if kind == NAN:
            name = self.selected[index]
            return {name: put_few(tensors[name], math.nan, turn)}
        if kind == "steep":
            name, form = self.steep[index]
            return {name: make_steep(tensors[name], form, turn)}
        if kind == "vast":
            form, names = self.vast_forms[index]
            return {
                n: make_vast(x, turn, list_vast_factors(form, x.dtype, i, not self.derived, self.floors))
                for i, n in enumerate(names)
                for x in [tensors[n]]
            }
        if kind == "near":
            if index < len(self.tensors):
                return {(n := self.tensors[index]): make_near(tensors[n], turn)}
            a, b = self.alike[index - len(self.tensors)]
            return {b: make_close(tensors[a], tensors[b], turn)}
        pair, far = (index, False) if self.derived else (index // 2, (index + turn) % 2 == 1)
        return {n: make_large(tensors[n], far) for n in self.pairs[pair]}

    def _level_others(self, name: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, Value]:
        """Return the other tensors with one value a row.

        Beside a dtype's lowest number float64 keeps what float32 rounds away; of rows alike both give the same.
        """
        return {n: tensors[n][..., :1].expand(tensors[n].shape).contiguous() for n in self.tensors if n != name}

    def edges(self, index: int, turn: int, inputs: Mapping[str, Value]) -> dict[str, Value]:
        """Return values of scalars at their edges, other combinations at each turn."""
        longest = max((max(x.shape, default=1) for x in inputs.values() if isinstance(x, torch.Tensor)), default=1)
        lists = {**self.scalars, **{n: tuple(list_integer_edges(longest, self.mentioned)) for n in self.integers}}
        return {n: values[(index + i * (1 + index // len(values) + turn)) % len(values)] for i, (n, values) in enumerate(lists.items())}


def list_integer_edges(longest: int, mentioned: Sequence[int]) -> list[int]:
    """Return integers at edges.

    0, the first and last valid one, numbers of blocks, and compared numbers, with their neighbours.
    """
    least = -1 if any(n < 0 for n in mentioned) else 0
    near = [m + off for m in mentioned for off in (0, -1, 1)]
    blocks = [n + off for n in _BLOCKS for off in (0, -1, 1)]
    return list(dict.fromkeys(n for n in (0, 1, longest, longest - 1, *near, *blocks) if least <= n <= longest))


def make_plan(
    tensors: Mapping[str, torch.Tensor],
    scalars: Mapping[str, Value],
    evaluate: Evaluate,
    mentioned: Mentioned,
    uses: Callable[[str], Uses],
    dims: Mapping[str, Sequence[str | int]],
    has: Operations,
) -> SpecialPlan:
    """Try special values of each tensor and scalar.

    evaluate: returns the specification's results with these values in place of normal ones, None if it fails. uses: how
    a tensor enters the outputs. dims: of each tensor, as the kernel declares them. has: operations of the kernel.
    """
    plain = evaluate({})
    if plain is None or not all(x.numel() for x in plain.values()):
        return SpecialPlan()
    drawn = {n: x for n, x in tensors.items() if x.dtype in DTYPES and x.dim() and x.numel()}

    def is_finite(values: Mapping[str, Value], least: float = _SHARE) -> bool:
        return is_defined(plain, evaluate(values), least)

    def decides_integers(n: str, x: torch.Tensor) -> bool:
        return _is_arbitrary(plain, evaluate({n: scatter_few(x, (math.nan,), 0, torch.Generator().manual_seed(0))}))

    generator = torch.Generator().manual_seed(0)
    selected = tuple(
        n
        for n, x in drawn.items()
        if find_spread(x, 0, plain, lambda y, n=n: evaluate({n: y}), list_others(drawn, n))  # type: ignore[misc]
    )
    hidden, reduced, infinite, bounds = list[str](), dict[str, bool](), dict[str, tuple[float, ...]](), dict[str, tuple[float, ...]]()
    for n, x in drawn.items():
        use = uses(n)
        fills = not use.multiplied and (
            use.added or (has.reductions and _leaves_out(plain, evaluate({n: scatter_few(x, (-math.inf,), 0, generator)})))
        )
        if fills and is_finite({n: hide(x, 0, max(1, x.shape[-1] // 4), generator)}):
            hidden.append(n)
            if not use.added:
                reduced[n] = _stays_finite(plain, evaluate({n: torch.full_like(x, -math.inf)}))
        values = (math.inf, -math.inf, *((math.nan,) if mentioned.open and not decides_integers(n, x) else ()))

        def is_admitted(v: float, n: str = n, x: torch.Tensor = x) -> bool:
            changed = scatter_few(x, (v,), 0, generator)
            outputs = evaluate({n: changed})
            reaches = not has.products and math.isinf(v) and _reaches_part(changed, plain, outputs)
            return reaches or is_defined(plain, outputs, _SHARE)

        if admitted := () if use.multiplied else tuple(v for v in values if is_admitted(v)):
            infinite[n] = admitted
        near = dict.fromkeys(v for number in mentioned.floats for v in list_neighbours(number, x.dtype))
        for choice in ((*_USUAL, *near), _USUAL, (1.0, -1.0, *(v for v in near if v)), (1.0, *(v for v in near if v > 0)), (1.0,)):
            if is_finite({n: scatter(x, choice, 0, max(1, x.shape[-1] // 4), generator)}):
                bounds[n] = choice
                break
    floats = {n: v for n, v in scalars.items() if type(v) is float}
    edges: dict[str, tuple[Value, ...]] = {n: (False, True) for n, v in scalars.items() if isinstance(v, bool)}
    near = dict.fromkeys(v for number in mentioned.floats for v in list_neighbours(number, torch.float32))
    for n in floats:
        if admitted := tuple(v for v in dict.fromkeys((*_SCALARS, *near)) if _admits(plain, evaluate({n: v}), v < 0)):
            edges[n] = admitted
    names = list(drawn)
    alike = tuple((a, b) for i, a in enumerate(names) for b in names[i + 1 :] if dims[a] == dims[b])
    integers = tuple(n for n, v in scalars.items() if type(v) is int)
    unspoiled = {n: x for n, x in drawn.items() if not uses(n).multiplied}
    meetings = find_meetings(unspoiled, infinite, edges, evaluate, is_defined)
    steep = find_steep(unspoiled, evaluate, plain) if has.exponentials else ()
    return SpecialPlan(
        tuple(hidden),
        infinite,
        meetings,
        steep,
        bounds,
        tuple(names),
        alike=alike,
        scalars=edges,
        integers=integers,
        mentioned=mentioned.integers,
        free=() if mentioned.wide else tuple(n for n, x in drawn.items() if _is_same(plain, evaluate({n: x * _SCALED}))),
        floors=tuple(dict.fromkeys(abs(v) for v in mentioned.floats if _LEAST_FLOOR < abs(v) < _LARGEST_FLOOR)),
        reduced=reduced,
        selected=selected,
    )


def is_defined(plain: Outputs, outputs: Outputs | None, least: float) -> bool:
    """Return whether enough changed elements are finite, and each output has a finite number.

    least: the share of finite elements among those that differ from the outputs of the plain inputs.
    """
    if outputs is None or not has_numbers(outputs):
        return False
    changed = finite = 0
    for n, x in outputs.items():
        differs = ~((x == plain[n]) | (x.isnan() & plain[n].isnan())) if x.shape == plain[n].shape else torch.ones_like(x, dtype=torch.bool)
        changed, finite = changed + int(differs.sum()), finite + int((differs & x.isfinite()).sum())
    return finite > 0 and finite >= least * changed


def _leaves_out(plain: Outputs, outputs: Outputs | None) -> bool:
    """Return whether results are as finite as the plain ones.

    If so, -inf in an input was left out, as maxima and softmax do.
    """
    return outputs is not None and all(
        x.shape == plain[n].shape and not (~x.isfinite() & plain[n].isfinite()).any() for n, x in outputs.items()
    )


def _reaches_part(changed: torch.Tensor, plain: Outputs, outputs: Outputs | None) -> bool:
    """Return whether infinities of an input reach other elements, but not all of a row, as in a running sum.

    The others stay as they were, so that a kernel may not multiply the infinity by 0 for them.
    """
    if outputs is None or not has_numbers(outputs):
        return False
    for n, x in outputs.items():
        if x.shape == plain[n].shape == changed.shape and x.dim() > 1 and x.is_floating_point():
            stays, reached = (x == plain[n]) & x.isfinite(), x.isinf() & changed.isfinite()
            if bool((reached.any(-1) & stays.any(-1)).any()):
                return True
    return False


def _is_same(plain: Outputs, outputs: Outputs | None) -> bool:
    """Return whether outputs differ by roundings alone."""
    return outputs is not None and all(
        x.shape == plain[n].shape and torch.allclose(x.double(), plain[n].double(), rtol=_ROUNDED, atol=0.0, equal_nan=True)
        for n, x in outputs.items()
    )


def _is_open(plain: Outputs, outputs: Outputs | None) -> bool:
    """Return whether some result is NaN that was none."""
    return outputs is None or any(
        x.is_floating_point() and bool((x.isnan() & ~plain[n].isnan()).any()) for n, x in outputs.items() if x.shape == plain[n].shape
    )


def _stays_finite(plain: Outputs, outputs: Outputs | None) -> bool:
    """Return whether all results that were finite still are.

    What a function gives as NaN or an infinity is not asked for.
    """
    return outputs is not None and not any(
        x.is_floating_point() and bool((~x.isfinite() & plain[n].isfinite()).any()) for n, x in outputs.items() if x.shape == plain[n].shape
    )


def _is_arbitrary(plain: Outputs, outputs: Outputs | None) -> bool:
    """Return whether NaN in an input changes integers beside results that are NaN.

    Such integers depend on comparisons of NaN.
    """
    if outputs is None or not _is_open(plain, outputs):
        return False
    return any(not x.is_floating_point() and not torch.equal(x, plain[n]) for n, x in outputs.items())


def has_numbers(outputs: Outputs) -> bool:
    """Return whether each output has a finite number or is empty."""
    return all(not x.numel() or bool(widen(x).isfinite().any()) for x in outputs.values())


def widen(x: torch.Tensor) -> torch.Tensor:
    """Convert an 8-bit float output to float32, since PyTorch has no isfinite for it."""
    return x.float() if x.is_floating_point() and x.dtype.itemsize == 1 else x


def _admits(plain: Outputs, outputs: Outputs | None, negative: bool) -> bool:
    """Return whether a scalar may have a value: the outputs are numbers; for a negative one no fewer."""
    if outputs is None or not has_numbers(outputs):
        return False
    return not negative or _count_not_finite(outputs.values()) <= _count_not_finite(plain.values())


def _count_not_finite(outputs: Iterable[torch.Tensor]) -> int:
    return sum(int((~x.isfinite()).sum()) for x in outputs)


def find_uses(outputs: Iterable[torch.Tensor], leaf: torch.Tensor) -> Uses | None:
    """Find how a tensor enters the outputs, by autograd's graph; None if the graph does not tell."""
    above: dict[object, list[object]] = {}
    pending, visited = [x.grad_fn for x in outputs if x.grad_fn is not None], set[object]()
    entry: object = None
    while pending:
        node = pending.pop()
        if node in visited:
            continue
        visited.add(node)
        for next_node, _ in node.next_functions:
            if next_node is None:
                continue
            above.setdefault(next_node, []).append(node)
            pending.append(next_node)
            if getattr(next_node, "variable", None) is leaf:
                entry = next_node
    if entry is None:
        return None
    return Uses(
        "Add" in _collect_operations(above, entry, _VIEWS),
        not _PRODUCTS.isdisjoint(_collect_operations(above, entry, (*_VIEWS, *_ARITHMETIC))),
    )


def _collect_operations(above: Mapping[object, Sequence[object]], entry: object, through: Collection[str]) -> set[str]:
    """Return the operations that a node enters, directly or through others of these names."""
    users, visited, names = list(above.get(entry, ())), set[object](), set[str]()
    while users:
        user = users.pop()
        if user in visited:
            continue
        visited.add(user)
        name = type(user).__name__.partition("Backward")[0].removesuffix("_")
        names.add(name)
        if name in through:
            users += above.get(user, ())
    return names


__all__ = ["SPECIAL", "SpecialPlan", "Uses", "find_uses", "has_numbers", "is_defined", "list_integer_edges", "list_operations", "make_plan"]
