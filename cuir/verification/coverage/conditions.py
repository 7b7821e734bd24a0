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

from ...checking.checked import Checked, Role
from ...checking.decisions import entry
from ...checking.views import root_name
from ...ops.base import Op
from ...ops.meaning.scalars import PLAIN
from ...syntax.nodes import Call, Expr, For, If, Name, Node, Slice, Stmt, Subscript
from ...syntax.nodes import Literal as Number
from ...syntax.printer import show
from ...syntax.types import I32, Scalar, TileType
from ...syntax.walk import CHILD_FIELDS, Itself
from ...text.source import Span
from .origins import NUMBERS, Reader

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
    """One condition, and what sides it has: bit i of a mask stands for side i.

    role: number of the role, DECLARATIONS or WORK. level: what must be known for its value, see origins.py. tile: of an index tile, of which elements are on either side.
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
    by: int = 0  # the number that divides, or of the bits
    loops: tuple[For, ...] = ()  # around it, the outermost first
    guards: tuple[Expr, ...] = ()  # what decides whether it is evaluated

    @property
    def span(self) -> Span:
        return self.node.span

    @property
    def everything(self) -> int:
        """The mask of all sides."""
        return (1 << len(self.sides)) - 1

    @property
    def text(self) -> str:
        """The condition with names as inlining gives them, and constants by their values."""
        return f"for {self.node.target} in {show(self.node.iter)}" if isinstance(self.node, For) else show(self.node)

    @property
    def source_text(self) -> str:
        """Text of the condition as its author wrote it, without the names that inlining makes."""
        if not isinstance(self.node, For):
            return source_text(self.node)
        head = _without_comment(self.node.span.text()).removesuffix(":")
        return head if head.startswith("for ") else self.text

    def describe(self, side: int) -> str:
        """A side in words, by the text as its author wrote it: what is then so."""
        text = self.source_text
        if self.kind in ("truth", "comparison"):
            return f"`{text}` is {self.sides[side]}" + (" somewhere" if self.tile else "")
        if self.kind == "turns":
            return f"`{text}` makes {self.sides[side]}"
        operand = f"`{source_text(self.operands[0])}`"
        if self.kind == "quotient":
            return f"`{text}` is {self.sides[side]}"
        if self.kind == "extremum":
            return f"`{source_text(self.operands[side])}` is alone what `{text}` gives"
        return f"{operand} is {self.sides[side]} in `{text}`"

    def sides_of(self, result: Any, operands: Sequence[Any]) -> int:
        """The mask of the sides that a value of the condition is on; of arrays those that some element is on. operands: their values, where the kind needs them."""
        if self.tile:
            result, operands = _array(result), [_array(x) for x in operands]
        return _SIDES_OF[self.kind](self, result, operands)

    @property
    def reads(self) -> tuple[Expr, ...]:
        """The operands whose values `sides_of` needs beside the result."""
        return self.operands if self.kind == "extremum" else self.operands[:1] if self.kind in ("remainder", "bits", "flips") else ()


def source_text(e: Expr) -> str:
    """Read the text of an expression as its author wrote it."""
    span = e.span
    if span.end_line == span.line:
        text = span.text()
    else:
        lines = [span.source.line(n) for n in range(span.line, span.end_line + 1)]
        text = " ".join(map(_without_comment, (lines[0][span.column - 1 :], *lines[1:-1], lines[-1][: span.end_column - 1])))
    return " ".join(text.split()) or show(e)


def _without_comment(line: str) -> str:
    return line.split("#")[0].strip()


def _array(x: Any) -> Any:
    return x.cpu().numpy() if isinstance(x, torch.Tensor) else x


def _either(holds: Any) -> int:
    """Bit 0 where something holds, bit 1 where something does not."""
    if holds.__class__ is np.ndarray:
        return (1 if holds.any() else 0) | (0 if holds.all() else 2)
    return 1 if holds else 2


def _truth(c: Condition, result: Any, operands: Sequence[Any]) -> int:
    return _either(result)


def _remainder(c: Condition, result: Any, operands: Sequence[Any]) -> int:
    return _either(result == operands[0])


def _quotient(c: Condition, result: Any, operands: Sequence[Any]) -> int:
    return _either(result <= (1 if c.op is not None and c.op.traits.rounds == "up" else 0))


def _bits(c: Condition, result: Any, operands: Sequence[Any]) -> int:
    inside, outside = _either(result == 0), _either(result == operands[0])
    return inside | (4 if outside & 2 else 0)


def _flips(c: Condition, result: Any, operands: Sequence[Any]) -> int:
    return _either((operands[0] & c.by) == 0)


def _extremum(c: Condition, result: Any, operands: Sequence[Any]) -> int:
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


def _turns(c: Condition, result: Any, operands: Sequence[Any]) -> int:
    return 1 << min(int(result), 2)


_SIDES_OF: dict[str, Callable[[Condition, Any, Sequence[Any]], int]] = {
    "truth": _truth,
    "comparison": _truth,
    "remainder": _remainder,
    "quotient": _quotient,
    "bits": _bits,
    "flips": _flips,
    "extremum": _extremum,
    "turns": _turns,
}


def collect_conditions(checked: Checked) -> list[Condition]:
    """All conditions of a kernel: of the work function, the declarations and the roles, in the order of the text. Kept with the kernel."""
    if collect_conditions not in checked.made:
        checked.made[collect_conditions] = _Collector(checked).collect()
    found: list[Condition] = checked.made[collect_conditions]
    return found


class _Collector:
    def __init__(self, checked: Checked):
        self.checked = checked
        self.found: list[Condition] = []

    def collect(self) -> list[Condition]:
        self.loops: tuple[For, ...] = ()
        self.guards: tuple[Expr, ...] = ()
        self.reader, self.role, self.under = get_reader(self.checked, None), DECLARATIONS, NUMBERS
        self.block(self.checked.declarations)
        if self.checked.tiles is not None:
            self.role = WORK
            self.expression(self.checked.tiles.count)
        for number, role in enumerate(self.checked.roles):
            self.reader, self.role = get_reader(self.checked, role), number
            self.block(role.body)
        return self.found

    def block(self, body: Sequence[Stmt]) -> None:
        for stmt in body:
            if isinstance(stmt, If):
                self.choice(stmt.cond)
                self.inside((*stmt.body, *stmt.orelse), self.reader.level(stmt.cond), stmt.cond)
            elif isinstance(stmt, For):
                level = NUMBERS
                if isinstance(stmt.iter, Call):
                    for e in stmt.iter.args:
                        self.expression(e)
                    level = max(map(self.reader.level, stmt.iter.args))
                    if not all(isinstance(e, Number) for e in stmt.iter.args):
                        self.add("turns", stmt, _SIDES["turns"], level)
                before, self.loops = self.loops, (*self.loops, stmt)
                self.inside(stmt.body, level, *(stmt.iter.args if isinstance(stmt.iter, Call) else ()))
                self.loops = before
            else:
                for part in evaluated_nodes(stmt):
                    self.expression(part)

    def inside(self, body: Sequence[Stmt], level: int, *guards: Expr) -> None:
        """A block that guards of a level decide about."""
        before = self.under, self.guards
        self.under, self.guards = max(self.under, level), (*self.guards, *guards)
        self.block(body)
        self.under, self.guards = before

    def choice(self, cond: Expr) -> None:
        """Collect the conditions of a branch or of a choice between scalars."""
        self.truth(cond)
        self.expression(cond)

    def truth(self, cond: Expr) -> None:
        """A condition that is none by its operation: a name, a conjunction, an element."""
        operation = entry(self.checked, cond)
        by_itself = operation is not None and (operation[0].traits.compares or operation[0].traits.tests_bit)
        if not by_itself and not isinstance(cond, Number):
            self.add("truth", cond, _SIDES["truth"], self.reader.level(cond))

    def add(self, kind: Kind, node: Expr | For, sides: tuple[str, ...], level: int, **more: Any) -> None:
        self.found.append(
            Condition(len(self.found), kind, node, self.role, max(level, self.under), sides, loops=self.loops, guards=self.guards, **more)
        )

    def expression(self, e: Node) -> None:
        """The conditions in an expression, in the order in which it is evaluated."""
        operation = entry(self.checked, e) if isinstance(e, Expr) else None
        lazy = operation is not None and bool(operation[0].traits.lazy)
        before = self.guards
        for position, child in enumerate(evaluated_nodes(e)):
            if lazy and position == 1 and operation is not None:
                self.guards = (*before, operation[1][0])
            if not isinstance(child, Slice):
                self.expression(child)
            elif child.start is not None:
                self.expression(child.start)  # the end has the same text
        self.guards = before
        if operation is None or operation[0].evaluate is None or not isinstance(e, Expr):
            return
        op, operands = operation
        if op.traits.chooses is not None and isinstance(e.type, Scalar):
            self.truth(operands[0])
        tile = isinstance(e.type, TileType)
        if isinstance(e.type, (Scalar, TileType)) and (not tile or (self.reader.is_index(e) and self.reader.varies(e))):
            self.operation(e, op, operands, tile)

    def operation(self, e: Expr, op: Op, operands: Sequence[Expr], tile: bool) -> None:
        kind = kind_of(op, e, operands)
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
        self.add(kind, e, sides, self.reader.level(e), op=op, operands=ordered, tile=tile, by=number)


def kind_of(op: Op, e: Expr, operands: Sequence[Expr]) -> Kind | None:
    """Classify an operation on scalars or index tiles as a kind of condition; None if it is none."""
    numbers = [x for x in operands if isinstance(x, Number)]
    of = op.traits
    if of.compares:
        return "comparison"
    if of.tests_bit:
        return "truth"
    if of.extremum is not None:
        return "extremum"
    if _dtype(e) != I32 or len(operands) != 2 or len(numbers) != 1 or isinstance(numbers[0].value, (bool, float)):
        return None
    if of.divides_integers:
        if not isinstance(operands[1], Number) or numbers[0].value < 2:
            return None
        return "remainder" if of.remainder else "quotient"
    if of.decided_by is False:
        return "bits"
    return "flips" if of.decided_by is True or (of.involutive and of.commutative) else None


def _dtype(e: Expr) -> object:
    return e.type.dtype if isinstance(e.type, (Scalar, TileType)) else None


def get_reader(checked: Checked, role: Role | None) -> Reader:
    """Return the origins of the names of a role, or of the declarations. Cached with the kernel."""
    key = (get_reader, role.name if role is not None else "")
    if key not in checked.made:
        checked.made[key] = Reader(checked, role, None if role is None else get_reader(checked, None).found)
    reader: Reader = checked.made[key]
    return reader


def evaluated_nodes(node: Node) -> Iterator[Node]:
    """The nodes directly below that are evaluated: no names of functions, of arrays or of dtypes."""
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


def map_parents(checked: Checked) -> dict[Itself, Node]:
    """Map each evaluated node to its parent. Cached with the kernel.

    Nodes are those of the roles, the declarations and the work function.
    """
    if map_parents not in checked.made:
        parents: dict[Itself, Node] = {}
        left: list[Node] = [*checked.declarations, *(s for role in checked.roles for s in role.body)]
        left += [checked.tiles.count] if checked.tiles is not None else []
        while left:
            node = left.pop()
            for child in evaluated_nodes(node):
                parents[Itself(child)] = node
                left.append(child)
        checked.made[map_parents] = parents
    found: dict[Itself, Node] = checked.made[map_parents]
    return found


def boundary(c: Condition) -> list[int]:
    """Numbers of the text that the condition is about: what values are compared with, divided by, or bounded by."""
    numbers = [int(x.value) for x in c.operands if isinstance(x, Number) and not isinstance(x.value, float)]
    return [n for n in numbers if abs(n) < 2**31] + (
        [math.floor(x.value) for x in c.operands if isinstance(x, Number) and isinstance(x.value, float) and math.isfinite(x.value)]
    )


__all__ = ["DECLARATIONS", "WORK", "Condition", "boundary", "collect_conditions", "evaluated_nodes", "get_reader", "kind_of"]
