"""Choose where the products slope * column of lines are computed: early, in registers, or in the sum.

In an affine tile rows[r] + slope * column, the products slope * column are the same for all rows, and stay in registers
if the role has enough free registers.

Otherwise they are computed where they are used. They are also the same for all turns of a loop with the same slope.
They are materialised if a role has `ROOM` registers beside its live full tiles. Elsewhere the slope is hidden from nvcc
until the tile is there, since it would compute all products beforehand, and spill. Exact.

`inline_elementwise` must run before it, as it reads which values are inlined, and again after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from xdsl.ir import Block, Operation, SSAValue

from ...syntax.types import F32
from ..analyses.liveness import Liveness
from ..analyses.value_flow import walk_expression
from ..ir import ops
from ..ir.ir_types import TileT, dtype_of
from ..ir.ir_walk import every, is_inlined
from ..ir.machine_ops import note
from ..ir.machine_tiles import Line, after, line, pin
from ..ir.ops import number
from ..layouts.tile_layouts import HALVES
from .rewriting import before, insert

ROOM = 40  # registers for all but the tiles of a step; with fewer the compiler spills


@dataclass
class _Products:
    """slope * column for each column of a thread, which many operations read.

    `available`: the last definition among the operands of the slope.
    """

    slope: SSAValue
    type: TileT
    available: tuple[Block, Operation | None]
    readers: list[tuple[Operation, int]] = field(default_factory=list)
    in_loop: bool = False  # hoisted out of a loop


def run(kernel: ops.Kernel) -> None:
    """Place the products of each role."""
    for role in kernel.roles:
        _Role(role).run()


class _Role:
    """A role with its liveness and the order of its operations."""

    def __init__(self, role: ops.Role):
        self.role, self.liveness = role, Liveness(role.body.block)
        self.order: dict[Operation, int] = {op: i for i, op in enumerate(every(role))}
        self.numbers = _Numbers()

    def run(self) -> None:
        """Materialise the products that fit into registers, and delay the others."""
        lines = [op for op in every(self.role) if isinstance(op, Line) and dtype_of(op.result) == F32]
        products: dict[object, _Products] = {}
        for op in lines:
            if op.rows is None and op.result.type.layout.is_per_column:
                available = self._find_available(op.slope)
                entry = products.setdefault(
                    (self.numbers.of(op.slope), available, op.result.type), _Products(op.slope, op.result.type, available)
                )
                for use in op.result.uses:
                    entry.readers.append((use.operation, use.index))
                    entry.in_loop |= any(isinstance(a, ops.Loop) for a in _iterate_parents_within(use.operation, available[0]))
        used = 0
        for entry in products.values():
            count = entry.type.registers(self.role.threads.data)
            if entry.in_loop and all(self._count_free_registers(op) - used - count >= ROOM for op, _ in entry.readers):
                used += count
                self._materialise(entry)
        for op in lines:
            for use in list(op.result.uses):
                self._delay(op, use.operation, use.index)
            if not any(True for _ in op.result.uses):
                op.detach()
                op.erase()

    # ---- products in registers
    def _count_free_registers(self, op: Operation) -> int:
        """Return the registers left beside the full tiles live after an operation, and its own exponentials.

        These are halves, and take the place of live halves: those that a product in flight still reads were made the
        turn before.
        """
        results = {r for r in op.results if isinstance(r.type, TileT)}
        alive = {v for v in self.liveness.after[op] | results if isinstance(v.type, TileT) and v.type.layout.is_accumulator}
        alive = {v for v in alive if number(v) is None}  # a tile of one number is rematerialised
        half_registers = sum(self._count_registers(v) for v in alive if dtype_of(v) in HALVES)
        full_registers = sum(self._count_registers(v) for v in alive if dtype_of(v) not in HALVES)
        return self.role.registers.data - full_registers - max(half_registers, sum(map(self._count_registers, results)) // 2)

    def _count_registers(self, value: SSAValue) -> int:
        assert isinstance(value.type, TileT)
        return value.type.registers(self.role.threads.data)

    def _find_available(self, slope: SSAValue) -> tuple[Block, Operation | None]:
        """Return block and operation after which all operands of a slope are defined; None: the block's start."""
        places = [(self.role.body.block, None), *(_find_place(leaf) for leaf in _collect_leaves(slope) if self._is_inside(leaf))]
        return max(places, key=self._compute_rank)

    def _is_inside(self, value: SSAValue) -> bool:
        block, _ = _find_place(value)
        return block is self.role.body.block or any(a is self.role for a in _iterate_parents(block))

    def _compute_rank(self, place: tuple[Block, Operation | None]) -> int:
        """Return a key by which later places are greater, of places that all come before one operation."""
        block, op = place
        parent = block.parent_op()
        return self.order[op] if op is not None else self.order.get(parent, -1) if parent is not None else -1

    def _materialise(self, entry: _Products) -> None:
        block, op = entry.available
        at = block.first_op if op is None else op.next_op
        assert at is not None
        slope = _copy_scalar(entry.slope, at, {})
        products = insert(at, pin(insert(at, line(slope, None, entry.type))))
        products.name_hint = "products"
        before(entry.readers[0][0], note("slope times column stays in registers"))
        for reader, i in entry.readers:
            reader.operands[i] = products

    # ---- products that are not materialised
    def _delay(self, op: Line, reader: Operation, i: int) -> None:
        """Rebuild the line before its reader, its slope hidden until another operand of that is defined."""
        if not is_inlined(op.result) or isinstance(reader, ops.Yield):
            return
        anchor = next((leaf for k, o in enumerate(reader.operands) if k != i for leaf in _iterate_tiles(o)), None)
        if anchor is None:
            return
        slope = insert(reader, after(op.slope, anchor))
        reader.operands[i] = insert(reader, line(slope, op.rows, op.result.type))


def _iterate_tiles(value: SSAValue) -> Iterator[SSAValue]:
    """Yield the full f32 tiles with registers of their own that reading a value reads."""
    t = value.type
    if not isinstance(t, TileT):
        return
    if not is_inlined(value):
        if t.layout.is_accumulator and t.element == F32:
            yield value
    elif isinstance(value.owner, Operation):
        for operand in value.owner.operands:
            yield from _iterate_tiles(operand)


# ---- scalars that may be computed earlier
def _is_speculatable(op: object) -> bool:
    """Return whether a scalar operation is speculatable: it has no effect and divides no integers."""
    if isinstance(op, ops.Constant):
        return True
    return isinstance(op, ops.Apply) and op.entry.evaluate is not None and not (op.entry.evaluate.divides and dtype_of(op.result) != F32)


def _collect_leaves(value: SSAValue) -> list[SSAValue]:
    """Return the values from which movable operations compute a scalar."""
    return [v for v in walk_expression(value, lambda v: not _is_speculatable(v.owner)) if not _is_speculatable(v.owner)]


class _Numbers:
    """Value numbers of scalars: equal for those computed alike from the same values."""

    def __init__(self) -> None:
        self._keys: dict[object, int] = {}
        self._numbers: dict[SSAValue, int] = {}

    def of(self, value: SSAValue) -> int:
        if value not in self._numbers:
            self._numbers[value] = self._keys.setdefault(self._make_key(value), len(self._keys))
        return self._numbers[value]

    def _make_key(self, value: SSAValue) -> object:
        op = value.owner
        if isinstance(op, ops.Constant):
            return op.text.data, value.type
        if isinstance(op, ops.Apply) and _is_speculatable(op):
            return op.op, value.type, tuple(map(self.of, op.arguments))
        return value


def _copy_scalar(value: SSAValue, at: Operation, copies: dict[SSAValue, SSAValue]) -> SSAValue:
    """Compute a scalar anew before an operation."""
    op = value.owner
    if not _is_speculatable(op):
        return value
    if value not in copies:
        assert isinstance(op, Operation)
        copies[value] = insert(at, op.clone({o: _copy_scalar(o, at, copies) for o in op.operands}))
    return copies[value]


# ---- places
def _find_place(value: SSAValue) -> tuple[Block, Operation | None]:
    owner = value.owner
    if isinstance(owner, Block):
        return owner, None
    assert owner.parent is not None
    return owner.parent, owner


def _iterate_parents(block: Block) -> Iterator[Operation]:
    op = block.parent_op()
    while op is not None:
        yield op
        op = op.parent_op()


def _iterate_parents_within(op: Operation, block: Block) -> Iterator[Operation]:
    """Yield the operations around one that lie inside a block."""
    while op.parent is not block:
        parent = op.parent_op()
        if parent is None:
            return
        yield parent
        op = parent
