"""Hundreds of units of one CTA and of steps of a unit, without data.

Where a dim makes both units and the steps of each, its launch has their product: few of the launch's CTAs run then, and
the units of one CTA come from a second dim.

Values for long problems, chosen so that the far end of each dim counts.

They are a usual scale, even scores, ascending rows, and integers as large as the specification draws them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from ..attn.verification.problems import Case, is_attention
from ..checking.checked import Checked, TensorParam
from ..checking.kernel_results import keep_with_kernel
from ..checking.tensor_modes import find_exchanged
from ..interp import Schedule
from ..interp.interpreted_launch import Grid
from ..spec.function_specification import AnySpecification, FunctionSpecification, scale_of
from ..spec.specification import Lengths
from ..syntax.types import F32, I32
from ..text.diagnostics import CuirError
from .function_problems import says_something
from .inputs import list_applicable_kinds, make_function_launch
from .spec_dispatch import AnyCase, get_tile_sizes
from .synchronisation import run_synchronisation
from .tile_steps import align_heads, find_named_dims, find_steps, find_unit_dims
from .values.cases import Draw, count_elements, get_integer_consts, select_fitting

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


NAME = "steps"  # names of these problems begin with it
UNITS, STEPS = 300, 520  # units of one CTA, and steps of a unit
_EVENTS = 100_000  # waits, arrivals, copies and products of a launch; beyond, it is made of smaller ones
_PROBED = (4, 8)  # steps between which the growth of a launch is measured
_GROWTH = 3  # quotient of their events: 2 for units alike, 4 for as many steps as units
_TOGETHER = 16  # steps of a dim that makes units and their steps, where a second dim makes the other units
_LEFT_OUT = ("V202", "U125", "U113", "X108", "X113", "D402")  # codes of problems of this size that cannot be run


def make_far_cases(checked: Checked, spec: AnySpecification) -> list[AnyCase]:
    """Return problems of hundreds of steps and of units, for runs of their synchronisation on one CTA."""
    if isinstance(spec, FunctionSpecification) and not is_attention(checked.origin):
        steps, units = find_steps(checked, spec), find_unit_dims(checked)
        dims = _list_dims(checked, spec)
        inner, outer = [d for d in dims if d not in units], [d for d in dims if d in units]
        far = [x for pair in itertools.zip_longest(inner, outer) for x in pair if x is not None]  # alternating
        counts = {d: STEPS if d not in units else UNITS for d in far}
        draws = [Draw(f"{NAME}: {n} of {d}", make_sizes(checked, steps, {d: n})) for d, n in counts.items()]
        return list(_select_fitting_in_memory(checked, spec, draws))
    BM, BN = get_tile_sizes(checked)
    return [
        Case(f"{NAME}: {UNITS} heads", Lengths(1, UNITS, 1, BM, BN // 2)),
        Case(f"{NAME}: {STEPS} blocks", Lengths(1, 1, 1, 1, STEPS * BN)),
        Case(f"{NAME}: {UNITS} key heads of a batch", Lengths(5, UNITS // 5, UNITS // 5, 1, BN)),
        Case(f"{NAME}: {UNITS} tiles", Lengths(1, 1, 1, UNITS * BM, BN)),
    ]


def run_far_case(checked: Checked, spec: AnySpecification, case: AnyCase) -> int:
    """Run the synchronisation of a problem of `make_far_cases`; return the number of runs.

    One whose events grow with the square of its length, and that would have too many, is run as smaller launches: two
    CTAs of one with the steps, and one CTA with the units of two dims. Raises CuirError with the fault found.
    """
    dim = case.name.removeprefix(f"{NAME}: {UNITS} of ") if isinstance(case, Draw) else ""
    if isinstance(case, Draw) and isinstance(spec, FunctionSpecification) and dim in case.sizes and not find_exchanged(checked):
        second = next((d for d in _list_dims(checked, spec) if d != dim and d in find_unit_dims(checked)), None)
        few, more = _count_events(checked, spec, dim)
        if second is not None and more * (UNITS / _PROBED[1]) ** math.log2(more / few) > _EVENTS:
            return _run_parts(checked, spec, case, dim, second)
    return run_unless_too_large(checked, spec, case, 1, Schedule())


def run_unless_too_large(
    checked: Checked,
    spec: AnySpecification,
    case: AnyCase,
    grid: Grid,
    schedule: Schedule,
    choose: Callable[[int], Sequence[int]] | None = None,
) -> int:
    """Run a problem's synchronisation; return 1, or 0 for one that cannot be run.

    choose: returns the CTAs that run, for the number of those that are launched; by default all.
    """
    try:
        run_synchronisation(checked, spec, case, grid=grid, schedule=schedule, choose=choose)
    except CuirError as error:
        if error.diagnostics[0].code in _LEFT_OUT:
            return 0
        raise
    return 1


def make_sizes(checked: Checked, steps: Mapping[str, int], counts: Mapping[str, int]) -> dict[str, int]:
    """Return lengths: even counts end with a whole step, odd ones with a part; all other dims are 1."""
    return align_heads({d: compute_length(counts[d], max(1, steps[d])) if d in counts else 1 for d in checked.dims})


def compute_length(count: int, step: int) -> int:
    """Return the length of so many steps, of which an odd number ends with a part."""
    return count * step - (step // 2 if count % 2 else 0)


def _list_dims(checked: Checked, spec: FunctionSpecification) -> list[str]:
    """Return the dims that may be long, those of single elements first."""
    steps, named = find_steps(checked, spec), find_named_dims(checked)
    return sorted((d for d in checked.dims if d != "HK" and d in named), key=lambda d: not steps[d])


def lengthens_units(checked: Checked, spec: FunctionSpecification, dim: str) -> bool:
    """Return whether a dim makes units of work and the steps of each.

    A launch then grows with the square of the dim.
    """
    few, more = _count_events(checked, spec, dim) if dim in find_unit_dims(checked) else (1, 1)
    return more > _GROWTH * few


@keep_with_kernel
def _count_events(checked: Checked, spec: FunctionSpecification, dim: str) -> tuple[int, int]:
    """Return the events of a launch of 4 and of 8 steps of a dim; (1, 1) where these cannot be run."""
    try:
        few, more = (_count_events_of(checked, spec, dim, count) for count in _PROBED)
    except CuirError:  # a fault is reported by the run of the problem itself
        return 1, 1
    return few, more


def _count_events_of(checked: Checked, spec: FunctionSpecification, dim: str, count: int) -> int:
    draw = Draw(
        f"{NAME}: {count} of {dim}", make_sizes(checked, find_steps(checked, spec), {dim: count}), scalars=choose_usual_scale(checked)
    )
    admitted = select_fitting(checked, spec, [draw])[0]
    return max(1, sum(run_synchronisation(checked, spec, admitted[0], grid=1).report.events.values())) if admitted else 1


def _run_parts(checked: Checked, spec: FunctionSpecification, case: Draw, dim: str, second: str) -> int:
    """Run the first and the last CTA of a launch with a unit each, and one CTA with the units of two dims."""
    steps = find_steps(checked, spec)
    long = Draw(f"{NAME}: {STEPS} of {dim}", make_sizes(checked, steps, {dim: STEPS}), scalars=case.scalars)
    counts = {dim: _TOGETHER, second: -(-UNITS // _TOGETHER)}
    joint_draw = Draw(
        f"{NAME}: {' and '.join(f'{n} of {d}' for d, n in counts.items())}", make_sizes(checked, steps, counts), scalars=case.scalars
    )
    runs = 0
    for draw in _select_fitting_in_memory(checked, spec, [long]):
        runs += run_unless_too_large(checked, spec, draw, lambda units: max(1, units), Schedule(), _choose_ends)
    for draw in _select_fitting_in_memory(checked, spec, [joint_draw]):
        runs += run_unless_too_large(checked, spec, draw, 1, Schedule())
    return runs


def _choose_ends(ctas: int) -> Sequence[int]:
    return sorted({0, ctas - 1})


def _select_fitting_in_memory(checked: Checked, spec: FunctionSpecification, draws: Sequence[Draw]) -> Iterator[Draw]:
    """Yield the draws that the specification admits, also ones too large for a run with data."""
    admitted, large = select_fitting(checked, spec, draws)
    yield from admitted
    for _, _, draw in large:
        yield draw
