"""Problems with fixed counts of steps: 4 to 8, 12, 13, 16, 17 and 32, of one dim or two."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from functools import partial

from ..attn.verification.problems import Case, get_parts, is_attention
from ..checking.checked import Checked
from ..interp import Schedule
from ..interp.interpreted_launch import Grid
from ..spec.function_specification import AnySpecification, FunctionSpecification
from ..spec.specification import Lengths
from ..text.diagnostics import CuirError
from ..text.phrases import ProgressMessage
from . import resource_limits
from .far_counts import (
    NAME,
    choose_usual_scale,
    compute_length,
    lengthens_units,
    make_even_scores,
    make_far_cases,
    make_sizes,
    run_far_case,
    run_unless_too_large,
)
from .request import Progress
from .side_processes import Job
from .spec_dispatch import AnyCase, convert_case, get_tile_sizes, is_backward
from .tile_steps import find_named_dims, find_steps, find_unit_dims
from .values.cases import Draw, select_fitting

COUNTS = (4, 5, 6, 7, 8, 12, 16, 32)
_SECOND_COUNTS = {
    4: 12,
    5: 8,
    6: 7,
    7: 6,
    8: 5,
    12: 4,
    13: 2,
    16: 3,
    17: 3,
    32: 2,
}  # steps of a second dim: every count, and few steps in all
# at level full: every count to 17, so that each remainder by a few occurs
_MORE = {9: 2, 10: 3, 11: 2, 14: 3, 15: 2, 21: 3, 33: 2}
# blocks of two dims of units: 17 leaves a remainder of every group of up to 16
_ACROSS = ((7, 3), (3, 7), (17, 2), (2, 17))
_ACROSS_FULL = tuple(x for n in range(4, 18) for x in ((n, 3), (3, n), (n, 2), (2, n)))
_MANY = 12  # at level quick, so many steps of so many units are not repeated by a second dim
_REST = {3: 6, 2: 16, 1: 32}  # few of the first dim, as a ring of three has stages; the largest counts of the second
_UNEVEN = (f"{NAME}: 13 of", f"{NAME}: 17 of")  # problems in which each element affects the result
_GRIDS = (1, 2, 1, 3)  # one CTA has all units; every second time shares may differ
_SCHEDULES = (
    Schedule.random(1),
    Schedule.adversarial("engines_first"),
    Schedule.adversarial("workers_first"),
    Schedule.adversarial("reverse"),
)
_STRIDE = 5  # ways of a problem differ in grid and schedule between turns; coprime to their number
_TOGETHER = 10  # problems per job


def make_counted_cases(checked: Checked, spec: AnySpecification, level: str) -> list[AnyCase]:
    """Return problems of every count of steps, which are also run with data.

    Without those that the specification's `sizes` or memory refuses.
    """
    if isinstance(spec, FunctionSpecification) and not is_attention(checked.origin):
        admitted = select_fitting(checked, spec, list(_make_draws(checked, spec, level)))[0]
        long = [d for d in admitted if d.name.startswith(_UNEVEN) and (level == "full" or not _makes_units(checked, d))]
        # gradients of equal scores cancel to the roundings of f32 products
        if is_backward(checked.origin) or get_parts(checked):
            return [*admitted]
        return [*admitted, *make_even_scores(checked, spec, long)]
    cases = list(_make_attention_cases(*get_tile_sizes(checked), level))
    if not isinstance(spec, FunctionSpecification):
        return list(cases)
    admitted_cases: list[AnyCase] = []
    for case in cases:
        try:
            admitted_cases.append(convert_case(checked, spec, case))
        except CuirError as error:
            if error.diagnostics[0].code != "X108":
                raise
    return admitted_cases


def is_counted(case: AnyCase) -> bool:
    """Return whether a problem is of this module, by its name."""
    return case.name.startswith(NAME)


def choose_grid(number: int) -> Grid:
    """Return the number of CTAs on which the `number`-th problem runs.

    It is a function, since a kernel without units of work has a fixed grid.
    """
    ctas = _GRIDS[number % len(_GRIDS)]
    return lambda units: ctas


def make_counted_jobs(
    checked: Checked, spec: AnySpecification, cases: Sequence[AnyCase], level: str, progress: Progress = lambda message: None
) -> Iterator[Job]:
    """Yield jobs that run the synchronisation of the problems, and of far larger ones.

    Each returns its number of runs. At level full each problem runs on 1 to 3 CTAs and under all schedules: in one way
    at least, and in the others while the time lasts. A job raises CuirError with the fault found.
    """
    far = make_far_cases(checked, spec)
    for case in far if level == "full" else far[:2]:
        yield partial(run_far_case, checked, spec, case)
    if level == "full":
        yield partial(_check_in_every_way, checked, spec, cases, progress)
        return
    numbered = list(enumerate(cases))
    for first in range(0, len(numbered), _TOGETHER):
        yield partial(_check_in_turn, checked, spec, numbered[first : first + _TOGETHER])


def _check_in_turn(checked: Checked, spec: AnySpecification, numbered: Sequence[tuple[int, AnyCase]]) -> int:
    """Run each problem once, on grids and under schedules in turn."""
    return sum(
        run_unless_too_large(checked, spec, case, choose_grid(number + 1), _SCHEDULES[number % len(_SCHEDULES)])
        for number, case in numbered
    )


def _check_in_every_way(checked: Checked, spec: AnySpecification, cases: Sequence[AnyCase], progress: Progress) -> int:
    """Run the problems on each grid and under each schedule, while the time lasts after the first turn."""
    runs, begin = 0, time.process_time()
    ways = list(itertools.product((1, 2, 3) if checked.tiles is not None else (1,), _SCHEDULES))
    for turn in range(len(ways)):
        for number, case in enumerate(cases):
            spent = time.process_time() - begin
            if turn and spent > resource_limits.FURTHER_WAYS:
                return runs
            share = max((turn * len(cases) + number) / (len(ways) * len(cases)), spent / resource_limits.FURTHER_WAYS if turn else 0.0)
            progress(ProgressMessage(f"counts of steps, round {turn + 1} of at most {len(ways)}, problem {number + 1}", share))
            runs += run_unless_too_large(checked, spec, case, *ways[(turn * _STRIDE + number) % len(ways)])
    return runs


def _make_draws(checked: Checked, spec: FunctionSpecification, level: str) -> Iterator[Draw]:
    """Yield problems for pairs of dims, the second count falling as the first rises.

    A dim of steps within a unit is paired with one of units, where there are both.
    """
    steps, units, named = find_steps(checked, spec), find_unit_dims(checked), find_named_dims(checked)
    inner = [d for d in checked.dims if d not in units and d != "HK" and d in named]
    outer = sorted((d for d in checked.dims if d in units and d != "HK"), key=lambda d: not steps[d])
    for first, second in _pair_dims(inner, outer, level):
        squared = level == "quick" and lengthens_units(checked, spec, first)
        for n, m in _list_counts(level, second is not None):
            m = 1 if squared and n >= _MANY else m
            counts = {first: n} if second is None else {first: n, second: m}
            name = " and ".join(f"{c} of {d}" for d, c in counts.items())
            yield Draw(f"{NAME}: {name}", make_sizes(checked, steps, counts), scalars=choose_usual_scale(checked))
    for a, b in itertools.combinations(outer, 2):
        for n, m in _ACROSS_FULL if level == "full" else _ACROSS:
            yield Draw(f"{NAME}: {n} of {a} across {m} of {b}", make_sizes(checked, steps, {a: n, b: m}))


def _makes_units(checked: Checked, draw: Draw) -> bool:
    """Return whether the first dim of a name is of units, not of steps within one."""
    return draw.name.split(" of ")[1].split(" ")[0] in find_unit_dims(checked)


def _list_counts(level: str, paired: bool) -> Iterator[tuple[int, int]]:
    """Yield steps of a dim, and of a second dim."""
    if level == "full":
        yield from zip(COUNTS, reversed(COUNTS))
        yield from _MORE.items()
    yield from (_SECOND_COUNTS | (_REST if paired else {})).items()


def _pair_dims(inner: Sequence[str], outer: Sequence[str], level: str) -> Iterator[tuple[str, str | None]]:
    """Yield pairs of dims, each dim at least once; at level full all pairs."""
    dims = [*inner, *outer]
    if level == "full":
        yield from ((a, b) for i, a in enumerate(dims) for b in dims[i + 1 :])
        if len(dims) == 1:
            yield dims[0], None
        return
    mixed = [d for pair in zip(inner, outer) for d in pair]
    rest = [d for d in dims if d not in mixed]
    order = [*mixed, *rest]
    for i in range(0, len(order), 2):
        yield order[i], order[i + 1] if i + 1 < len(order) else None


def _make_attention_cases(BM: int, BN: int, level: str) -> Iterator[Case]:
    """Yield blocks of keys with heads, tiles of queries with batches.

    At level full also blocks with tiles, and groups of heads.
    """

    def case(name: str, at: Lengths) -> Case:
        return Case(f"{NAME}: {name}", at)

    for n, m in _list_counts(level, True):
        M = BM // 2 + 1 if n == 8 or level == "full" else 1 + n % 2
        yield case(f"{n} blocks and {m} heads", Lengths(1, m, 1 if n % 2 else m, M, compute_length(n, BN)))
        if n > 2:
            few = m if level == "full" else max(1, m - 3)
            yield case(f"{n} tiles and {few} of a batch", Lengths(few, 1, 1, compute_length(n, BM), BN // 2 + n))
        if level == "full" or n == 6:
            yield case(f"{n} blocks and {min(m, 12)} tiles", Lengths(1, 1, 1, compute_length(min(m, 12), BM), compute_length(n, BN)))
        if level == "full":
            yield case(f"{n} key heads in groups of {m}", Lengths(1, n * m, n, 1, BN + 1))
    for n, m in _ACROSS_FULL if level == "full" else _ACROSS:
        batch_and_heads = (m, 1) if n % 2 and m % 2 else (1, m)  # batch entries, or heads
        yield case(
            f"{n} tiles across {m} {'heads' if batch_and_heads[1] == m else 'of a batch'}",
            Lengths(*batch_and_heads, 1, compute_length(n, BM), BN // 2 + n),
        )
