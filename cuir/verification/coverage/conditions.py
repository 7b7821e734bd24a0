"""Scalar conditions of a checked kernel, with their sides.

They are comparisons, divisions by numbers, bounds, bits, choices, branches and loops.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from ...checking.checked import Checked
from ...checking.decisions import entry
from ...checking.kernel_results import keep_with_kernel
from ...checking.views import root_name
from ...ops.base import Op
from ...ops.meaning import Value
from ...ops.meaning.scalars import PLAIN
from ...syntax.nodes import Call, Expr, For, If, Name, Node, Slice, Stmt, Subscript
from ...syntax.nodes import Literal as Number
from ...syntax.printer import show
from ...syntax.types import I32, Scalar, TileType
from ...syntax.walk import CHILD_FIELDS, IdentityKey
from ...text.source import Span
from .origins import NUMBERS, find_origins

Kind = Literal["truth", "comparison", "remainder", "quotient", "bits", "flips", "extremum", "turns"]
DECLARATIONS, WORK = -1, -2  # in place of the number of a role

_SIDES: dict[str, tuple[str, ...]] = {
    "truth": ("true", "false"),
    "comparison": ("true", "false"),
    "remainder": ("below the divisor", "at the divisor or beyond"),
    "quotient": ("0", "more than 0"),
    "bits": ("without any of these bits", "with some of these bits", "with other bits"),
    "flips": ("without any of these bits", "with some of these bits"),
    "turns": ("no turn", "one turn", "more than one turn"),
}


@dataclass(frozen=True, eq=False)
class Condition:
    """One condition and its sides: bit i of a mask stands for side i.

    role: number of the role, DECLARATIONS or WORK. level: what its value depends on, see origins.py. tile: of an index
    tile, whose elements may be on different sides.
    """

    number: int
    kind: Kind
    node: Expr | For
    role: int
    level: int
    sides: tuple[str, ...]
    op: Op | None = None
    operands: tuple[Expr, ...] = ()
    tile: bool = False
    by: int = 0  # the divisor, or the number whose bits are tested
    loops: tuple[For, ...] = ()  # enclosing loops, the outermost first
    guards: tuple[Expr, ...] = ()  # conditions that decide whether it is evaluated

    @property
    def span(self) -> Span:
        """Location of the condition in the text."""
        return self.node.span

    @property
    def all_sides(self) -> int:
        """The mask of all sides."""
        return (1 << len(self.sides)) - 1

    @property
    def text(self) -> str:
        """The condition with names as inlining makes them, and constants by their values."""
        return f"for {self.node.target} in {show(self.node.iter)}" if isinstance(self.node, For) else show(self.node)

    @property
    def source_text(self) -> str:
        """Text of the condition as its author wrote it, without the names that inlining makes."""
        if not isinstance(self.node, For):
            return read_source_text(self.node)
        head = _strip_comment(self.node.span.text()).removesuffix(":")
        return head if head.startswith("for ") else self.text

    def describe(self, side: int) -> str:
        """Describe a side by the text as its author wrote it."""
        text = self.source_text
        if self.kind in ("truth", "comparison"):
            return f"`{text}` is {self.sides[side]}" + (" somewhere" if self.tile else "")
        if self.kind == "turns":
            return f"`{text}` makes {self.sides[side]}"
        operand = f"`{read_source_text(self.operands[0])}`"
        if self.kind == "quotient":
            return f"`{text}` is {self.sides[side]}"
        if self.kind == "extremum":
            return f"`{read_source_text(self.operands[side])}` is alone what `{text}` gives"
        return f"{operand} is {self.sides[side]} in `{text}`"

    def sides_of(self, result: Value, operands: Sequence[Value]) -> int:
        """Return the mask of the sides that a value is on; for arrays, of any element.

        operands: their values, where the kind needs them (`reads`).
        """
        if self.tile:
            result, operands = _to_array(result), [_to_array(x) for x in operands]
        return _SIDES_OF[self.kind](self, result, operands)

    @property
    def reads(self) -> tuple[Expr, ...]:
        """The operands whose values `sides_of` needs besides the result."""
        return self.operands if self.kind == "extremum" else self.operands[:1] if self.kind in ("remainder", "bits", "flips") else ()


def read_source_text(e: Expr) -> str:
    """Read the text of an expression as its author wrote it."""
    span = e.span
    if span.end_line == span.line:
        text = span.text()
    else:
        lines = [span.source.line(n) for n in range(span.line, span.end_line + 1)]
        text = " ".join(map(_strip_comment, (lines[0][span.column - 1 :], *lines[1:-1], lines[-1][: span.end_column - 1])))
    return " ".join(text.split()) or show(e)


def _strip_comment(line: str) -> str:
    return line.split("#")[0].strip()


def _to_array(x: Value) -> Value:
    return x.cpu().numpy() if isinstance(x, torch.Tensor) else x


def _make_side_mask(holds: Value) -> int:
    """Return a mask: bit 0 where something holds, bit 1 where something does not."""
    if holds.__class__ is np.ndarray:
        return (1 if holds.any() else 0) | (0 if holds.all() else 2)
    return 1 if holds else 2


def _truth(c: Condition, result: Value, operands: Sequence[Value]) -> int:
    return _make_side_mask(result)


def _remainder(c: Condition, result: Value, operands: Sequence[Value]) -> int:
    return _make_side_mask(result == operands[0])


def _quotient(c: Condition, result: Value, operands: Sequence[Value]) -> int:
    return _make_side_mask(result <= (1 if c.op is not None and c.op.traits.rounds == "up" else 0))


def _bits(c: Condition, result: Value, operands: Sequence[Value]) -> int:
    inside, outside = _make_side_mask(result == 0), _make_side_mask(result == operands[0])
    return inside | (4 if outside & 2 else 0)


def _flips(c: Condition, result: Value, operands: Sequence[Value]) -> int:
    return _make_side_mask((operands[0] & c.by) == 0)


def _extremum(c: Condition, result: Value, operands: Sequence[Value]) -> int:
    if len(operands) == 2 and result.__class__ in PLAIN:
        x, y = operands
        if x.__class__ in PLAIN and y.__class__ in PLAIN:
            return 0 if x == y else 1 if x == result else 2
    mask = 0
    for i, x in enumerate(operands):
        alone = x == result
        for j, y in enumerate(operands):
            if i != j:
                alone = alone & (y != result)
        mask |= (1 << i) if np.any(alone) else 0
    return mask


def _turns(c: Condition, result: Value, operands: Sequence[Value]) -> int:
    return 1 << min(int(result), 2)


_SIDES_OF: dict[str, Callable[[Condition, Value, Sequence[Value]], int]] = {
    "truth": _truth,
    "comparison": _truth,
    "remainder": _remainder,
    "quotient": _quotient,
    "bits": _bits,
    "flips": _flips,
    "extremum": _extremum,
    "turns": _turns,
}


@keep_with_kernel
def collect_conditions(checked: Checked) -> list[Condition]:
    """Collect all conditions of a kernel, in the order of the text. Cached with the kernel.

    They are those of the work function, the declarations and the roles.
    """
    return _Collector(checked).collect()


class _Collector:
    def __init__(self, checked: Checked):
        self.checked, self.origins = checked, find_origins(checked)
        self.conditions: list[Condition] = []

    def collect(self) -> list[Condition]:
        self.loops: tuple[For, ...] = ()
        self.guards: tuple[Expr, ...] = ()
        self.role, self.under = DECLARATIONS, NUMBERS
        self.collect_block(self.checked.declarations)
        if self.checked.tiles is not None:
            self.role = WORK
            self.collect_expression(self.checked.tiles.count)
        for number, role in enumerate(self.checked.roles):
            self.role = number
            self.collect_block(role.body)
        return self.conditions

    def collect_block(self, body: Sequence[Stmt]) -> None:
        for stmt in body:
            if isinstance(stmt, If):
                self.collect_choice(stmt.cond)
                self.collect_inside((*stmt.body, *stmt.orelse), self.origins.find_level(stmt.cond), stmt.cond)
            elif isinstance(stmt, For):
                level = NUMBERS
                if isinstance(stmt.iter, Call):
                    for e in stmt.iter.args:
                        self.collect_expression(e)
                    level = max(map(self.origins.find_level, stmt.iter.args))
                    if not all(isinstance(e, Number) for e in stmt.iter.args):
                        self.add("turns", stmt, _SIDES["turns"], level)
                before, self.loops = self.loops, (*self.loops, stmt)
                self.collect_inside(stmt.body, level, *(stmt.iter.args if isinstance(stmt.iter, Call) else ()))
                self.loops = before
            else:
                for part in list_evaluated_nodes(stmt):
                    self.collect_expression(part)

    def collect_inside(self, body: Sequence[Stmt], level: int, *guards: Expr) -> None:
        """Collect from a block under guards of a level."""
        before = self.under, self.guards
        self.under, self.guards = max(self.under, level), (*self.guards, *guards)
        self.collect_block(body)
        self.under, self.guards = before

    def collect_choice(self, cond: Expr) -> None:
        """Collect the conditions of a branch or of a choice between scalars."""
        self.collect_truth(cond)
        self.collect_expression(cond)

    def collect_truth(self, cond: Expr) -> None:
        """Add a branch condition that is not a comparison: a name, a conjunction, an element."""
        operation = entry(self.checked, cond)
        is_comparison = operation is not None and (operation[0].traits.compares or operation[0].traits.tests_bit)
        if not is_comparison and not isinstance(cond, Number):
            self.add("truth", cond, _SIDES["truth"], self.origins.find_level(cond))

    def add(self, kind: Kind, node: Expr | For, sides: tuple[str, ...], level: int, **fields: Any) -> None:
        self.conditions.append(
            Condition(
                len(self.conditions), kind, node, self.role, max(level, self.under), sides, loops=self.loops, guards=self.guards, **fields
            )
        )

    def collect_expression(self, e: Node) -> None:
        """Collect the conditions in an expression, in the order of evaluation."""
        operation = entry(self.checked, e) if isinstance(e, Expr) else None
        lazy = operation is not None and bool(operation[0].traits.lazy)
        before = self.guards
        for position, child in enumerate(list_evaluated_nodes(e)):
            if lazy and position == 1 and operation is not None:
                self.guards = (*before, operation[1][0])
            if not isinstance(child, Slice):
                self.collect_expression(child)
            elif child.start is not None:
                self.collect_expression(child.start)  # the end repeats the start's text
        self.guards = before
        if operation is None or operation[0].evaluate is None or not isinstance(e, Expr):
            return
        op, operands = operation
        if op.traits.chooses is not None and isinstance(e.type, Scalar):
            self.collect_truth(operands[0])
        tile = isinstance(e.type, TileType)
        if isinstance(e.type, (Scalar, TileType)) and (not tile or (self.origins.is_index(e) and self.origins.varies(e))):
            self.collect_operation(e, op, operands, tile)

    def collect_operation(self, e: Expr, op: Op, operands: Sequence[Expr], tile: bool) -> None:
        kind = classify_operation(op, e, operands)
        if kind is None:
            return
        number = next((int(x.value) for x in reversed(operands) if isinstance(x, Number)), 0)
        first = [x for x in operands if not isinstance(x, Number)]
        ordered = tuple(
            operands if kind in ("comparison", "extremum", "truth") else [*first, *(x for x in operands if isinstance(x, Number))]
        )
        sides = tuple(f"operand {i + 1}" for i in range(len(operands))) if kind == "extremum" else _SIDES[kind]
        if kind == "quotient" and op.traits.rounds == "up":
            sides = ("at most 1", "more than 1")
        self.add(kind, e, sides, self.origins.find_level(e), op=op, operands=ordered, tile=tile, by=number)


def classify_operation(op: Op, e: Expr, operands: Sequence[Expr]) -> Kind | None:
    """Classify an operation on scalars or index tiles as a kind of condition; None if it is none."""
    numbers = [x for x in operands if isinstance(x, Number)]
    operator = op.traits
    if operator.compares:
        return "comparison"
    if operator.tests_bit:
        return "truth"
    if operator.extremum is not None:
        return "extremum"
    if _dtype(e) != I32 or len(operands) != 2 or len(numbers) != 1 or isinstance(numbers[0].value, (bool, float)):
        return None
    if operator.divides_integers:
        if not isinstance(operands[1], Number) or numbers[0].value < 2:
            return None
        return "remainder" if operator.remainder else "quotient"
    if operator.decided_by is False:
        return "bits"
    return "flips" if operator.decided_by is True or (operator.involutive and operator.commutative) else None


def _dtype(e: Expr) -> object:
    return e.type.dtype if isinstance(e.type, (Scalar, TileType)) else None


def list_evaluated_nodes(node: Node) -> Iterator[Node]:
    """Yield the child nodes that are evaluated: no names of functions, arrays or dtypes."""
    if isinstance(node, Subscript):
        if root_name(node) is not None and not isinstance(node.value, Name):
            yield node.value
        yield from node.indices
        return
    for name in CHILD_FIELDS[node.__class__]:
        if isinstance(node, Call) and name == "func":
            if not isinstance(node.func, Name):
                yield node.func
            continue
        value = getattr(node, name)
        yield from value if isinstance(value, tuple) else () if value is None else (value,)


@keep_with_kernel
def map_parents(checked: Checked) -> dict[IdentityKey, Node]:
    """Map each evaluated node to its parent. Cached with the kernel.

    Nodes are those of the roles, the declarations and the work function.
    """
    parents: dict[IdentityKey, Node] = {}
    pending: list[Node] = [*checked.declarations, *(s for role in checked.roles for s in role.body)]
    pending += [checked.tiles.count] if checked.tiles is not None else []
    while pending:
        node = pending.pop()
        for child in list_evaluated_nodes(node):
            parents[IdentityKey(child)] = node
            pending.append(child)
    return parents


def list_boundary_numbers(c: Condition) -> list[int]:
    """Return the numbers of the text with which values are compared, by which they are divided or bounded."""
    numbers = [int(x.value) for x in c.operands if isinstance(x, Number) and not isinstance(x.value, float)]
    return [n for n in numbers if abs(n) < 2**31] + (
        [math.floor(x.value) for x in c.operands if isinstance(x, Number) and isinstance(x.value, float) and math.isfinite(x.value)]
    )


__all__ = [
    "DECLARATIONS",
    "WORK",
    "Condition",
    "classify_operation",
    "collect_conditions",
    "list_boundary_numbers",
    "list_evaluated_nodes",
]
