"""Variables of a role in C++: names, types and declarations.

A declaration stands in the innermost block that holds all uses.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from xdsl.ir import Block, Operation, SSAValue

from ..analyses.liveness import iterate_leaves
from ..analyses.variables import Variable, Variables
from ..ir import ops
from ..ir.ir_types import ScalarT, TileT
from ..ir.synchronisation import Synchronisation
from .operator_text import CTYPE
from .writer import identifier


@dataclass(frozen=True, eq=False)
class Storage:
    """A variable (count 0) or an array of `count` numbers a thread.

    A `packed` one holds pairs of halves, or words of 8-bit floats. A `constant` one has a single value and is declared with its definition.
    """

    name: str
    ctype: str
    count: int
    packed: bool = False
    constant: bool = False


def make_storage(t: ScalarT | TileT, threads: int, name: str, constant: bool = False) -> Storage:
    """Return a variable for values of a type."""
    if isinstance(t, ScalarT):
        return Storage(name, CTYPE[t.element], 0, constant=constant)
    return Storage(name, "uint32_t" if t.is_packed else CTYPE[t.element], t.registers(threads), t.is_packed, constant)


class Storages:
    """The storages of a role's values.

    `reserved_names` are in use already.
    """

    def __init__(self, role: Operation, threads: int, reserved_names: set[str]):
        self.variables, self.threads, self.names = Variables(role), threads, reserved_names
        self._by_variable: dict[Variable, Storage] = {}
        for variable in self.variables.of.values():
            if variable not in self._by_variable:
                self._by_variable[variable] = self._make_variable(variable)

    def __getitem__(self, value: SSAValue) -> Storage:
        return self._by_variable[self.variables.of[value]]

    def get(self, value: SSAValue) -> Storage | None:
        """Return the storage of a value, or None if the value is not stored."""
        variable = self.variables.of.get(value)
        return None if variable is None else self._by_variable[variable]

    def declare_elsewhere(self, value: SSAValue) -> Storage:
        """Return the storage of a value and declare it elsewhere than at its definition."""
        variable = self.variables.of[value]
        self._by_variable[variable] = replace(self._by_variable[variable], constant=False)
        return self._by_variable[variable]

    def _make_variable(self, variable: Variable) -> Storage:
        t, hints = variable.members[0].type, [m.name_hint for m in variable.members if m.name_hint]
        assert isinstance(t, (ScalarT, TileT))
        return make_storage(t, self.threads, self._make_name(max(hints, key=hints.count) if hints else "v"), variable.constant)

    def _make_name(self, stem: str) -> str:
        base = identifier(stem.replace(".", "_"))
        name, n = base, 1
        while name in self.names:
            n += 1
            name = f"{base}_{n}"
        self.names.add(name)
        return name


Path = list[tuple[Block, Operation]]  # from the role's block to an operation


def place_declarations(role: Operation, storages: Storages) -> dict[Operation, list[Storage]]:
    """Map each operation to the variables that are declared before it."""
    paths: dict[Storage, list[Path]] = {}

    def touch(value: SSAValue, path: Path) -> None:
        s = storages.get(value)
        if s is not None and not s.constant:
            paths.setdefault(s, []).append(path)

    def visit(block: Block, path: Path) -> None:
        for op in block.ops:
            location = [*path, (block, op)]
            for operand in op.operands:
                for leaf in iterate_leaves(operand):
                    touch(leaf, location)
            for result in (*op.results, *(op.inner if isinstance(op, ops.Loop) else ())):  # set before the loop
                touch(result, location)
            for region in op.regions:
                visit(region.block, location)

    visit(role.regions[0].block, [])
    before: dict[Operation, list[Storage]] = {}
    for storage, uses in paths.items():
        before.setdefault(_find_declaration_point(uses), []).append(storage)
    return before


def _find_declaration_point(paths: list[Path]) -> Operation:
    """Return the operation before which a variable is declared that is used at the ends of these paths."""
    depth = 0
    while all(len(p) > depth + 1 for p in paths) and len({p[depth][1] for p in paths}) == 1 and len({p[depth + 1][0] for p in paths}) == 1:
        depth += 1
    block = paths[0][depth][0]
    heads = {p[depth][1] for p in paths}
    point = next(op for op in block.ops if op in heads)
    while isinstance(point.prev_op, Synchronisation):
        point = point.prev_op
    return point
