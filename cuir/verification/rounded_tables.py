"""Problems in which a table of integers holds a number that f32 arithmetic rounds to another integer.

A specification's `inputs` draws the table, so lengths are chosen that admit such numbers, and a seed that gives one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from ..checking.checked import Checked
from ..spec.function_specification import FunctionSpecification
from ..syntax.nodes import Expr, Name, Subscript
from ..syntax.types import I32
from ..text.diagnostics import CuirError
from .inputs import make_function_launch
from .tile_steps import align_heads
from .values.cases import Draw, count_elements, get_integer_consts, select_fitting

NAME = "rounded integers"  # names of these problems begin with it
_ENTRIES = 8  # length of each dim of the table
_ADMITTED = 4  # the least numbers that the lengths admit
_SEEDS = 96
_DIMS = 3  # dims that may bound the numbers
_ELEMENTS = 3_000_000  # the largest number of elements of a problem


def find_table(checked: Checked, bound: dict[str, list[Expr]], e: Expr) -> str | None:
    """Return the input of integers of which an expression, or the value of its name, is an element."""
    if isinstance(e, Name) and len(values := bound.get(e.id, [])) == 1:
        e = values[0]
    if not isinstance(e, Subscript) or not isinstance(e.value, Name):
        return None
    name = e.value.id
    return next((t.name for t in checked.tensors if t.name == name and t.dtype == I32 and not t.written and not t.scratch), None)


def make_table_draws(checked: Checked, spec: FunctionSpecification, table: str, numbers: Sequence[int], most: int) -> list[Draw]:
    """Return problems whose table holds one of the numbers, one for each dim that bounds them."""
    if spec.inputs is None or not numbers:
        return []
    least = sorted(set(numbers))[:_ADMITTED]
    dims = {d for t in checked.tensors if t.name == table for d in t.dims if isinstance(d, str)}
    draws: list[Draw] = []
    for d in [d for d in checked.dims if d not in dims][:_DIMS]:
        sizes = {**dict.fromkeys(checked.dims, 1), **dict.fromkeys((x for x in dims if x in checked.dims), _ENTRIES), d: least[-1] + 1}
        name = f"{NAME}: {table} of {least[0]}, {d}={sizes[d]}"
        for fit in select_fitting(checked, spec, [Draw(name, align_heads(sizes))])[0]:
            all_sizes = {**get_integer_consts(checked), **fit.sizes}
            if sum(count_elements(t, all_sizes) for t in checked.tensors) <= _ELEMENTS:
                draws += _find_seed(checked, spec, fit, table, torch.tensor(least))
        if len(draws) >= most:
            break
    return draws


def _find_seed(checked: Checked, spec: FunctionSpecification, draw: Draw, table: str, numbers: torch.Tensor) -> list[Draw]:
    """Return the problem with the first seed whose table holds one of the numbers; none if no seed does."""
    for seed in range(_SEEDS):
        try:
            values = make_function_launch(checked, spec, replace(draw, seed=seed)).inputs.get(table)
        except CuirError:
            return []
        if isinstance(values, torch.Tensor) and bool(torch.isin(values, numbers).any()):
            return [replace(draw, seed=seed)]
    return []


__all__ = ["NAME", "find_table", "make_table_draws"]
