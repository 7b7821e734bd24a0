"""Exact floats of a checked kernel: those that feed comparisons, casts to i32 or bool, and step functions.

The interpreter adds no noise to exact arithmetic, and the lowering computes it as written. A fused multiply-add or another order of operations changes a value by a
rounding. That can change the truth of a comparison, which removes keys from a mask, or the integer that `floor` gives.
The operands of such operations decide, and the expressions behind them: through names, up to memory, reductions and
products. For comparisons, sums that a kernel may keep in parts (row_sum, carried by a loop) end the walk too. For step
functions it continues through them, through maxima, and through memory to the values that the kernel stores there.
Floats outside of roles are exact, as all roles share them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..ops.base import Op
from ..ops.expressions import operator
from ..syntax.nodes import Assign, Call, Expr, ExprStmt, For, If, Literal, Name, Node, Stmt, Subscript, Typed
from ..syntax.types import BOOL, F32, I32, DType, Scalar, TileType
from ..syntax.walk import IdentityKey, names_read, walk
from .checked import Checked
from .fact_solver import reach
from .kernel_results import keep_with_kernel
from .views import root_name


@keep_with_kernel
def collect_deciding(checked: Checked) -> frozenset[IdentityKey]:
    """Return the arithmetic that feeds decisions, and that on floats outside of roles."""
    deciders = list_placed_deciders(checked)
    deciding = [e for e in list_expressions(checked)[0] if is_float(checked, e)]
    each = list_definitions(checked)
    for i, body in enumerate(list_bodies(checked)):
        bound: Mapping[str, list[Expr]] = {**each[0], **each[i]}
        parts = find_split_sums(checked, bound, body)
        visited, seen = set[str](), set[IdentityKey]()
        worklist = [a for j, _, floats in deciders if j == i for a in floats]
        while worklist:
            expr = worklist.pop()
            if isinstance(expr, Name):
                if expr.id not in visited | parts:
                    visited.add(expr.id)
                    worklist += bound.get(expr.id, [])
            elif IdentityKey(expr) not in seen:
                seen.add(IdentityKey(expr))
                deciding.append(expr)
                worklist += _list_floats(checked, expr)
    step_operands = [(i, a) for i, e, floats in deciders if jumps(checked, e) for a in floats]
    deciding += walk_sources(checked, step_operands)
    return frozenset(IdentityKey(e) for e in deciding if _is_arithmetic(checked, e))


def _is_arithmetic(checked: Checked, expr: Expr) -> bool:
    """Return whether an expression is an operation on numbers: no reduction, product or read, which round in no fixed way."""
    operation = entry(checked, expr)
    return operation is not None and operation[0].memory_effect == "none" and not operation[0].reduces


def jumps(checked: Checked, expr: Expr) -> bool:
    """Return whether a rounding of a float moves the expression by a whole step.

    Such are floor, round, fmod, a cast to i32, and a sum with a number so large that it rounds the other addend.
    """
    operation = entry(checked, expr)
    if operation is None:
        return False
    op_traits, dtype = operation[0].traits, dtype_of(checked, expr)
    rounds = dtype == F32 and bool(op_traits.linear) and any(isinstance(a, Literal) and rounds_beside(a.value) for a in operation[1])
    return op_traits.jumps or (op_traits.converts is not None and dtype == I32) or rounds


def rounds_beside(number: float) -> bool:
    """Return whether adding the number to an f32 rounds it to an integer or a half, as `round` does."""
    return 2.0**22 <= abs(number) <= 2.0**26


Placed = tuple[int, Expr]  # an expression, and the block that holds it (0: the declarations, then the roles)


def walk_sources(checked: Checked, worklist: list[Placed]) -> Iterator[Expr]:
    """Yield the expressions that the values are computed from, breadth first, with names resolved.

    The walk passes through maxima, and through memory to the values that the kernel stores there. It ends at sums and
    products.
    """
    if not worklist:
        return
    bound, stores = bind_names(checked), collect_stored_floats(checked)
    worklist, names, visited = list(worklist), set[tuple[int, str]](), set[IdentityKey]()
    while worklist:
        i, expr = worklist.pop(0)
        if isinstance(expr, Name):
            if (i, expr.id) not in names:
                names.add((i, expr.id))
                worklist += bound[i].get(expr.id, [])
            continue
        if IdentityKey(expr) in visited:
            continue
        visited.add(IdentityKey(expr))
        yield expr
        operation = entry(checked, expr)
        if isinstance(expr, Subscript):
            worklist += stores.get(root_name(expr) or "", [])
        elif operation is not None and operation[0].effects.accesses and not operation[0].sums:
            worklist += [v for name in list_accessed(checked, expr, reads=True) for v in stores.get(name, [])]
        elif operation is not None and not operation[0].sums:
            worklist += [(i, a) for a in operation[1] if is_float(checked, a)]


@keep_with_kernel
def collect_stored_floats(checked: Checked) -> Mapping[str, list[Placed]]:
    """Return the floats that the kernel's text stores in each array and tensor, through copies too."""
    values: dict[str, list[Placed]] = {}
    for i, e in _iterate_calls(checked):
        for to in list_accessed(checked, e, reads=False):
            values.setdefault(to, []).extend((i, a) for a in checked.call(e).args.values() if is_float(checked, a))
    return {to: [v for name in sorted(froms) for v in values.get(name, [])] for to, froms in collect_copies(checked).items()}


@keep_with_kernel
def collect_copies(checked: Checked) -> Mapping[str, set[str]]:
    """Map each array and tensor that the kernel writes to itself and all that are copied there."""
    copied: dict[str, set[str]] = {}
    for _, e in _iterate_calls(checked):
        for to in list_accessed(checked, e, reads=False):
            copied.setdefault(to, {to}).update(list_accessed(checked, e, reads=True))
    return {to: reach([to], lambda name: copied.get(name, ())) for to in copied}


def list_accessed(checked: Checked, node: Node, reads: bool) -> list[str]:
    """Return the names of the arrays and tensors that a call reads, or writes if `reads` is False."""
    call = checked.find_call(node)
    places = (
        [] if call is None else [call.args[a.arg] for a in call.op.effects.accesses if a.arg in call.args and (a.mode == "read") == reads]
    )
    return [name for place in places if (name := root_name(place)) is not None]


def list_bodies(checked: Checked) -> list[tuple[Stmt, ...]]:
    return [checked.declarations, *(r.body for r in checked.roles)]


@keep_with_kernel
def bind_names(checked: Checked) -> list[Mapping[str, list[Placed]]]:
    """Return for each block the values bound to each name, with the block that binds each.

    Names that the declarations bind are visible in each block.
    """
    each = list_definitions(checked)
    outer = {n: [(0, v) for v in values] for n, values in each[0].items()}
    return [{**outer, **{n: [(i, v) for v in values] for n, values in local_values.items()}} for i, local_values in enumerate(each)]


def is_float(checked: Checked, expr: Expr) -> bool:
    """Return whether an expression is a scalar or a register tile of floats."""
    t = dtype_of(checked, expr)
    return t is not None and t.is_float


def entry(checked: Checked, expr: Expr) -> tuple[Op, list[Expr]] | None:
    """Return the table entry of an operation and its operands; None for names, literals and places."""
    if isinstance(expr, Call):
        bound = checked.find_call(expr)
        return None if bound is None else (bound.op, list(bound.args.values()))
    operation = operator(expr)
    return None if operation is None else (operation[0], list(operation[1]))


def dtype_of(checked: Checked, expr: Expr) -> DType | None:
    """Return the dtype of a scalar or a register tile."""
    t = expr.type
    return t.dtype if isinstance(t, (Scalar, TileType)) else None


def list_deciders(checked: Checked) -> Iterator[tuple[Expr, list[Expr]]]:
    """Yield every expression that makes an i32 or a bool of floats, or jumps, with those floats."""
    return ((expr, floats) for _, expr, floats in list_placed_deciders(checked))


@keep_with_kernel
def list_placed_deciders(checked: Checked) -> Sequence[tuple[int, Expr, list[Expr]]]:
    """Return (block, expression, floats) for each deciding expression of `list_deciders`.

    Block 0 are the declarations, block i is role i - 1.
    """
    deciders = list[tuple[int, Expr, list[Expr]]]()
    for i, placed in enumerate(list_expressions(checked)):
        for expr in placed:
            floats = [] if isinstance(expr, (Name, Literal)) else _list_floats(checked, expr)
            if floats and (dtype_of(checked, expr) in (I32, BOOL) or jumps(checked, expr)):
                deciders.append((i, expr, floats))
    return tuple(deciders)


@keep_with_kernel
def list_expressions(checked: Checked) -> Sequence[tuple[Expr, ...]]:
    """Return every expression of each block, in nested blocks and inside others too."""
    return [tuple(n for stmt in body for n in walk(stmt) if isinstance(n, Typed)) for body in list_bodies(checked)]  # type: ignore[misc]


def _iterate_calls(checked: Checked) -> Iterator[tuple[int, Call]]:
    """Yield the calls of each block, in nested blocks and inside others too."""
    return ((i, e) for i, placed in enumerate(list_expressions(checked)) for e in placed if isinstance(e, Call))


def _list_floats(checked: Checked, expr: Expr) -> list[Expr]:
    """Return the float operands of an operation on values.

    Reductions, products, and reads of memory have none.
    """
    operation = entry(checked, expr)
    if operation is None or operation[0].reduces or operation[0].effects.accesses:
        return []
    return [a for a in operation[1] if is_float(checked, a)]


@keep_with_kernel
def list_definitions(checked: Checked) -> Sequence[Mapping[str, list[Expr]]]:
    """Return the definitions of each block."""
    return [definitions(body) for body in list_bodies(checked)]


def definitions(body: tuple[Stmt, ...]) -> dict[str, list[Expr]]:
    """Map each name to the values that assignments of a block bind it to, in nested blocks too."""
    bindings: dict[str, list[Expr]] = {}
    for stmt in body:
        if isinstance(stmt, Assign):
            bindings.setdefault(stmt.targets[0], []).append(stmt.value)
        elif isinstance(stmt, (If, For)):
            inner = definitions((*stmt.body, *stmt.orelse) if isinstance(stmt, If) else stmt.body)
            for name, values in inner.items():
                bindings.setdefault(name, []).extend(values)
    return bindings


def find_split_sums(checked: Checked, bound: Mapping[str, list[Expr]], body: tuple[Stmt, ...]) -> set[str]:
    """Return names of [R, 1] values that a sum of rows reaches and a loop carries.

    Names that flow into such are included: their last bits depend on the order of the sum anyway.

    Args:
        checked: The kernel.
        bound: The values of each name.
        body: The block, some of whose loops carry the names.
    """
    rows = {n for n, values in bound.items() if all(isinstance(t := v.type, TileType) and t.cols == 1 for v in values)}
    expressions = {n: [e for v in bound[n] for e in _walk_floats(checked, v)] for n in rows}
    sums = {n for n in rows if any((o := entry(checked, e)) is not None and o[0].reduces and o[0].sums for e in expressions[n])}
    added = {n: {e.id for e in placed if isinstance(e, Name)} for n, placed in expressions.items()}
    names = reach(sums, lambda n: [m for m in rows if n in added[m]])
    if not names:
        return names
    read = {n: set[str]().union(*map(names_read, bound[n])) for n in names}
    targets = {n: reach([m for m in names if n in read[m]], lambda n: [m for m in names if n in read[m]]) for n in names}
    carried = _Carried(body).names
    loop_carried = {n for n in names if n in targets[n] and n in carried}
    return {n for n in names if n in loop_carried or targets[n] & loop_carried}


def _walk_floats(checked: Checked, expr: Expr) -> Iterator[Expr]:
    """Yield an expression and the floats that it is computed from, up to names, reductions, products and memory."""
    yield expr
    for a in _list_floats(checked, expr):
        yield from _walk_floats(checked, a)


class _Carried:
    """The names that loops of a block carry: a turn reads them before it binds them.

    A name that is bound anew from its own value outside of a loop, or in a turn that binds it first, is not carried.
    """

    def __init__(self, body: tuple[Stmt, ...]):
        self.names: set[str] = set()
        self._visit(body, set())

    def _visit(self, body: tuple[Stmt, ...], assigned: set[str]) -> set[str]:
        """Return the names that a block reads before it certainly binds them, and add those it binds to `assigned`."""
        exposed = set[str]()
        for stmt in body:
            if isinstance(stmt, (Assign, ExprStmt)):
                exposed |= names_read(stmt.value) - assigned
                assigned.update(stmt.targets if isinstance(stmt, Assign) else ())
            elif isinstance(stmt, If):
                sides = assigned.copy(), assigned.copy()
                exposed |= names_read(stmt.cond) - assigned
                exposed |= self._visit(stmt.body, sides[0]) | self._visit(stmt.orelse, sides[1])
                assigned |= sides[0] & sides[1]
            elif isinstance(stmt, For):
                inner = self._visit(stmt.body, {stmt.target})
                self.names |= inner & definitions(stmt.body).keys()
                exposed |= (names_read(stmt.iter) | inner) - assigned
        return exposed


__all__ = [
    "Placed",
    "bind_names",
    "collect_copies",
    "collect_deciding",
    "collect_stored_floats",
    "definitions",
    "dtype_of",
    "entry",
    "is_float",
    "jumps",
    "list_accessed",
    "list_bodies",
    "list_deciders",
    "list_definitions",
    "list_expressions",
    "list_placed_deciders",
    "rounds_beside",
    "walk_sources",
]
