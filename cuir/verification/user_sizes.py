"""Problems with heads, groups, batches and lengths as users have them, thin in everything else.

Index arithmetic that small problems cannot tell from a constant fails there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ..attn.verification.problems import Case, is_attention
from ..checking.checked import Checked
from ..spec.function_specification import AnySpecification, FunctionSpecification
from ..spec.specification import Lengths
from ..text.diagnostics import CuirError
from .far_counts import LONGEST, choose_largest_integers, choose_usual_scale, find_seed, has_long_rows, list_other_lengths, make_exact_sums
from .inputs import collect_readable, list_applicable_kinds, make_function_launch
from .spec_dispatch import AnyCase, convert_case
from .tile_steps import adds_work, align_heads, find_steps, find_unit_dims
from .unread_inputs import ResultSizes
from .values.cases import Draw, select_fitting

NAME = "as users have"  # names of these problems begin with it
LANES = 32  # CTAs that run as one batch
# batch, key heads, heads of each: beyond 16 and 32 of each, groups that are powers of two and not, rows of heads longer
# than 40 and 64
_QUICK = ((17, 3, 1), (2, 9, 5), (1, 12, 7), (1, 3, 12), (2, 4, 32), (1, 40, 1), (1, 8, 8))
_FULL = ((1025, 1, 1), (2, 16, 3), (2, 21, 6), (1, 8, 12), (3, 33, 3), (1, 128, 1), (1, 1, 31), (67, 2, 5), (1, 4, 30), (260, 1, 2))
_SINGLE = (41, 130)  # elements of a dim without steps, with few of the others
_SINGLE_FULL = (17, 33, 68, 257, 1025)
_MANY_DIMS = 3  # with more dims, each is long once at level quick
_LONG = (70_001, 2_603)  # elements of a dim with steps: more than 2^16, and more than 2^16 / 40
_LONG_FULL = (131_075, 66_001, 33_003, 9_001)  # the longest that memory admits
_UNITS = {"quick": 400, "full": 20_000}  # units of one problem
_CHEAP_UNITS = 5_000  # at level quick, of a kernel without products
_CHEAP = {"quick": 40_000, "full": 250_000}  # calls of a dim's steps
# with so many heads or rows, elements of dims with steps: enough for a softmax of several keys
_FEW, _AROUND = 1025, (5, 21)
_GROWN = 1.5  # the largest length that the specification may give, relative to the requested one
_LARGEST = 40_000_000  # the largest number of elements of an intermediate result of a function
_PROBED = (256, 512)  # elements of a dim at which growth is measured
LEFT_OUT = ("X113", "D402")  # a function that fails at such a size, a run that takes too long: no verdict on the kernel


def make_user_cases(checked: Checked, spec: AnySpecification, level: str) -> list[AnyCase]:
    """Return problems of the sizes that users have.

    Without those that the specification's `sizes` or memory refuses.
    """
    if isinstance(spec, FunctionSpecification) and not is_attention(checked.origin):
        return list(_make_draws(checked, spec, level))
    cases = [
        Case(f"{NAME}: {b} of a batch, {hk} key heads of {g}", Lengths(b, hk * g, hk, 1 + n % 2, 3 + 5 * n))
        for n, (b, hk, g) in enumerate(_list_heads(level))
    ]
    if level == "full":
        cases.append(Case(f"{NAME}: 131,075 queries", Lengths(1, 1, 1, 131_075, 5)))
        cases.append(Case(f"{NAME}: 131,075 keys", Lengths(1, 1, 1, 2, 131_075)))
    else:
        cases.append(Case(f"{NAME}: {_LONG[-1]:,} queries", Lengths(1, 1, 1, _LONG[-1], 5)))
    if not isinstance(spec, FunctionSpecification):
        return list(cases)
    admitted: list[AnyCase] = []
    for case in cases:
        try:
            draw = convert_case(checked, spec, case)
        except CuirError as error:
            if error.diagnostics[0].code != "X108":
                raise
            continue
        admitted += select_fitting(checked, spec, [draw])[0]
    return admitted


def is_user_case(case: AnyCase) -> bool:
    """Return whether a problem is of this module, by its name."""
    return case.name.startswith(NAME)


def choose_wide_grid(units: int) -> int:
    """Return a grid that runs as one batch, which costs hardly more than one CTA."""
    return max(1, min(units, LANES))


def _list_heads(level: str) -> Sequence[tuple[int, int, int]]:
    return (*_QUICK, *_FULL) if level == "full" else _QUICK


def _make_draws(checked: Checked, spec: FunctionSpecification, level: str) -> Iterator[Draw]:
    steps = find_steps(checked, spec)
    for n, counts in enumerate(_list_counts(checked, steps, level)):
        for sizes in counts:
            name = ", ".join(f"{d}={size}" for d, size in sizes.items())
            short = _AROUND[n % 2] if max(sizes.values()) <= _FEW else 1 + n % 2
            least = {d: short if steps[d] and d not in sizes else 1 for d in checked.dims}
            draw = Draw(f"{NAME}: {name}", align_heads({**least, **sizes}), scalars=choose_usual_scale(checked))
            if (admitted := _admit(checked, spec, draw, max(counts[0].values()))) is not None:
                yield choose_largest_integers(checked, spec, make_exact_sums(checked, spec, admitted))
                break
    yield from _make_end_draws(checked, spec, steps, level)


def _admit(checked: Checked, spec: FunctionSpecification, draw: Draw, most: int) -> Draw | None:
    """Return the problem as the specification admits it.

    None if that makes it much longer, or too large.
    """
    admitted = select_fitting(checked, spec, [draw])[0]
    if not admitted or max(admitted[0].sizes.values()) > _GROWN * max(most, _LONG[-1], *draw.sizes.values()):
        return None
    return admitted[0] if max(admitted[0].sizes.values()) <= _LONG[-1] or _is_affordable(checked, spec, admitted[0]) else None


def _make_end_draws(checked: Checked, spec: FunctionSpecification, steps: Mapping[str, int], level: str) -> Iterator[Draw]:
    """Yield each dim at its longest where that is cheap.

    With integer tables of other dims, the largest of which are drawn; rows that rise and fall.
    """
    calls = list(checked.calls())
    products = any(c.op.traits.product for c in calls)
    units = find_unit_dims(checked)
    for d in (d for d in checked.dims if steps[d] and d not in units):
        walked = adds_work(checked, spec, d)
        cost = -(-LONGEST // steps[d]) * len(calls) if walked else 0
        if cost > _CHEAP[level] or (products and walked and level == "quick"):
            continue
        other_sizes = list_other_lengths(checked, d)
        for sizes in other_sizes if spec.inputs is not None or level == "full" else ():
            draw = Draw(
                f"{NAME}: {d} to its end",
                align_heads({**dict.fromkeys(checked.dims, 1), **sizes, d: LONGEST}),
                scalars=choose_usual_scale(checked),
            )
            if (admitted := _admit(checked, spec, draw, LONGEST)) is not None and admitted.sizes[d] >= LONGEST:
                yield choose_largest_integers(checked, spec, make_exact_sums(checked, spec, admitted))
                break
        if has_long_rows(checked, d) and "growing" in list_applicable_kinds(checked, spec):
            two = {x: 2 if steps[x] else 1 for x in checked.dims}
            draw = Draw(
                f"{NAME}: {d} rises",
                align_heads({**two, d: LONGEST}),
                "growing",
                find_seed(checked, d),
                scalars=choose_usual_scale(checked),
            )
            if (admitted := _admit(checked, spec, draw, LONGEST)) is not None and admitted.sizes[d] >= LONGEST:
                yield admitted


def _list_counts(checked: Checked, steps: Mapping[str, int], level: str) -> Iterator[list[dict[str, int]]]:
    """Yield sizes of some dims, the others as short as possible; of each list the first that fits is used."""
    single = [d for d in checked.dims if not steps[d]]
    grouped = {"H", "HK"} <= set(single)
    plain = [d for d in single if not (grouped and d in ("H", "HK"))]
    if grouped:
        for b, hk, g in _list_heads(level):
            yield [{**({"B": b} if "B" in plain else {}), "HK": hk, "H": g}]
    sizes = (*_SINGLE, *_SINGLE_FULL) if level == "full" else _SINGLE if len(plain) <= _MANY_DIMS else _SINGLE[:1]
    for i, d in enumerate(plain):
        other_dims = [x for x in plain if x != d]
        for n, size in enumerate(sizes):
            second = {other_dims[(i + n) % len(other_dims)]: 3} if other_dims else {}
            yield [{d: size, **second}]
    units = _UNITS[level] if level == "full" or any(c.op.traits.product for c in checked.calls()) else _CHEAP_UNITS
    for d in (d for d in checked.dims if steps[d]):
        long = _LONG_FULL if level == "full" else _LONG
        yield [{d: n} for n in long if n <= units * steps[d]] or [{d: units * steps[d] - 1}]


def _is_affordable(checked: Checked, spec: FunctionSpecification, draw: Draw) -> bool:
    """Return whether results within the function stay small, extrapolated from two short problems."""
    longest = max(draw.sizes, key=lambda d: draw.sizes[d])
    measured = []
    for n in _PROBED:
        small = select_fitting(checked, spec, [replace(draw, sizes={**draw.sizes, longest: n})])[0]
        if not small or small[0].sizes[longest] == draw.sizes[longest]:
            return False
        sizes = ResultSizes()
        try:
            launch = make_function_launch(checked, spec, small[0])
            with sizes:
                spec.exact(collect_readable(checked, launch), list(launch.before))
        except CuirError:
            return False
        measured.append((sizes.largest, small[0].sizes[longest]))
    (before, short), (after, long) = measured
    if long <= short:
        return False
    power = max(0.0, math.log(max(1, after) / max(1, before)) / math.log(long / short))
    return after * (draw.sizes[longest] / long) ** power <= _LARGEST
