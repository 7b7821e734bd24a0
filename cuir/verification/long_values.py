"""Values for long problems, chosen so that the far end of each dim counts.

They are a usual scale, even scores, ascending rows, and integers as large as the specification draws them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch

from ..checking.checked import Checked, TensorParam
from ..spec.functions import FunctionSpecification, scale_of
from ..syntax.types import F32, I32
from ..text.diagnostics import CuirError
from .draws import Draw, elements_of, known_sizes
from .function_problems import says_something
from .inputs import applicable, function_launch
from .steps import with_heads

LONGEST = 131_075
_LONG = 20_000  # elements of a dim from which sums of it are made exact
_SEEDS = 6  # of which the one with the largest integers is taken
_MOST = 600_000  # elements of all tensors of a problem whose seeds are compared, and of one beside a long dim
_PLACES = (61, 5, 3)  # elements of a table of integers beside a long dim


def floats_read(checked: Checked) -> list[TensorParam]:
    """Tensors of floats that the kernel only reads."""
    return [t for t in checked.tensors if t.dtype.is_float and not t.written and not t.scratch]


def usual_scale(checked: Checked) -> tuple[tuple[str, float], ...]:
    """A scalar `scale` by the literal length of rows, where no dim D says it: a drawn one leaves a softmax a single key."""
    if "D" in {*checked.dims, *checked.consts} or not any(s.name == "scale" and s.dtype == F32 for s in checked.scalars):
        return ()
    rows = [t.dims[-1] for t in floats_read(checked) if t.dims and isinstance(t.dims[-1], int) and t.dims[-1] > 1]
    return (("scale", scale_of(rows[0])),) if rows else ()


def with_even_scores(checked: Checked, spec: FunctionSpecification, draws: Iterable[Draw]) -> Iterator[Draw]:
    """The problems once more with one of the first two tensors 0: products with it are even, so that a softmax weighs all keys alike."""
    if sum(len(t.dims) > 1 for t in floats_read(checked)) < 2 or "zero" not in applicable(checked, spec):
        return
    for n, draw in enumerate(draws):
        even = replace(draw, name=f"{draw.name}, even", kind="zero", seed=n % 2)
        if says_something(checked, spec, even):
            yield even


def with_exact_sums(checked: Checked, spec: FunctionSpecification, draw: Draw) -> Draw:
    """A long problem with small whole numbers, whose sums f32 holds in any order: of 131,075 others the order decides more than is allowed."""
    if max(draw.sizes.values(), default=0) < _LONG or "ties" not in applicable(checked, spec):
        return draw
    return replace(draw, kind="ties", seed=seed_of(checked, max(draw.sizes, key=lambda d: draw.sizes[d])))


def seed_of(checked: Checked, dim: str) -> int:
    """The seed with which a kind is about a tensor along the dim, the rows of one if there are any."""
    tensors = _chosen_from(checked)
    along = sorted((t for t in tensors if dim in t.dims), key=lambda t: t.dims[-1] != dim)
    return tensors.index(along[0]) if along else 0


def _chosen_from(checked: Checked) -> list[TensorParam]:
    floats = floats_read(checked)
    return [t for t in floats if len(t.dims) > 1] or floats


def with_largest_integers(checked: Checked, spec: FunctionSpecification, draw: Draw) -> Draw:
    """The problem with the seed, of a few, for which the specification's integers are largest."""
    if spec.inputs is None or _elements(checked, draw) > _MOST:
        return draw
    best: tuple[float, float] = (-1.0, -1.0)
    found = draw
    step = 1 if draw.kind == "normal" else max(1, len(_chosen_from(checked)))  # a kind stays about its tensor
    for seed in range(draw.seed, draw.seed + _SEEDS * step, step):
        try:
            given = function_launch(checked, spec, replace(draw, seed=seed))
        except CuirError:
            return draw
        integers = [x for n, x in given.inputs.items() if n in given.given and not isinstance(x, float)]
        tensors = [x.double() for x in integers if isinstance(x, torch.Tensor) and not x.is_floating_point() and x.numel()]
        values = [float(x) for x in integers if isinstance(x, int)] + [x.max().item() for x in tensors]
        if not values:
            return draw
        if (now := (max(values), sum(x.sum().item() for x in tensors))) > best:
            best, found = now, replace(draw, seed=seed)
    return found


def beside_long(checked: Checked, long: str) -> list[dict[str, int]]:
    """Lengths of other dims beside a long one: tables of integers without it get some places; the largest that stays thin comes first."""
    dims = {d for t in checked.tensors if t.dtype == I32 and not t.written and long not in t.dims for d in t.dims if isinstance(d, str)}
    sizes = (dict.fromkeys(dims, n) for n in _PLACES) if dims else ()
    return [s for s in sizes if _thin(checked, {**s, long: LONGEST})] + [{}]


def has_long_rows(checked: Checked, dim: str) -> bool:
    """Return whether a tensor of floats that is read has rows along the dim."""
    return any(len(t.dims) > 1 and t.dims[-1] == dim for t in floats_read(checked))


def _thin(checked: Checked, sizes: dict[str, int]) -> bool:
    at = {**known_sizes(checked), **with_heads({d: sizes.get(d, 1) for d in checked.dims})}
    return max(elements_of(t, at) for t in checked.tensors) <= 2 * _MOST


def _elements(checked: Checked, draw: Draw) -> int:
    at = {**known_sizes(checked), **draw.sizes}
    return sum(elements_of(t, at) for t in checked.tensors)
