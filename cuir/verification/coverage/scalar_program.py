"""Scalar slice of a kernel: evaluates conditions over all units, turns and workers, without data.

Only what the requested conditions need is evaluated, as closures over a frame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from ...checking.checked import Checked, Role
from ...checking.decisions import entry
from ...checking.views import root_name
from ...ops.base import Op
from ...ops.meaning import DivisionByZero, cast
from ...ops.meaning import Value as Operand
from ...syntax.nodes import Assign, Binary, Call, Expr, For, If, Name, Node, Stmt, Subscript
from ...syntax.nodes import Literal as Number
from ...syntax.types import DTYPES, I32, DType, Scalar, TileType
from ...syntax.walk import IdentityKey
from .conditions import WORK, Condition, collect_conditions, list_evaluated_nodes, map_parents
from .origins import RUN, find_origins

TURNS = 400_000  # of all loops of one evaluation
UNIT, WORKER, RANK = "#units", "#worker", "#rank"  # no names of the language
Frame = dict[str, Operand]
Value = Callable[[Frame], Operand]
Action = Callable[[Frame], None]
Size = int | float  # of a dim, or the value of a scalar
Tensors = Callable[[str], np.ndarray]  # returns an input by name


class Unknown(Exception):
    """Condition that depends on the contents of memory, or on a launch that is too long to evaluate."""


class Masks:
    """Observations of one evaluation, by condition, and the numbers of units of a worker.

    sides: a bit each. near: bits 0 to 2 for a difference -1, 0 or 1 of the compared numbers. turns: trip counts.
    """

    def __init__(self, count: int):
        self.sides = [0] * count
        self.near = [0] * count
        self.turns: list[set[int]] = [set() for _ in range(count)]
        self.units: set[int] = set()


class ScalarProgram:
    """Evaluator of some conditions of a kernel.

    `evaluate` raises Unknown where a condition cannot be evaluated.
    """

    def __init__(self, checked: Checked, conditions: Iterable[Condition]):
        self.checked = checked
        self.conditions = {c.number: c for c in conditions}
        self.by_node: dict[IdentityKey, Condition] = {}
        for c in self.conditions.values():
            existing = self.by_node.get(IdentityKey(c.node))
            if existing is None or existing.op is None:
                self.by_node[IdentityKey(c.node)] = c
        self.above = self._find_ancestors()
        self.masks = Masks(len(collect_conditions(checked)))
        self.turns_remaining = 0
        self.size = 0  # operations, about
        self.tensors: Tensors = _no_tensors
        self.reads: set[str] = set()  # tensors that are read from
        self.names: set[str] = set()  # that are needed
        self.origins, self.needed = find_origins(checked), set[str]()
        self.before = self._slice(checked.declarations, all_names=True)
        declared, self.needed = self.needed, set()
        self.count = self._compile(checked.tiles.count) if checked.tiles is not None else None
        counted, uses_units = set(self.needed), any(c.role == WORK for c in self.conditions.values())
        self.roles: list[tuple[Role, tuple[Action, ...], bool, bool]] = []
        for number, role in enumerate(checked.roles):
            if any(c.role == number for c in self.conditions.values()):
                body = self._slice(role.body)
                self.roles.append((role, body, role.index is not None and role.index in self.needed, RANK in self.needed))
                self.names |= self.needed
                uses_units |= any(isinstance(s, For) and isinstance(s.iter, Name) for s in role.body)
        self.names |= counted if uses_units else set()
        self.names |= declared if self.names & list_declared_names(checked) else set()

    def _find_ancestors(self) -> set[IdentityKey]:
        """Return the nodes that contain a requested condition."""
        parents, above = map_parents(self.checked), set[IdentityKey]()
        for c in self.conditions.values():
            key: IdentityKey | None = IdentityKey(c.node)
            while key is not None and key not in above:
                above.add(key)
                parent = parents.get(key)
                key = IdentityKey(parent) if parent is not None else None
        return above

    # ---- running
    def units(self, sizes: Mapping[str, Size]) -> int:
        """Return the units of work of a launch; 0 for a kernel without."""
        frame = dict(sizes)
        for action in self.before:
            action(frame)
        return max(0, int(self.count(frame))) if self.count is not None else 0

    def evaluate(self, sizes: Mapping[str, Size], grid: int = 1, tensors: Tensors | None = None, turns: int = TURNS) -> Masks:
        """Evaluate the conditions of a launch.

        sizes: dims and scalars. tensors: returns an input by name, as an array. Raises Unknown beyond `turns` loop turns.
        """
        masks = self.masks = Masks(len(self.masks.sides))
        self.tensors, self.turns_remaining = tensors or _no_tensors, turns
        outer = dict(sizes)
        try:
            for action in self.before:
                action(outer)
            count = max(0, int(self.count(outer))) if self.count is not None else 0
            if count > turns:
                raise Unknown
            for role, body, uses_index, uses_rank in self.roles:
                for first in range(min(grid, max(1, count))):
                    units = range(first, count, grid)
                    masks.units.add(len(units))
                    for worker in range(role.workers if uses_index else 1):
                        for rank in range(self.checked.cluster if uses_rank else 1):
                            frame = {**outer, UNIT: units, RANK: rank}
                            if role.index is not None:
                                frame[role.index] = worker
                            for action in body:
                                action(frame)
        except (DivisionByZero, ZeroDivisionError, IndexError, OverflowError, KeyError) as error:
            raise Unknown from error
        return masks

    def _count_turns(self, n: int) -> None:
        self.turns_remaining -= n + 1
        if self.turns_remaining < 0:
            raise Unknown

    # ---- statements
    def _slice(self, body: Sequence[Stmt], all_names: bool = False) -> tuple[Action, ...]:
        """Return the actions of a block, with the statements that define the names that they need."""
        needed = {s.targets[0] for s in body if isinstance(s, Assign)} if all_names else set[str]()
        size = self.size
        while True:
            self.needed, before, self.size = set(needed), needed, size
            actions = self._compile_block(body, needed)
            needed = needed | self.needed
            if needed == before:
                return actions

    def _compile_block(self, body: Sequence[Stmt], needed: set[str]) -> tuple[Action, ...]:
        return tuple(a for stmt in body for a in self._compile_statement(stmt, needed))

    def _compile_statement(self, stmt: Stmt, needed: set[str]) -> list[Action]:
        if isinstance(stmt, If):
            return self._compile_branch(stmt, needed)
        if isinstance(stmt, For):
            return self._compile_loop(stmt, needed)
        if isinstance(stmt, Assign) and stmt.targets[0] in needed:
            name, value = stmt.targets[0], self._compile(stmt.value)

            def bind(frame: Frame) -> None:
                frame[name] = value(frame)

            return [bind]
        return [a for e in list_evaluated_nodes(stmt) for a in self._compile_roots(e)]

    def _compile_branch(self, stmt: If, needed: set[str]) -> list[Action]:
        then, otherwise = self._compile_block(stmt.body, needed), self._compile_block(stmt.orelse, needed)
        if not then and not otherwise:
            return self._compile_roots(stmt.cond)
        cond = self._compile(stmt.cond)

        def branch(frame: Frame) -> None:
            for action in then if cond(frame) else otherwise:
                action(frame)

        return [branch]

    def _compile_loop(self, stmt: For, needed: set[str]) -> list[Action]:
        inner, name, counted = self._compile_block(stmt.body, needed), stmt.target, self.by_node.get(IdentityKey(stmt))
        if not isinstance(stmt.iter, Call):

            def work(frame: Frame) -> None:
                self._count_turns(len(frame[UNIT]))
                for t in frame[UNIT]:
                    frame[name] = t
                    for action in inner:
                        action(frame)

            return [work] if inner else []
        if not inner and counted is None:
            return [a for e in stmt.iter.args for a in self._compile_roots(e)]
        args = [self._compile(e) for e in stmt.iter.args]
        number = -1 if counted is None else counted.number

        def loop(frame: Frame) -> None:
            turns = range(*(int(a(frame)) for a in args))
            n = len(turns)
            if number >= 0:
                self.masks.sides[number] |= 1 << min(n, 2)
                self.masks.turns[number].add(n)
            if not inner:
                return
            self._count_turns(n)
            for i in turns:
                frame[name] = i
                for action in inner:
                    action(frame)

        return [loop]

    def _compile_roots(self, e: Node) -> list[Action]:
        """Return evaluations of the requested conditions in an expression whose value is not needed."""
        if IdentityKey(e) not in self.above:
            return []
        if isinstance(e, Expr):
            operation = entry(self.checked, e)
            if IdentityKey(e) in self.by_node or (operation is not None and operation[0].traits.lazy):
                return [self._compile(e)]
        return [a for child in list_evaluated_nodes(e) for a in self._compile_roots(child)]

    # ---- expressions
    def _compile(self, e: Expr) -> Value:
        """Compile an expression, recording its requested conditions; its names are needed from now on."""
        self.size += 1
        c = self.by_node.get(IdentityKey(e))
        if c is None or c.op is not None:
            return self._compile_plain(e, c)
        value, number = self._compile_plain(e, None), c.number

        def truth(frame: Frame) -> Operand:
            v = value(frame)
            self.masks.sides[number] |= c.sides_of(v, ())
            return v

        return truth

    def _compile_plain(self, e: Expr, c: Condition | None) -> Value:
        if isinstance(e, Number):
            number = e.value
            return lambda frame: number
        if isinstance(e, Name):
            return self._compile_name(e.id)
        if isinstance(e, Subscript):
            return self._compile_read(e)
        operation = entry(self.checked, e)
        if operation is None:
            return _raise_unknown
        op, operands = operation
        if op.traits.rank:
            self.needed.add(RANK)
            return lambda frame: frame[RANK]
        if op.traits.index_of is not None:
            array = np.arange(int(operands[0].value)) if isinstance(operands[0], Number) else np.arange(0)
            tile = array[:, None] if op.traits.index_of == "row" else array[None, :]
            return lambda frame: tile
        if op.traits.converts is not None:
            return self._compile_cast(e, operands[0])
        if op.evaluate is None or op.reduces or op.effects.accesses:
            return _raise_unknown
        values = [self._compile(x) for x in operands]
        if op.traits.lazy:
            return _compile_lazy(op, values)
        dtype = _dtype(operands[-1]) or I32
        function = op.evaluate.scalar(dtype)
        if function is None:
            return _raise_unknown
        if c is not None:
            return self._compile_record(
                c, _fold_operands(op, function, len(operands)), values, [i for r in c.reads for i, x in enumerate(operands) if x is r]
            )
        if len(values) == 2:
            x, y = values
            if isinstance(e, Binary) and dtype == I32 and (quick := _get_unreduced(op)) is not None:
                function = quick
            return lambda frame: function(x(frame), y(frame))
        folded = _fold_operands(op, function, len(operands))
        return lambda frame: folded(*(v(frame) for v in values))

    def _compile_record(self, c: Condition, function: Callable[..., Operand], values: Sequence[Value], reads: Sequence[int]) -> Value:
        number, compares = c.number, c.kind == "comparison" and not c.tile

        def record(frame: Frame) -> Operand:
            operands = [v(frame) for v in values]
            result = function(*operands)
            masks = self.masks
            masks.sides[number] |= c.sides_of(result, [operands[i] for i in reads])
            if compares and -1 <= (d := operands[0] - operands[1]) <= 1:
                masks.near[number] |= 1 << int(d) + 1
            return result

        return record

    def _compile_name(self, name: str) -> Value:
        if name in DTYPES:
            return _raise_unknown
        if name == "inf":
            return lambda frame: float("inf")
        self.needed.add(name)
        return lambda frame: frame[name]

    def _compile_read(self, e: Subscript) -> Value:
        name = root_name(e)
        if name is None or self.origins.find_level(e) >= RUN or isinstance(e.type, TileType):
            return _raise_unknown
        self.reads.add(name)
        indices = [self._compile(i) for i in e.indices]  # type: ignore[arg-type]

        def read(frame: Frame) -> Operand:
            array, at = self.tensors(name), [int(i(frame)) for i in indices]
            for i, n in zip(at, array.shape):
                if not 0 <= i < n:
                    raise Unknown
            return array.item(*at)

        return read

    def _compile_cast(self, e: Expr, operand: Expr) -> Value:
        source, target, value = _dtype(operand), _dtype(e), self._compile(operand)
        if source is None or target is None:
            return _raise_unknown
        return lambda frame: cast(value(frame), source, target)


def list_declared_names(checked: Checked) -> set[str]:
    """Return the names that the declarations bind."""
    return {s.targets[0] for s in checked.declarations if isinstance(s, Assign)}


def _raise_unknown(frame: Frame) -> Operand:
    raise Unknown


def _no_tensors(name: str) -> np.ndarray:
    raise Unknown


def _compile_lazy(op: Op, values: Sequence[Value]) -> Value:
    """Compile a choice, a conjunction or a disjunction, one side of which may be skipped."""
    if op.traits.chooses is not None:
        cond, x, y = values
        return lambda frame: x(frame) if cond(frame) else y(frame)
    (x, y), decided = values, op.traits.decided_by

    def run_either(frame: Frame) -> Operand:
        v = x(frame)
        return v if bool(v) == decided else y(frame)

    return run_either


def _get_unreduced(op: Op) -> Callable[[Operand, Operand], Operand] | None:
    """Return sums and differences without a reduction to 32 bits.

    A launch in which an index would overflow is refused.
    """
    if op.traits.linear == (1, 1):
        return lambda a, b: a + b
    return (lambda a, b: a - b) if op.traits.linear == (1, -1) else None


def _fold_operands(op: Op, function: Callable[..., Operand], operands: int) -> Callable[..., Operand]:
    """Extend an operation of two values to more."""
    if op.traits.extremum is None or operands == 2:
        return function

    def fold(*values: Operand) -> Operand:
        result = values[0]
        for v in values[1:]:
            result = function(result, v)
        return result

    return fold


def _dtype(e: Expr) -> DType | None:
    return e.type.dtype if isinstance(e.type, (Scalar, TileType)) else None


__all__ = ["TURNS", "Masks", "ScalarProgram", "Unknown"]
