"""Values for long problems, chosen so that the far end of each dim counts.

They are a usual scale, even scores, ascending rows, and integers as large as the specification draws them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch

from ..checking.checked import Checked, TensorParam
from ..spec.function_specification import FunctionSpecification, scale_of
from ..syntax.types import F32, I32
from ..text.diagnostics import CuirError
from .function_problems import says_something
from .inputs import list_applicable_kinds, make_function_launch
from .tile_steps import align_heads
from .values.cases import Draw, count_elements, get_integer_consts

LONGEST = 131_075
_LONG = 20_000  # elements of a dim from which its sums are made exact
_SEEDS = 6  # seeds among which the one with the largest integers is chosen
_MOST = 600_000  # elements of all tensors of a problem whose seeds are compared, or with a long dim
_PLACES = (61, 5, 3)  # lengths of an integer table in a problem with a long dim


def list_float_inputs(checked: Checked) -> list[TensorParam]:
    """Return the tensors of floats that the kernel only reads."""
    return [t for t in checked.tensors if t.dtype.is_float and not t.written and not t.scratch]


def choose_usual_scale(checked: Checked) -> tuple[tuple[str, float], ...]:
    """Return a scalar `scale` by the literal length of rows, where there is no dim D.

    A drawn one leaves a softmax a single key.
    """
    if "D" in {*checked.dims, *checked.consts} or not any(s.name == "scale" and s.dtype == F32 for s in checked.scalars):
        return ()
    rows = [t.dims[-1] for t in list_float_inputs(checked) if t.dims and isinstance(t.dims[-1], int) and t.dims[-1] > 1]
    return (("scale", scale_of(rows[0])),) if rows else ()


def make_even_scores(checked: Checked, spec: FunctionSpecification, draws: Iterable[Draw]) -> Iterator[Draw]:
    """Yield the problems again with one of the first two tensors 0.

    Products with it are equal, so that a softmax weighs all keys alike.
    """
    if sum(len(t.dims) > 1 for t in list_float_inputs(checked)) < 2 or "zero" not in list_applicable_kinds(checked, spec):
        return
    for n, draw in enumerate(draws):
        even = replace(draw, name=f"{draw.name}, even", kind="zero", seed=n % 2)
        if says_something(checked, spec, even):
            yield even


def make_exact_sums(checked: Checked, spec: FunctionSpecification, draw: Draw) -> Draw:
    """Return a long problem with small whole numbers, whose sums f32 holds in any order.

    For 131,075 other numbers the order has a larger effect than the allowed error.
    """
    if max(draw.sizes.values(), default=0) < _LONG or "ties" not in list_applicable_kinds(checked, spec):
        return draw
    return replace(draw, kind="ties", seed=find_seed(checked, max(draw.sizes, key=lambda d: draw.sizes[d])))


def find_seed(checked: Checked, dim: str) -> int:
    """Return the seed with which a kind is about a tensor along the dim, preferably its rows."""
    tensors = _list_candidates(checked)
    along = sorted((t for t in tensors if dim in t.dims), key=lambda t: t.dims[-1] != dim)
    return tensors.index(along[0]) if along else 0


def _list_candidates(checked: Checked) -> list[TensorParam]:
    floats = list_float_inputs(checked)
    return [t for t in floats if len(t.dims) > 1] or floats


def choose_largest_integers(checked: Checked, spec: FunctionSpecification, draw: Draw) -> Draw:
    """Return the problem with the seed, of a few, for which the specification's integers are largest."""
    if spec.inputs is None or _sum_elements(checked, draw) > _MOST:
        return draw
    best: tuple[float, float] = (-1.0, -1.0)
    best_draw = draw
    step = 1 if draw.kind == "normal" else max(1, len(_list_candidates(checked)))  # keeps the tensor of a kind
    for seed in range(draw.seed, draw.seed + _SEEDS * step, step):
        try:
            launch = make_function_launch(checked, spec, replace(draw, seed=seed))
        except CuirError:
            return draw
        integers = [x for n, x in launch.inputs.items() if n in launch.from_inputs and not isinstance(x, float)]
        tensors = [x.double() for x in integers if isinstance(x, torch.Tensor) and not x.is_floating_point() and x.numel()]
        values = [float(x) for x in integers if isinstance(x, int)] + [x.max().item() for x in tensors]
        if not values:
            return draw
        if (candidate := (max(values), sum(x.sum().item() for x in tensors))) > best:
            best, best_draw = candidate, replace(draw, seed=seed)
    return best_draw


def list_other_lengths(checked: Checked, long: str) -> list[dict[str, int]]:
    """Return lengths of other dims in a problem with a long one, the largest small enough first.

    Tables of integers without the long dim get some places.
    """
    dims = {d for t in checked.tensors if t.dtype == I32 and not t.written and long not in t.dims for d in t.dims if isinstance(d, str)}
    sizes = (dict.fromkeys(dims, n) for n in _PLACES) if dims else ()
    return [s for s in sizes if _is_small(checked, {**s, long: LONGEST})] + [{}]


def has_long_rows(checked: Checked, dim: str) -> bool:
    """Return whether a tensor of floats that is read has rows along the dim."""
    return any(len(t.dims) > 1 and t.dims[-1] == dim for t in list_float_inputs(checked))


def _is_small(checked: Checked, sizes: dict[str, int]) -> bool:
    all_sizes = {**get_integer_consts(checked), **align_heads({d: sizes.get(d, 1) for d in checked.dims})}
    return max(count_elements(t, all_sizes) for t in checked.tensors) <= 2 * _MOST


def _sum_elements(checked: Checked, draw: Draw) -> int:
    all_sizes = {**get_integer_consts(checked), **draw.sizes}
    return sum(count_elements(t, all_sizes) for t in checked.tensors)
