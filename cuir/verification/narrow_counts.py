"""Sizes at which an integer, or a sum, leaves a 16-bit format that a kernel takes it through.

f16 holds whole numbers to 2,048, bf16 to 256: a count or a position that passes through it is right up to there. A sum
that passes through f16 is infinite from 65,520 on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._ops import OpOverload

from ..arguments.binding import TORCH
from ..attn.verification.problems import is_attention
from ..checking.checked import Checked
from ..checking.decisions import Placed, bind_names, dtype_of, entry, list_bodies, list_placed_deciders, walk_sources
from ..checking.kernel_results import keep_with_kernel
from ..spec.function_specification import AnySpecification, FunctionSpecification
from ..syntax.nodes import Expr, Name
from ..syntax.types import BOOL, I32, DType, TileType
from ..syntax.walk import walk
from ..text.diagnostics import CuirError
from .error_bounds import Undisturbed
from .far_counts import find_seed
from .inputs import collect_readable, list_applicable_kinds, make_function_launch
from .rounding import rounds_between
from .tile_steps import align_heads, find_steps
from .values.cases import Draw, count_elements, get_integer_consts, select_fitting

NAME = "beyond a format"  # names of these problems begin with it
_PAST = 2.2  # lengths relative to the first integer that a format lacks: half of the places lie behind it
_OTHER = 24  # elements of the other dims: several places of a maximum
_SUMMED = 70_001  # terms of 1 whose sum leaves f16
_SEEDS = 24  # seeds among which the one with most integers beyond the format is chosen
_MOST = 400_000  # elements of all tensors of a problem
_CALLS = 40_000  # calls of a long dim's steps


def make_narrow_count_cases(checked: Checked, spec: AnySpecification) -> list[Draw]:
    """Make a problem for each dim that brings an integer or a sum beyond the format that it passes through.

    Empty for kernels that take neither through 16 bits.
    """
    if not isinstance(spec, FunctionSpecification) or is_attention(checked.origin):
        return []
    draws: list[Draw] = []
    if (exact := find_exact_limit(checked)) is not None:
        for d in checked.dims:
            draws += [_choose_seed(checked, spec, x, exact) for x in _admit(checked, spec, d, int(_PAST * exact), exact, "normal")]
    if takes_sum_through_f16(checked):
        kinds = [k for k in ("zero", "ties") if k in list_applicable_kinds(checked, spec)]
        for d in checked.dims:
            for kind in kinds:
                draws += _admit(checked, spec, d, _SUMMED, _SUMMED - 1, kind)
    return draws


@keep_with_kernel
def find_exact_limit(checked: Checked) -> int | None:
    """Return the last whole number up to which all integers through a narrow float are exact; None without such."""
    limits = [n for i, e, floats in list_placed_deciders(checked) for n in _list_limits(checked, e, [(i, a) for a in floats])]
    return min(limits, default=None)


def _list_limits(checked: Checked, decider: Expr, floats: Sequence[Placed]) -> Iterator[int]:
    """Yield the limits of narrow floats between a value and the integer, or the comparison, that follows from it."""
    for e in walk_sources(checked, list(floats)):
        operation, dtype = entry(checked, e), dtype_of(checked, e)
        if operation is None or dtype is None or not operation[0].traits.converts or not dtype.narrow:
            continue
        if dtype_of(checked, decider) == I32 or dtype_of(checked, operation[1][0]) in (I32, BOOL):
            yield _compute_limit(dtype)


def _compute_limit(dtype: DType) -> int:
    return int(2 / torch.finfo(TORCH[dtype]).eps)


@keep_with_kernel
def takes_sum_through_f16(checked: Checked) -> bool:
    """Return whether the kernel rounds a sum of rows or columns to f16 and computes on with it."""
    if not rounds_between(checked):
        return False
    for i, body in enumerate(list_bodies(checked)):
        for e in (n for stmt in body for n in walk(stmt) if isinstance(n, Expr)):
            operation, dtype = entry(checked, e), dtype_of(checked, e)
            if operation is None or operation[0].traits.converts is None or dtype is None or dtype.saturates:
                continue
            if dtype.overflows < _SUMMED and _is_sum(checked, (i, operation[1][0])):
                return True
    return False


def _is_sum(checked: Checked, placed: Placed) -> bool:
    """Return whether a value is a reduction's sum, or adds up such sums."""
    bound, worklist, visited = bind_names(checked), [placed], set[tuple[int, str]]()
    while worklist:
        i, e = worklist.pop()
        if isinstance(e, Name):
            if (i, e.id) not in visited:
                visited.add((i, e.id))
                worklist += bound[i].get(e.id, [])
            continue
        operation = entry(checked, e)
        if operation is None or not isinstance(e.type, TileType):
            continue
        if "sum" in (operation[0].traits.reduction, operation[0].traits.column_reduction):
            return True
        if operation[0].traits.linear:
            worklist += [(i, a) for a in operation[1]]
    return False


def _admit(checked: Checked, spec: FunctionSpecification, dim: str, length: int, least: int, kind: str) -> list[Draw]:
    """Return the problem with a long dim as the specification admits it; none if it is not long, or costs too much."""
    steps = find_steps(checked, spec)
    other = _OTHER if length < _SUMMED else 1
    if steps[dim] and -(-length // steps[dim]) * len(list(checked.calls())) > _CALLS:
        return []
    sizes = {d: other if steps[d] else 1 for d in checked.dims} | {dim: length}
    seed = find_seed(checked, dim) if kind != "normal" else 0
    draws = select_fitting(checked, spec, [Draw(f"{NAME}: {dim}={length}, {kind}", align_heads(sizes), kind, seed)])[0]
    return [d for d in draws if d.sizes[dim] > least and _count_elements(checked, d.sizes) <= _MOST]


def _count_elements(checked: Checked, sizes: Mapping[str, int]) -> int:
    all_sizes = {**get_integer_consts(checked), **sizes}
    return sum(count_elements(t, all_sizes) for t in checked.tensors)


def _choose_seed(checked: Checked, spec: FunctionSpecification, draw: Draw, limit: int) -> Draw:
    """Return the problem with the seed for which most of the specification's integers exceed the limit, within it too."""
    best, best_draw = (-1, -1.0), draw
    for seed in range(_SEEDS if spec.inputs is not None else 0):
        candidate, integers = replace(draw, seed=seed), _Integers(limit)
        try:
            launch = make_function_launch(checked, spec, candidate)
            with integers:
                spec.exact(collect_readable(checked, launch), list(launch.before))
        except CuirError:
            continue
        for value in launch.inputs.values():
            if type(value) is int:
                integers.record(value)
        if integers.score > best:
            best, best_draw = integers.score, candidate
    return best_draw


class _Integers(Undisturbed):
    """Mode that counts the results with an integer beyond a limit; of equally many the larger integers score higher."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit, self.score = limit, (0, 0.0)

    def record(self, largest: int) -> None:
        beyond, bits = self.score
        self.score = beyond + (largest > self.limit), bits + math.log2(1 + abs(largest))

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for x in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(x, torch.Tensor) and not x.is_floating_point() and x.dtype != torch.bool and x.numel():
                self.record(int(x.max()))
        return result


__all__ = ["NAME", "find_exact_limit", "make_narrow_count_cases", "takes_sum_through_f16"]
