"""Origins of the values of a role's names: numbers of the launch, index tiles, or data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ...checking.checked import Checked, Role
from ...checking.decisions import definitions, entry
from ...checking.views import root_name
from ...syntax.nodes import Assign, Call, Expr, For, If, Literal, Name, Slice, Stmt, Subscript
from ...syntax.types import BOOL, I32, Scalar, TileType
from ...syntax.walk import children, walk

NUMBERS, INPUTS, RUN = 0, 1, 2  # the launch alone; also elements of read-only tensors; only a run


@dataclass
class Origins:
    """Origins by name, of one role or of the declarations.

    level: what a value depends on (NUMBERS, INPUTS or RUN).
    """

    level: dict[str, int] = field(default_factory=dict)
    index: dict[str, bool] = field(default_factory=dict)  # for tiles: computed only from rows, columns and numbers
    varies: dict[str, bool] = field(default_factory=dict)  # for these: computed from more than rows and columns


class Reader:
    """The origins of the names of a role, computed from its text."""

    def __init__(self, checked: Checked, role: Role | None, outer: Origins | None = None):
        self.checked = checked
        self.body: Sequence[Stmt] = role.body if role is not None else checked.declarations
        self.written = {t.name for t in checked.tensors if t.written or t.scratch}
        self.tensors = {t.name for t in checked.tensors}
        self.outer = outer or Origins()
        self.bound: Mapping[str, list[Expr]] = definitions(tuple(self.body))
        self.origins = Origins(dict(self.outer.level), dict(self.outer.index), dict(self.outer.varies))
        self._settle_levels()
        self._settle_index()

    # ---- levels
    def _settle_levels(self) -> None:
        while self._raise_levels(self.body, NUMBERS):
            pass

    def _raise_levels(self, body: Iterable[Stmt], under: int) -> bool:
        """Propagate levels once over a block under a condition of a level; return whether something changed."""
        changed = False
        for stmt in body:
            if isinstance(stmt, Assign):
                changed |= self._bind(stmt.targets[0], max(under, self.level(stmt.value)))
            elif isinstance(stmt, If):
                inner = max(under, self.level(stmt.cond))
                changed |= self._raise_levels((*stmt.body, *stmt.orelse), inner)
            elif isinstance(stmt, For):
                inner = max([under, *map(self.level, stmt.iter.args)]) if isinstance(stmt.iter, Call) else under
                changed |= self._bind(stmt.target, inner)
                changed |= self._raise_levels(stmt.body, inner)
        return changed

    def _bind(self, name: str, level: int) -> bool:
        if self.origins.level.get(name, NUMBERS) >= level:
            return False
        self.origins.level[name] = level
        return True

    def level(self, e: Expr) -> int:
        """Return what the value of an expression depends on: NUMBERS, INPUTS or RUN."""
        if isinstance(e, Name):
            return self.origins.level.get(e.id, NUMBERS)
        if isinstance(e, Subscript):
            parts = [n for i in e.indices for n in (children(i) if isinstance(i, Slice) else (i,))]
            inside = max((self.level(n) for n in parts if isinstance(n, Expr)), default=NUMBERS)
            readable = root_name(e) in self.tensors - self.written and isinstance(e.type, Scalar)
            return max(inside, INPUTS if readable else RUN)
        bound = self.checked.find_call(e)
        if bound is not None and (bound.op.effects.accesses or bound.op.traits.product or bound.op.reduces):
            return RUN
        if isinstance(e.type, TileType) and e.type.dtype.is_float:
            return RUN
        operation = entry(self.checked, e)
        return max(map(self.level, operation[1]), default=NUMBERS) if operation is not None else NUMBERS

    # ---- index tiles
    def _settle_index(self) -> None:
        names = [n for n, values in self.bound.items() if any(isinstance(v.type, TileType) for v in values)]
        self.origins.index |= dict.fromkeys(names, True)
        while any(self._lower_index(n) for n in names):
            pass
        while any(self._raise_varies(n) for n in self.bound):
            pass

    def _lower_index(self, name: str) -> bool:
        if not self.origins.index[name] or all(map(self.is_index, self.bound[name])):
            return False
        self.origins.index[name] = False
        return True

    def _raise_varies(self, name: str) -> bool:
        if self.origins.varies.get(name) or not any(map(self.varies, self.bound[name])):
            return False
        self.origins.varies[name] = True
        return True

    def is_index(self, e: Expr) -> bool:
        """Return whether an i32 or bool follows only from rows, columns and the launch's numbers."""
        if not isinstance(e.type, (TileType, Scalar)) or e.type.dtype not in (I32, BOOL):
            return False
        if isinstance(e.type, Scalar):
            return self.level(e) < RUN
        if isinstance(e, Name):
            return self.origins.index.get(e.id, False)
        operation = entry(self.checked, e)
        if operation is None:
            return False
        op, operands = operation
        if op.traits.index_of:
            return True
        return op.traits.elementwise and op.evaluate is not None and all(map(self.is_index, _drop_dtype_names(operands)))

    def varies(self, e: Expr) -> bool:
        """Return whether the value may differ between launches, units or loop turns."""
        if isinstance(e, Literal):
            return False
        if isinstance(e, Name):
            return self.origins.varies.get(e.id, False) if e.id in self.bound else True
        operation = entry(self.checked, e)
        if operation is None:
            return True
        return not operation[0].traits.index_of and any(map(self.varies, _drop_dtype_names(operation[1])))


def _drop_dtype_names(operands: Sequence[Expr]) -> list[Expr]:
    """Return the operands without names of dtypes."""
    return [e for e in operands if e.type is None or isinstance(e.type, (Scalar, TileType))]


def list_bound_names(body: Iterable[Stmt]) -> set[str]:
    """Return the names that a block binds."""
    return {n.targets[0] if isinstance(n, Assign) else n.target for s in body for n in walk(s) if isinstance(n, (Assign, For))}
