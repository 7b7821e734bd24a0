"""Hundreds of units of one CTA and of steps of a unit, without data.

Where a dim makes both units and the steps of each, its launch has their product: few of the launch's CTAs run then, and
the units of one CTA come from a second dim.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from ..attn.verification.problems import Case, is_attention
from ..checking.checked import Checked
from ..checking.kernel_results import keep_with_kernel
from ..checking.tensor_modes import find_exchanged
from ..interp import Schedule
from ..interp.interpreted_launch import Grid
from ..spec.function_specification import AnySpecification, FunctionSpecification
from ..spec.specification import Lengths
from ..text.diagnostics import CuirError
from .long_values import choose_usual_scale
from .spec_dispatch import AnyCase, get_tile_sizes
from .synchronisation import run_synchronisation
from .tile_steps import align_heads, find_named_dims, find_steps, find_unit_dims
from .values.cases import Draw, select_fitting

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
