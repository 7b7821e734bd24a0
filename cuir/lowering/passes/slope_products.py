"""Where the products slope * column of lines are computed: once, and kept in registers, where a role has room for them; else late, by the operation that adds them.

The products of a line without a number a row are the same for all rows, and for all turns of a loop in which the slope does not change. A role has room if, of
its registers, `ROOM` are left beside the full tiles that are alive. Elsewhere the compiler must not know the slope before the tile is there to which the line is
added: it would compute all products beforehand, and run out of registers. No result changes.

It asks which values have a place of their own: `fusion` runs at its start, and must run again behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from xdsl.ir import Block, Operation, SSAValue

from ...syntax.types import F32
from ..facts.flow import made_of
from ..facts.liveness import Liveness
from ..ir import ops
from ..ir.inlining import inlined
from ..ir.layouts import HALVES, registers
from ..ir.machine import note
from ..ir.machine_tiles import Line, after, line, pin
from ..ir.types import TileT, dtype_of
from ..ir.walk import every
from . import fusion
from .rewriting import before, insert
from .simplify import number

ROOM = 40  # registers for all but the tiles of a step; with fewer the compiler spills


@dataclass
class _Products:
    """slope * column for each column of a thread, which many operations read. `known`: what comes last of all that the slope is made of."""

    slope: SSAValue
    type: TileT
    known: tuple[Block, Operation | None]
    readers: list[tuple[Operation, int]] = field(default_factory=list)
    in_loop: bool = False  # a loop computes nothing anew


def run(kernel: ops.Kernel) -> None:
    fusion.run(kernel)
    for role in kernel.roles:
        _Role(role).run()


class _Role:
    def __init__(self, role: ops.Role):
        self.role, self.liveness = role, Liveness(role.body.block)
        self.order: dict[Operation, int] = {op: i for i, op in enumerate(every(role))}
        self.numbers = _Numbers()

    def run(self) -> None:
        lines = [op for op in every(self.role) if isinstance(op, Line) and dtype_of(op.result) == F32]
        products: dict[object, _Products] = {}
        for op in lines:
            if op.rows is None and op.result.type.layout.data == "columns":
                known = self._known(op.slope)
                entry = products.setdefault((self.numbers.of(op.slope), known, op.result.type), _Products(op.slope, op.result.type, known))
                for use in op.result.uses:
                    entry.readers.append((use.operation, use.index))
                    entry.in_loop |= any(isinstance(a, ops.Loop) for a in _between(use.operation, known[0]))
        taken = 0
        for entry in products.values():
            count = registers(entry.type, self.role.threads.data)
            if entry.in_loop and all(self._room(op) - taken - count >= ROOM for op, _ in entry.readers):
                taken += count
                self._keep(entry)
        for op in lines:
            for use in list(op.result.uses):
                self._late(op, use.operation, use.index)
            if not any(True for _ in op.result.uses):
                op.detach()
                op.erase()

    # ---- products in registers
    def _room(self, op: Operation) -> int:
        """Registers left beside the full tiles alive behind an operation, its own among them, and the exponentials of its own.

        Those are halves, and take the place of halves alive: what a product in flight still reads was made the turn before.
        """
        made = {r for r in op.results if isinstance(r.type, TileT)}
        alive = {v for v in self.liveness.after[op] | made if isinstance(v.type, TileT) and v.type.layout.data == "full"}
        alive = {v for v in alive if number(v) is None}  # a tile of one number is made where it is needed
        halves = sum(self._registers(v) for v in alive if dtype_of(v) in HALVES)
        whole = sum(self._registers(v) for v in alive if dtype_of(v) not in HALVES)
        return self.role.registers.data - whole - max(halves, sum(map(self._registers, made)) // 2)

    def _registers(self, value: SSAValue) -> int:
        assert isinstance(value.type, TileT)
        return registers(value.type, self.role.threads.data)

    def _known(self, slope: SSAValue) -> tuple[Block, Operation | None]:
        """Block and operation behind which all that a slope is made of is there; None: the start of the block."""
        places = [(self.role.body.block, None), *(_place(leaf) for leaf in _leaves(slope) if self._inside(leaf))]
        return max(places, key=self._rank)

    def _inside(self, value: SSAValue) -> bool:
        block, _ = _place(value)
        return block is self.role.body.block or any(a is self.role for a in _around(block))

    def _rank(self, place: tuple[Block, Operation | None]) -> int:
        """What comes later is greater: of places that all come before one operation."""
        block, op = place
        parent = block.parent_op()
        return self.order[op] if op is not None else self.order.get(parent, -1) if parent is not None else -1

    def _keep(self, entry: _Products) -> None:
        block, op = entry.known
        at = block.first_op if op is None else op.next_op
        assert at is not None
        slope = _copied(entry.slope, at, {})
        kept = insert(at, pin(insert(at, line(slope, None, entry.type))))
        kept.name_hint = "products"
        before(entry.readers[0][0], note("slope times column stays in registers"))
        for reader, i in entry.readers:
            reader.operands[i] = kept

    # ---- products that are not kept
    def _late(self, op: Line, reader: Operation, i: int) -> None:
        """The line anew before what reads it, its slope not known before a tile that is read there, too."""
        if not inlined(op.result) or isinstance(reader, ops.Yield):
            return
        anchor = next((leaf for k, o in enumerate(reader.operands) if k != i for leaf in _tiles(o)), None)
        if anchor is None:
            return
        slope = insert(reader, after(op.slope, anchor))
        reader.operands[i] = insert(reader, line(slope, op.rows, op.result.type))


def _tiles(value: SSAValue) -> Iterator[SSAValue]:
    """The full f32 tiles with a place of their own that reading a value reads."""
    t = value.type
    if not isinstance(t, TileT):
        return
    if not inlined(value):
        if t.layout.data == "full" and t.element == F32:
            yield value
    elif isinstance(value.owner, Operation):
        for operand in value.owner.operands:
            yield from _tiles(operand)


# ---- scalars that may be computed earlier
def _movable(op: object) -> bool:
    """Whether an operation on scalars may run where the program does not run it: it has no effect and divides no integers."""
    if isinstance(op, ops.Constant):
        return True
    return isinstance(op, ops.Apply) and op.entry.evaluate is not None and not (op.entry.evaluate.divides and dtype_of(op.result) != F32)


def _leaves(value: SSAValue) -> list[SSAValue]:
    """What a scalar is made of by operations that may be moved."""
    return [v for v in made_of(value, lambda v: not _movable(v.owner)) if not _movable(v.owner)]


class _Numbers:
    """Numbers of scalars: those that are computed alike from the same values have the same."""

    def __init__(self) -> None:
        self._keys: dict[object, int] = {}
        self._numbers: dict[SSAValue, int] = {}

    def of(self, value: SSAValue) -> int:
        if value not in self._numbers:
            self._numbers[value] = self._keys.setdefault(self._key(value), len(self._keys))
        return self._numbers[value]

    def _key(self, value: SSAValue) -> object:
        op = value.owner
        if isinstance(op, ops.Constant):
            return op.text.data, value.type
        if isinstance(op, ops.Apply) and _movable(op):
            return op.op, value.type, tuple(map(self.of, op.arguments))
        return value


def _copied(value: SSAValue, at: Operation, done: dict[SSAValue, SSAValue]) -> SSAValue:
    """A scalar computed anew before an operation."""
    op = value.owner
    if not _movable(op):
        return value
    if value not in done:
        assert isinstance(op, Operation)
        done[value] = insert(at, op.clone({o: _copied(o, at, done) for o in op.operands}))
    return done[value]


# ---- places
def _place(value: SSAValue) -> tuple[Block, Operation | None]:
    owner = value.owner
    if isinstance(owner, Block):
        return owner, None
    assert owner.parent is not None
    return owner.parent, owner


def _around(block: Block) -> Iterator[Operation]:
    op = block.parent_op()
    while op is not None:
        yield op
        op = op.parent_op()


def _between(op: Operation, block: Block) -> Iterator[Operation]:
    """The operations around one that lie inside a block."""
    while op.parent is not block:
        parent = op.parent_op()
        if parent is None:
            return
        yield parent
        op = parent
