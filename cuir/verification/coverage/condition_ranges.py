"""Sides of conditions that no launch can take, found by intervals of dims, scalars, units and turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ...checking.checked import Checked, Role
from ...checking.decisions import entry
from ...ops.base import Op
from ...ops.meaning.intervals import FAR, Bounds, Interval, make_hull
from ...syntax.nodes import Assign, Call, Expr, For, If, Name, Stmt
from ...syntax.nodes import Literal as Number
from ...syntax.types import BOOL, I32, Scalar, TileType
from ...syntax.walk import names_read
from .conditions import DECLARATIONS, WORK, Condition

UNBOUNDED: Interval = (-FAR, FAR)


class Ranges:
    """Bounds of the integers of a kernel for dims and scalars between bounds."""

    def __init__(self, checked: Checked, bounds: Mapping[str, Interval]):
        self.checked = checked
        outer = _Scope(checked, checked.declarations, bounds, None, None)
        declared = {s.targets[0]: outer.name(s.targets[0]) for s in checked.declarations if isinstance(s, Assign)}
        units = outer.get_bounds(checked.tiles.count) if checked.tiles is not None else UNBOUNDED
        self.scopes = {DECLARATIONS: outer, WORK: outer}
        for number, role in enumerate(checked.roles):
            self.scopes[number] = _Scope(checked, role.body, {**bounds, **declared}, role, units)

    def impossible(self, c: Condition) -> int:
        """Return the mask of the sides that the condition is certainly never on."""
        scope = self.scopes[c.role]
        if isinstance(c.node, For):
            return _impossible_turns(scope, c.node)
        if c.op is None:
            return _impossible_truth(scope.get_bounds(c.node))
        return _IMPOSSIBLE[c.kind](c, [scope.get_bounds(e) for e in c.operands])


class _Scope:
    """Bounds of names and expressions of one role, or of the declarations."""

    def __init__(self, checked: Checked, body: Sequence[Stmt], bounds: Mapping[str, Interval], role: Role | None, units: Interval | None):
        self.checked, self.units = checked, units
        self.intervals: dict[str, Interval] = dict(bounds)
        self.bound: dict[str, list[Assign | For]] = {}
        self.open: set[str] = set()  # names whose bounds are being computed
        self._collect(body)
        for name in self.bound:
            self.intervals.pop(name, None)
        if role is not None and role.index is not None:
            self.intervals[role.index] = 0, role.workers - 1

    def _collect(self, body: Sequence[Stmt]) -> None:
        for stmt in body:
            if isinstance(stmt, Assign):
                self.bound.setdefault(stmt.targets[0], []).append(stmt)
            elif isinstance(stmt, For):
                self.bound.setdefault(stmt.target, []).append(stmt)
                self._collect(stmt.body)
            elif isinstance(stmt, If):
                self._collect((*stmt.body, *stmt.orelse))

    def name(self, name: str) -> Interval:
        """Return the bounds of a name.

        For a counter that only grows, or only falls, its start bounds one end.
        """
        if name in self.intervals:
            return self.intervals[name]
        if name not in self.bound or name in self.open:
            return UNBOUNDED
        self.open.add(name)
        steps = [b for b in self.bound[name] if isinstance(b, Assign) and name in names_read(b.value)]
        bounds = make_hull(*(self._bound_binding(b) for b in self.bound[name] if b not in steps)) or UNBOUNDED
        if steps:
            signs = [self._step(name, b.value) for b in steps]
            low = bounds[0] if all(s is not None and s[0] >= 0 for s in signs) else -FAR
            high = bounds[1] if all(s is not None and s[1] <= 0 for s in signs) else FAR
            bounds = low, high
        self.open.discard(name)
        if not self.open:
            self.intervals[name] = bounds
        return bounds

    def _step(self, name: str, e: Expr) -> Bounds:
        """Bound the step of a name: the other operand of a sum or difference with the name."""
        operation = entry(self.checked, e)
        if operation is None or len(operation[1]) != 2 or operation[0].traits.linear not in ((1, 1), (1, -1)):
            return None
        left, right = operation[1]
        if isinstance(left, Name) and left.id == name:
            low, high = self.get_bounds(right)
            return (low, high) if operation[0].traits.linear == (1, 1) else (-high, -low)
        if isinstance(right, Name) and right.id == name and operation[0].traits.linear == (1, 1):
            return self.get_bounds(left)
        return None

    def _bound_binding(self, binding: Assign | For) -> Interval:
        if isinstance(binding, Assign):
            return self.get_bounds(binding.value)
        if not isinstance(binding.iter, Call):
            return (0, max(0, self.units[1] - 1)) if self.units is not None else (0, FAR)
        args = [self.get_bounds(a) for a in binding.iter.args]
        start, stop = ((0, 0), args[0]) if len(args) == 1 else (args[0], args[1])
        if len(args) == 3 and args[2][0] <= 0:
            return UNBOUNDED
        return start[0], max(start[0], stop[1] - 1)

    def get_bounds(self, e: Expr) -> Interval:
        """Return the bounds of an integer; 0 and 1 of a bool."""
        kind = e.type
        if isinstance(e, Number):
            return (int(e.value), int(e.value)) if not isinstance(e.value, float) else UNBOUNDED
        if not isinstance(kind, (Scalar, TileType)) or kind.dtype not in (I32, BOOL):
            return UNBOUNDED
        if isinstance(e, Name):
            return self.name(e.id)
        operation = entry(self.checked, e)
        return UNBOUNDED if operation is None else self._result(operation[0], operation[1])

    def _result(self, op: Op, operands: Sequence[Expr]) -> Interval:
        if op.traits.rank:
            return 0, self.checked.cluster - 1
        if op.traits.index_of:
            return 0, self.get_bounds(operands[0])[1] - 1
        if op.traits.converts is not None:
            of_bool = isinstance(operands[0].type, (Scalar, TileType)) and operands[0].type.dtype == BOOL
            return (0, 1) if of_bool else UNBOUNDED
        if op.evaluate is None or op.effects.accesses:
            return UNBOUNDED
        operand_bounds = [self.get_bounds(x) for x in operands]
        if op.traits.compares:
            return _truth_of(op, operand_bounds)
        if op.traits.chooses is not None:
            return (
                operand_bounds[1]
                if operand_bounds[0] == (1, 1)
                else operand_bounds[2]
                if operand_bounds[0] == (0, 0)
                else (min(operand_bounds[1][0], operand_bounds[2][0]), max(operand_bounds[1][1], operand_bounds[2][1]))
            )
        bounds = op.evaluate.interval(*(None if g == UNBOUNDED else g for g in operand_bounds))
        if bounds is None:
            return UNBOUNDED
        return max(-FAR, bounds[0]), min(FAR, bounds[1])


def _truth_of(op: Op, bounds: Sequence[Interval]) -> Interval:
    """Return the bounds of a comparison's result: 0 and 1, or the one that it always gives."""
    (a, b), (x, y) = bounds
    signs = {s for s, holds in ((-1, a < y), (0, a <= y and x <= b), (1, b > x)) if holds}
    true, false = signs & set(op.traits.compares), signs - set(op.traits.compares)
    return (0 if false or not true else 1), (1 if true else 0)


def _impossible_truth(bounds: Interval) -> int:
    return (1 if bounds == (0, 0) else 0) | (2 if bounds == (1, 1) else 0)


def _comparison(c: Condition, bounds: Sequence[Interval]) -> int:
    assert c.op is not None
    if c.op.traits.tests_bit or any(not _integer(e) for e in c.operands):
        return 0
    return _impossible_truth(_truth_of(c.op, bounds))


def _remainder(c: Condition, bounds: Sequence[Interval]) -> int:
    low, high = bounds[0]
    return (1 if low >= c.by or high < 0 else 0) | (2 if low >= 0 and high < c.by else 0)


def _quotient(c: Condition, bounds: Sequence[Interval]) -> int:
    (low, high), up = bounds[0], c.op is not None and c.op.traits.rounds == "up"
    first = c.by if up else c.by - 1  # the largest operand of the first side
    return (1 if low > first else 0) | (2 if high <= first else 0)


def _bits(c: Condition, bounds: Sequence[Interval]) -> int:
    low, high = bounds[0]
    if low < 0 or c.by <= 0:
        return 0
    lowest = c.by & -c.by
    reaches = (1 << high.bit_length()) - 1  # all bits that the operand can have
    return (2 if high < lowest else 0) | (4 if not reaches & ~c.by else 0)


def _flips(c: Condition, bounds: Sequence[Interval]) -> int:
    return _bits(c, bounds) & 2


def _extremum(c: Condition, bounds: Sequence[Interval]) -> int:
    if c.op is None or any(not _integer(e) for e in c.operands):
        return 0
    mask = 0
    for i, (low, high) in enumerate(bounds):
        other_bounds = [g for j, g in enumerate(bounds) if j != i]
        least = c.op.traits.extremum == "min"
        if any(low >= g[1] if least else high <= g[0] for g in other_bounds):
            mask |= 1 << i
    return mask


def _truth(c: Condition, bounds: Sequence[Interval]) -> int:
    return 0


_IMPOSSIBLE: dict[str, Callable[[Condition, Sequence[Interval]], int]] = {
    "comparison": _comparison,
    "truth": _truth,
    "remainder": _remainder,
    "quotient": _quotient,
    "bits": _bits,
    "flips": _flips,
    "extremum": _extremum,
}


def _impossible_turns(scope: _Scope, loop: For) -> int:
    if not isinstance(loop.iter, Call):
        return 0
    args = [scope.get_bounds(a) for a in loop.iter.args]
    start, stop = ((0, 0), args[0]) if len(args) == 1 else (args[0], args[1])
    if len(args) == 3:
        return 0
    least, most = stop[0] - start[1], stop[1] - start[0]
    return (1 if least > 0 else 0) | (2 if least > 1 or most < 1 else 0) | (4 if most < 2 else 0)


def _integer(e: Expr) -> bool:
    return isinstance(e.type, (Scalar, TileType)) and e.type.dtype in (I32, BOOL)


__all__ = ["UNBOUNDED", "Ranges"]
