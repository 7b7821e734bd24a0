"""Range checks of a launch's index arithmetic, which must fit the 32 bits of an i32.

Bounds whatever becomes a subscript, a trip count or a number of work items, for given lengths. Offsets inside a tensor
do not matter: lengths times strides are computed in 64 bits.

It reads the checked kernel, not its IR (ops/expression_bounds.py says why).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..checking.checked import Checked, Role
from ..checking.decisions import entry
from ..checking.kernel_results import keep_with_kernel
from ..checking.views import root_name
from ..ops import Op
from ..ops.expression_bounds import ExpressionBounds
from ..ops.meaning.intervals import Bounds, Interval, is_half_open, make_hull
from ..syntax.nodes import Assign, Binary, Call, Expr, For, Literal, Node, Slice, Subscript
from ..syntax.printer import show
from ..syntax.types import I32, Scalar, TileType
from ..syntax.walk import children, walk
from ..text.diagnostics import CuirError

LARGEST = 2**31 - 1
LONGEST = 2**31 - 2**16  # largest dim or number of work items: the number one tile or one grid further still fits


def require_index_ranges(checked: Checked, dims: Mapping[str, int], scalars: Mapping[str, object]) -> None:
    """Check that dims, the number of work items and index arithmetic fit an i32.

    Raises CuirError U420 if a value on the way to a subscript or a trip count may lie outside of it.
    """
    for name, n in dims.items():
        if n > LONGEST:
            t = next(t for t in checked.tensors if name in t.dims)
            raise CuirError.of(
                "U420",
                f"the dim `{name}` of `{t.name}` is {n:,}; indices are i32, so a dim is at most {LONGEST:,}",
                t.span,
                "view the tensor with more dims",
            )
    numbers = {p.name: v for p in checked.scalars if p.dtype == I32 and isinstance(v := scalars[p.name], int)}
    rounded_bounds = {n: (1, _round(v)) for n, v in dims.items()} | {n: (-_round(v), _round(v)) for n, v in numbers.items()}
    if _find_cached_error(checked, rounded_bounds) is not None:  # for all lengths up to there; most launches ask no further
        exact_bounds = {n: (max(1, v), max(1, v)) for n, v in dims.items()} | {n: (v, v) for n, v in numbers.items()}
        if (error := _find_cached_error(checked, exact_bounds)) is not None:
            raise error


def _round(n: int) -> int:
    """Round up to a power of two, at least 1024."""
    return 1 << max(10, (abs(n) - 1).bit_length())


def _find_cached_error(checked: Checked, bounds: Mapping[str, Interval]) -> CuirError | None:
    return _find_error(checked, tuple(sorted(bounds.items())))


@keep_with_kernel
def _find_error(checked: Checked, bounds: tuple[tuple[str, Interval], ...]) -> CuirError | None:
    ranges_of_names: dict[str, Bounds] = dict(bounds)
    outer = _Ranges(checked, ranges_of_names, {})
    for stmt in checked.declarations:
        if isinstance(stmt, Assign):
            ranges_of_names[stmt.targets[0]] = outer.bounds_by_name[stmt.targets[0]] = outer.bound(stmt.value)
    units = outer.bound(checked.tiles.count) if checked.tiles is not None else None
    if checked.tiles is not None and (outer.outside or (units is not None and units[1] > LONGEST)):
        largest = max([hi for _, (_, hi) in outer.outside] + ([units[1]] if units is not None else []))
        return CuirError.of(
            "U420",
            f"the number of units of work, or a part of it, is {largest:,}; units are counted in i32, so there are at most {LONGEST:,}",
            checked.tiles.count.span,
            "give a unit more to do, or launch the kernel on parts of the tensors",
        )
    for role, (indices, bound) in zip(checked.roles, _collect_roles(checked), strict=True):
        inside = {n: v for n, v in ranges_of_names.items() if n not in bound} | (
            {role.index: (0, role.workers - 1)} if role.index is not None else {}
        )
        role_ranges = _Ranges(checked, inside, bound, units)
        for index in indices:
            role_ranges.bound(index)
            if role_ranges.outside:
                e, (lo, hi) = role_ranges.outside[0]
                extreme = f"{hi:,}" if hi > LARGEST else f"{lo:,}"
                return CuirError.of(
                    "U420",
                    f"`{show(e)}` may be {extreme} with these lengths, and i32 wraps around beyond {LARGEST:,}",
                    e.span,
                    "index a tensor by its dims, X[b, q, c]: its offsets are computed in 64 bits",
                )
    return None


Bound = dict[str, list[Assign | For]]  # name -> the statements of a role that bind it


@keep_with_kernel
def _collect_roles(checked: Checked) -> list[tuple[list[Expr], Bound]]:
    """Return for each role its indices and the bindings of its names, cached with the kernel.

    Indices are the expressions that pick an element or a box of a tensor or bound a loop, each once.
    """
    return [_collect_role(checked, role) for role in checked.roles]


def _collect_role(checked: Checked, role: Role) -> tuple[list[Expr], Bound]:
    tensors = {t.name for t in checked.tensors}
    indices: list[Expr] = []
    bound: Bound = {}
    for node in (n for stmt in role.body for n in walk(stmt)):
        if isinstance(node, (Assign, For)):
            bound.setdefault(node.targets[0] if isinstance(node, Assign) else node.target, []).append(node)
        if isinstance(node, For) and isinstance(node.iter, Call):
            indices += node.iter.args
        elif isinstance(node, Subscript) and root_name(node) in tensors:
            parts: list[Node] = [p for i in node.indices for p in (children(i) if isinstance(i, Slice) else (i,))]
            indices += [p for p in parts if isinstance(p, Expr) and not isinstance(p, Literal)]
    return list({show(e): e for e in indices}.values()), bound


class _Ranges(ExpressionBounds):
    """Least and greatest values of i32 expressions of a role, None where nothing is known.

    `outside`: sums, differences and products that may leave 32 bits.
    """

    def __init__(self, checked: Checked, bounds: Mapping[str, Bounds], bound: Bound, units: Bounds = None):
        self.checked, self.bindings, self.units = checked, bound, units
        self.ctas = checked.cluster
        self.bounds_by_name = dict(bounds)
        self.outside: list[tuple[Expr, Interval]] = []

    def find_operation(self, e: Expr) -> tuple[Op, Sequence[Expr]] | None:
        """Return an i32 operation and its operands, as the checker read them; None for other dtypes."""
        kind = self.checked.find_type(e)
        return None if isinstance(kind, (Scalar, TileType)) and kind.dtype != I32 else entry(self.checked, e)

    def bound_result(self, e: Expr, op: Op, operands: Sequence[Bounds]) -> Bounds:
        """Return the bounds of a result that fits into 32 bits, and on the way as well."""
        assert op.evaluate is not None
        self.require_fit(e, op.evaluate.on_the_way(*operands))
        bounds = super().bound_result(e, op, operands)
        if None in operands and is_half_open(bounds):  # an interval that is unbounded at one end refuses nothing
            return None
        return self.require_fit(e, bounds) if isinstance(e, Binary) else bounds

    def require_fit(self, e: Expr, bounds: Bounds) -> Bounds:
        """Return the interval if it fits into 32 bits; else record the expression and return None."""
        if bounds is None or (bounds[0] >= -LARGEST - 1 and bounds[1] <= LARGEST):
            return bounds
        self.outside.append((e, bounds))
        return None

    def bound_name(self, name: str) -> Bounds:
        """Return the bounds of a name, by all statements that bind it."""
        if name in self.bounds_by_name or name not in self.bindings:
            return self.bounds_by_name.get(name)
        self.bounds_by_name[name] = None  # a name that depends on itself, as a counter does, is unknown
        bounds = [self.bound_binding(node) for node in self.bindings[name]]
        self.bounds_by_name[name] = make_hull(*bounds)
        return self.bounds_by_name[name]

    def bound_binding(self, node: Assign | For) -> Bounds:
        if isinstance(node, Assign):
            return self.bound(node.value)
        if not isinstance(node.iter, Call):
            return (0, max(0, self.units[1] - 1)) if self.units is not None else None
        args = [self.bound(a) for a in node.iter.args]
        start, stop = ((0, 0), args[0]) if len(args) == 1 else (args[0], args[1])
        if start is None or stop is None or (len(args) == 3 and (args[2] is None or args[2][0] <= 0)):
            return None
        return start[0], max(start[0], stop[1] - 1)
