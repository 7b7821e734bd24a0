"""Sizes at which f32 index arithmetic rounds an integer or a comparison away from the exact one.

The arithmetic is evaluated over many sizes at once, as written and in float64 with decimals as written. Few sizes
differ, so a random problem meets none of them.

Problems in which a table of integers holds a number that f32 arithmetic rounds to another integer.

A specification's `inputs` draws the table, so lengths are chosen that admit such numbers, and a seed that gives one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from ..attn.verification.problems import is_attention
from ..checking.checked import Checked
from ..checking.decisions import definitions, entry, list_placed_deciders
from ..ops.base import Op
from ..ops.meaning import cast
from ..spec.function_specification import AnySpecification, FunctionSpecification
from ..syntax.nodes import Call, Expr, For, Name, Subscript
from ..syntax.nodes import Literal as Number
from ..syntax.types import BOOL, F32, I32, DType, Scalar, TileType
from ..syntax.walk import walk
from ..text.diagnostics import CuirError
from .inputs import make_function_launch
from .tile_steps import align_heads, find_unit_dims
from .values.cases import Draw, count_elements, get_integer_consts, select_fitting

TABLE_NAME = "rounded integers"  # names of these problems begin with it
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
        name = f"{TABLE_NAME}: {table} of {least[0]}, {d}={sizes[d]}"
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


NAME = "rounded sizes"  # names of these problems begin with it
_PLACES = 1_000_000  # number of evaluated combinations of sizes and indices
_DRAWN = 200_000  # number of random combinations of longer sizes
_LONGEST = 8_192
_VARIABLES = 4  # the largest number of sizes and indices in an expression
_PROBLEMS = {"quick": 2, "full": 6}  # problems of an expression and the dim that bounds its index
_TRIED = 30  # sizes tried, since the specification may refuse some
_LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)  # of a dim that makes units and is no part of the expression
_NEAR = 1e-9  # relative: errors of float64 are smaller where the exact value is an integer, or two are equal

Values = Mapping[str, np.ndarray]


class Unknown(Exception):
    """Expression of more than sizes, indices and numbers of the text."""


def make_rounded_size_cases(checked: Checked, spec: AnySpecification, level: str) -> list[Draw]:
    """Make problems of the sizes at which rounding changes an integer or a comparison.

    Empty for kernels without such arithmetic.
    """
    if not isinstance(spec, FunctionSpecification) or is_attention(checked.origin):
        return []
    draws: list[Draw] = []
    for point in _find_points(checked):
        for sizes in _find_differing(checked, point):
            draws += _admit(checked, spec, sizes, _PROBLEMS[level])
        if point.table:
            draws += make_table_draws(checked, spec, point.table, _find_differing_integers(checked, point), _PROBLEMS[level])
    return list({str(sorted(d.sizes.items())): d for d in draws}.values())


@dataclass
class _Point:
    """An integer or comparison that follows from floats, with its sizes and indices."""

    expr: Expr
    bound: Mapping[str, list[Expr]]
    dims: list[str] = field(default_factory=list)
    indices: list[str] = field(default_factory=list)
    table: str | None = None  # the only index is an element of this input


def _find_points(checked: Checked) -> Iterator[_Point]:
    outer = definitions(checked.declarations)
    for block, expr, _ in list_placed_deciders(checked):
        if _dtype(expr) not in (I32, BOOL):
            continue  # floor and round decide in the cast that takes them
        bound = outer if block == 0 else {**outer, **definitions(checked.roles[block - 1].body)}
        leaves = _Evaluation(checked, bound, {}, None)
        try:
            leaves.value(expr)
        except Unknown:
            continue
        if leaves.names and len(leaves.names) <= _VARIABLES:
            dims = [n for n in leaves.names if n in checked.dims]
            indices = [n for n in leaves.names if n not in checked.dims]
            table = find_table(checked, bound, leaves.free_exprs[indices[0]]) if len(indices) == 1 and not dims else None
            yield _Point(expr, bound, dims, indices, table)


class _Evaluation:
    """Evaluator of expressions, as written or exact.

    near: None as written; otherwise the relative distance that counts as equal. Names without a value are collected,
    and evaluate to 1.
    """

    def __init__(self, checked: Checked, bound: Mapping[str, list[Expr]], free_values: Values, near: float | None):
        self.checked, self.bound, self.free_values, self.near = checked, bound, free_values, near
        self.names: dict[str, None] = {}
        self.free_exprs: dict[str, Expr] = {}  # of integers that are no sizes
        self.open: set[str] = set()
        self.cache: dict[str, Any] = {}
        self.consts = get_integer_consts(checked)

    def value(self, e: Expr) -> Any:
        """Return the value of an expression. Raises Unknown."""
        if isinstance(e, Number):
            return self._evaluate_number(e)
        if isinstance(e, Name):
            return self._evaluate_name(e)
        operation = entry(self.checked, e)
        if operation is None or operation[0].effects.accesses or operation[0].reduces or operation[0].evaluate is None:
            return self._convert(e, operation) if operation is not None and operation[0].traits.converts else self._make_index(e)
        op, operands = operation
        if op.traits.converts is not None:
            return self._convert(e, operation)
        return self._compute_result(op, _dtype(operands[-1]) or I32, [self.value(x) for x in operands])

    def _evaluate_number(self, e: Number) -> Any:
        if _dtype(e) == F32 or isinstance(e.value, float):
            return np.float64(e.value) if self.near is not None else np.float32(e.value)
        return np.bool_(e.value) if isinstance(e.value, bool) else np.int64(int(e.value))

    def _evaluate_name(self, e: Name) -> Any:
        if e.id in self.consts:
            return np.int64(self.consts[e.id])
        if e.id in self.checked.dims:
            return self._get_free_value(e.id)
        values = self.bound.get(e.id, [])
        if len(values) != 1 or e.id in self.open:
            return self._make_index(e)
        if e.id not in self.cache:
            self.open.add(e.id)
            integer = _dtype(e) == I32
            self.cache[e.id] = self._make_index(e) if integer and not self._is_closed(values[0]) else self.value(values[0])
            self.open.discard(e.id)
        return self.cache[e.id]

    def _is_closed(self, e: Expr) -> bool:
        """Return whether an integer follows from sizes alone, or from floats.

        Floats are evaluated with their indices.
        """
        inner = _Evaluation(self.checked, self.bound, {}, self.near)
        inner.open = set(self.open)
        try:
            inner.value(e)
        except Unknown:
            return False
        return all(n in self.checked.dims for n in inner.names) or _has_floats(self.checked, self.bound, e)

    def _make_index(self, e: Expr) -> Any:
        """Return an integer that units, turns and places decide: any number from 0."""
        if _dtype(e) != I32:
            raise Unknown
        name = e.id if isinstance(e, Name) else f"line {e.span.line}, column {e.span.column}"
        self.free_exprs[name] = e
        return self._get_free_value(name)

    def _get_free_value(self, name: str) -> Any:
        self.names[name] = None
        return self.free_values.get(name, np.ones(1, np.int64))

    def _convert(self, e: Expr, operation: tuple[Op, list[Expr]]) -> Any:
        source, target, value = _dtype(operation[1][0]), _dtype(e), self.value(operation[1][0])
        if source is None or target is None or source.narrow or target.narrow:
            raise Unknown
        value = np.asarray(value)
        if self.near is None or not (source.is_float or target.is_float):
            return cast(value, source, target)
        return value.astype(np.float64) if target.is_float else cast(self._snap(value), source, target)

    def _snap(self, x: Any) -> Any:
        """Round to integers and halves that float64 misses by little."""
        half = np.rint(x * 2) / 2
        return np.where(np.abs(x - half) <= self._compute_slack(x), half, x)

    def _compute_slack(self, x: Any) -> Any:
        return (self.near or 0.0) * np.maximum(1.0, np.abs(x))

    def _compute_result(self, op: Op, dtype: DType, values: Sequence[Any]) -> Any:
        function = op.evaluate.scalar(dtype) if op.evaluate is not None else None
        if function is None or dtype.narrow:
            raise Unknown
        values = [np.asarray(v) for v in values]
        if dtype != F32 or self.near is None:
            if op.traits.divides_integers:
                values[-1] = np.where(values[-1] == 0, 1, values[-1])  # a launch with a division by 0 is refused
            result = values[0] if len(values) > 2 and op.traits.extremum else function(*values)
            for v in values[1:] if len(values) > 2 and op.traits.extremum else ():
                result = function(result, v)
            return result
        return self._compute_exact(op, function, values)

    def _compute_exact(self, op: Op, function: Any, values: Sequence[np.ndarray]) -> Any:
        operator = op.traits
        if operator.compares:
            difference = values[0] - values[1]
            sign = np.where(np.abs(difference) <= self._compute_slack(values[0]), 0, np.sign(difference))
            return np.isin(sign, operator.compares)
        if operator.jumps:
            return function(*(self._snap(v) for v in values)).astype(np.float64)
        if operator.linear:
            return sum(v * coefficient for v, coefficient in zip(values, operator.linear))
        if operator.multiplies:
            return values[0] * values[1]
        if operator.divides_floats:
            return values[0] / values[1]
        if operator.magnitude:
            return np.abs(values[0])
        if operator.extremum:
            return (np.minimum if operator.extremum == "min" else np.maximum).reduce(np.broadcast_arrays(*values))
        if operator.chooses is not None:
            return np.where(values[0], values[1], values[2])
        if operator.exponential is not None:
            return float(operator.exponential) ** values[0]
        if operator.logarithm is not None:
            return np.log2(values[0]) / np.log2(operator.logarithm)
        if operator.root is not None:
            return values[0] ** (1 / operator.root)
        raise Unknown


def _find_differing(checked: Checked, point: _Point) -> Iterator[list[dict[str, int]]]:
    """Yield lists of sizes at which float32 rounds the expression to another value, the shortest first.

    There is a list for each dim that may bound the indices of the expression.
    """
    names = [*point.dims, *point.indices]
    values = _make_values(point.dims, point.indices)
    with np.errstate(all="ignore"):
        try:
            written, exact, double = (_Evaluation(checked, point.bound, values, near).value(point.expr) for near in (None, _NEAR, 0.0))
        except Unknown:
            return
    differs = np.broadcast_to(written != exact, values[names[0]].shape)
    if not differs.any():
        differs = np.broadcast_to(written != double, values[names[0]].shape)
    places = {n: values[n][differs] for n in names}
    for d in (point.dims or checked.dims) if point.indices else [None]:
        sizes = {n: places[n] for n in point.dims}
        if point.indices:
            last = np.max([places[n] for n in point.indices], axis=0)
            if d in sizes:
                is_inside = last < sizes[d]
                sizes = {n: x[is_inside] for n, x in sizes.items()}
            else:
                sizes = {**sizes, str(d): last + 1}
        yield _list_shortest(sizes)
    if point.indices and set(point.indices) <= _find_unit_names(checked):
        yield from _find_units(checked, point, places)


def _find_differing_integers(checked: Checked, point: _Point) -> list[int]:
    """Return the values of a point's only index at which the expression differs."""
    (name,) = point.indices
    values = {name: np.arange(_LONGEST, dtype=np.int64)}
    with np.errstate(all="ignore"):
        try:
            written, exact = (_Evaluation(checked, point.bound, values, near).value(point.expr) for near in (None, _NEAR))
        except Unknown:
            return []
    return [int(n) for n in values[name][np.broadcast_to(written != exact, values[name].shape)]]


def _list_shortest(sizes: Values) -> list[dict[str, int]]:
    """List combinations of sizes once each, the shortest first."""
    table = np.unique(np.stack(list(sizes.values()), axis=1), axis=0)
    order = np.argsort(table.sum(1), kind="stable")
    return [dict(zip(sizes, map(int, row), strict=True)) for row in table[order[: 4 * _TRIED]]]


def _find_unit_names(checked: Checked) -> set[str]:
    """Return the names that hold numbers of units of work."""
    loops = (n for role in checked.roles for s in role.body for n in walk(s) if isinstance(n, For))
    return {loop.target for loop in loops if not isinstance(loop.iter, Call)}


def _find_units(checked: Checked, point: _Point, places: Values) -> Iterator[list[dict[str, int]]]:
    """Yield sizes by which a launch has the units at which the expression differs.

    One list for each dim that is no part of the expression and makes units; it is as short as possible.
    """
    if checked.tiles is None:
        return
    last = np.max([places[n] for n in point.indices], axis=0)
    outer = definitions(checked.declarations)
    for d in sorted(find_unit_dims(checked) - set(point.dims)):
        sizes = {**{n: places[n] for n in point.dims}, d: np.zeros_like(last)}
        for length in _LENGTHS:
            sizes_by_name = {**{n: np.ones_like(last) for n in checked.dims}, **sizes, d: np.full_like(last, length)}
            try:
                units = _Evaluation(checked, outer, sizes_by_name, None).value(checked.tiles.count)
            except Unknown:
                return
            sizes[d] = np.where((sizes[d] == 0) & (units > last), length, sizes[d])
        yield _list_shortest({n: x[sizes[d] > 0] for n, x in sizes.items()})


def _make_values(dims: Sequence[str], indices: Sequence[str]) -> Values:
    """Return sizes from 1 and indices from 0: all combinations of small ones, then longer ones at random."""
    count = len(dims) + len(indices)
    axis = np.arange(min(2 * _LONGEST, int(_PLACES ** (1 / count))))
    grid = np.meshgrid(*([axis] * count), indexing="ij")
    generator = np.random.default_rng(0)
    drawn = [np.exp(generator.uniform(0, np.log(_LONGEST), _DRAWN)).astype(np.int64) for _ in dims]
    longest = np.max(drawn, axis=0) if dims else np.full(_DRAWN, _LONGEST)
    drawn += [(generator.random(_DRAWN) * longest).astype(np.int64) for _ in indices]
    columns = (np.concatenate([g.ravel() + (1 if i < len(dims) else 0), x]) for i, (g, x) in enumerate(zip(grid, drawn, strict=True)))
    return dict(zip((*dims, *indices), columns, strict=True))


def _admit(checked: Checked, spec: FunctionSpecification, candidates: Iterable[Mapping[str, int]], most: int) -> list[Draw]:
    """Return the first problems that the specification admits with these sizes, thin in all other dims."""
    admitted: list[Draw] = []
    for sizes in list(candidates)[:_TRIED]:
        draw = Draw(f"{NAME}: {', '.join(f'{d}={n}' for d, n in sizes.items())}", align_heads({**dict.fromkeys(checked.dims, 1), **sizes}))
        for fit in select_fitting(checked, spec, [draw])[0]:
            all_sizes = {**get_integer_consts(checked), **fit.sizes}
            is_unchanged = all(fit.sizes[d] == n for d, n in sizes.items())
            if is_unchanged and sum(count_elements(t, all_sizes) for t in checked.tensors) <= _ELEMENTS:
                admitted.append(fit)
        if len(admitted) >= most:
            break
    return admitted


def _has_floats(checked: Checked, bound: Mapping[str, list[Expr]], e: Expr, visited: frozenset[str] = frozenset()) -> bool:
    """Return whether floats occur in an expression, or in the values of its names."""
    kind = _dtype(e)
    if kind is not None and kind.is_float:
        return True
    if isinstance(e, Name):
        return e.id not in visited and any(_has_floats(checked, bound, v, visited | {e.id}) for v in bound.get(e.id, []))
    operation = entry(checked, e)
    return operation is not None and any(_has_floats(checked, bound, x, visited) for x in operation[1])


def _dtype(e: Expr) -> DType | None:
    return e.type.dtype if isinstance(e.type, (Scalar, TileType)) else None


__all__ = ["NAME", "TABLE_NAME", "find_table", "make_rounded_size_cases", "make_table_draws"]
