"""Where each value of a role lives: values that are one variable share a storage, others are copied where paths meet.

A loop's value is what it was given at first and what each turn yields, a branch's result what its regions yield, an accumulator what a product adds to. Two of
these are one variable if no value is still needed, or used by a product in flight, when the other one is made; a tile behind a wait is the one before it.
Products take over their accumulators' registers: those come first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from ..facts.in_flight import Ages, InFlight
from ..ir import machine, ops
from ..ir.types import ScalarT, TileT, dtype_of
from ..passes.fusion import inlined
from ..passes.rewriting import last
from .dtypes import CTYPE, HALVES
from .layouts import Fragment
from .writer import identifier

K = TypeVar("K")


@dataclass
class Storage:
    """A variable (count 0) or an array of `count` numbers a thread. `packed`: pairs of halves."""

    name: str
    ctype: str
    count: int
    packed: bool = False
    members: list[SSAValue] = field(default_factory=list)
    constant: bool = False  # one value, declared where it is made
    block: Block | None = None  # where it is declared, else: before operation `first`
    first: Operation | None = None


def fragment(t: TileT, threads: int) -> Fragment:
    return Fragment(*t.shape, threads)


def count_of(t: TileT, threads: int) -> int:
    """Numbers that a thread holds of a tile."""
    frag = fragment(t, threads)
    return {"one": 1, "rows": frag.row_values, "partial": frag.row_values, "columns": 2 * frag.groups, "full": frag.count}[t.layout.data]


def stored(value: SSAValue) -> bool:
    return isinstance(value.type, (ScalarT, TileT)) and not inlined(value)


def leaves(value: SSAValue) -> Iterator[SSAValue]:
    """The stored values that reading a value reads."""
    if stored(value):
        yield value
    elif isinstance(value.owner, Operation) and not isinstance(value.owner, ops.Declaration):
        for operand in value.owner.operands:
            yield from leaves(operand)


class Liveness:
    """Which stored values of a role are needed behind each operation."""

    def __init__(self, body: Block):
        self.after: dict[Operation, frozenset[SSAValue]] = {}
        self.at_start: dict[Block, frozenset[SSAValue]] = {}
        self._block(body, frozenset())

    def _block(self, block: Block, live: frozenset[SSAValue]) -> frozenset[SSAValue]:
        for op in reversed(list(block.ops)):
            self.after[op] = live
            live = self._through(op, live)
        self.at_start[block] = live
        return live

    def _through(self, op: Operation, live: frozenset[SSAValue]) -> frozenset[SSAValue]:
        if isinstance(op, ops.Yield):
            return live | _reads(op.values)
        if isinstance(op, machine.HandOut):
            return self._again(op.body.block, live)
        rest = live - frozenset(op.results)
        if isinstance(op, ops.Branch):
            return self._block(op.then.block, rest) | self._block(op.orelse.block, rest) | _reads([op.decision])
        if isinstance(op, (ops.For, ops.ForUnits)):
            end = _reads([op.stop] if isinstance(op, ops.For) else [])  # which is asked at each turn
            return self._again(op.body.block, rest | end) | _reads(op.operands)
        if len(op.results) == 1 and inlined(op.results[0]):
            return live
        return rest | _reads(op.operands) | _reads(_held(op))

    def _again(self, block: Block, live: frozenset[SSAValue]) -> frozenset[SSAValue]:
        """Of a block that is run again and again: what it needs from outside is needed until its last turn ends. `live`: what is needed behind it."""
        while True:
            start = self._block(block, live) - frozenset(block.args)
            if start <= live:
                return live
            live = live | start


def _reads(values: Iterable[SSAValue]) -> frozenset[SSAValue]:
    return frozenset(leaf for v in values for leaf in leaves(v))


def _held(op: Operation) -> list[SSAValue]:
    """Tiles that products read while they are in flight, of the products that a wait finishes."""
    if not (isinstance(op, ops.Perform) and op.entry.effects.drains and op.results):
        return []
    found = []
    for value in op.arguments:
        made: object = value.owner
        while isinstance(made, ops.Perform) and made.entry.effects.group:
            found += [a for name, a in made.args.items() if name != "c" and isinstance(a.type, TileT)]
            c = made.args.get("c")
            made = c.owner if c is not None else None
    return found


class Allocation:
    """The storages of a role. `taken`: names that are given already."""

    def __init__(self, body: Block, threads: int, taken: set[str]):
        self.threads = threads
        self.liveness = Liveness(body)
        self.flight, self.read = InFlight(body), InFlight(body, operands=True)
        self.names = taken
        self.parent: dict[SSAValue, SSAValue] = {}
        self.members: dict[SSAValue, list[SSAValue]] = {}
        self.defined: dict[SSAValue, frozenset[SSAValue]] = {}  # what is needed when a value is made
        for value, live in self._definitions(body):
            self.parent[value] = value
            self.members[value] = [value]
            self.defined[value] = live
        for pairs in (self._taken_over, self._loops, self._branches, self._starts):
            for a, b in pairs(body):
                self._join(a, b)
        self.storage: dict[SSAValue, Storage] = {}
        for value in self.parent:
            root = self._root(value)
            if root not in self.storage:
                self.storage[root] = self._make(self.members[root])
            self.storage[value] = self.storage[root]

    # ---- what is made where
    def _definitions(self, block: Block) -> Iterator[tuple[SSAValue, frozenset[SSAValue]]]:
        for argument in block.args:
            if stored(argument):
                yield argument, self._kept(self.liveness.at_start, self.flight.at_start, self.read.at_start, block) - {argument}
        for op in block.ops:
            for region in op.regions:
                yield from self._definitions(region.block)
            for result in op.results:
                if stored(result):
                    yield result, self._kept(self.liveness.after, self.flight.after, self.read.after, op) - same(result)

    def _kept(
        self, live: Mapping[K, frozenset[SSAValue]], written: Mapping[K, Ages], read: Mapping[K, Ages], where: K
    ) -> frozenset[SSAValue]:
        return live[where] | written[where].keys() | read[where].keys()

    # ---- what should be one variable, most urgent first
    def _every(self, block: Block) -> Iterator[Operation]:
        for op in block.ops:
            for region in op.regions:
                yield from self._every(region.block)
            yield op

    def _taken_over(self, block: Block) -> Iterator[tuple[SSAValue, SSAValue]]:
        for op in self._every(block):
            yield from tied(op)

    def _loops(self, block: Block) -> Iterator[tuple[SSAValue, SSAValue]]:
        for op in self._every(block):
            if isinstance(op, (ops.For, ops.ForUnits)):
                arguments = op.body.block.args[len(op.body.block.args) - len(op.carried) :]
                yield from zip(arguments, op.results, strict=True)
                yield from zip(arguments, last(op.body).values, strict=True)

    def _branches(self, block: Block) -> Iterator[tuple[SSAValue, SSAValue]]:
        for op in self._every(block):
            if isinstance(op, ops.Branch):
                for region in (op.then, op.orelse):
                    yield from zip(op.results, last(region).values, strict=True)

    def _starts(self, block: Block) -> Iterator[tuple[SSAValue, SSAValue]]:
        for op in self._every(block):
            if isinstance(op, (ops.For, ops.ForUnits)):
                yield from zip(op.results, op.carried, strict=True)

    # ---- union
    def _root(self, value: SSAValue) -> SSAValue:
        while self.parent[value] is not value:
            value = self.parent[value]
        return value

    def _join(self, a: SSAValue, b: SSAValue) -> None:
        if a not in self.parent or b not in self.parent or _head(a) or _head(b):
            return
        x, y = self._root(a), self._root(b)
        if x is y or a.type != b.type or self._interfere(self.members[x], self.members[y]):
            return
        self.parent[y] = x
        self.members[x] += self.members.pop(y)

    def _interfere(self, xs: list[SSAValue], ys: list[SSAValue]) -> bool:
        return any(y in self.defined[x] or x in self.defined[y] or _together(x, y) for x in xs for y in ys)

    # ---- storages
    def _make(self, members: list[SSAValue]) -> Storage:
        t, dtype = members[0].type, dtype_of(members[0])
        hints = [m.name_hint for m in members if m.name_hint]
        stem = max(hints, key=hints.count) if hints else "v"
        name = self._name(stem)
        single = len(members) == 1 and _declared_where_made(members[0])
        if isinstance(t, ScalarT):
            return Storage(name, CTYPE[dtype], 0, members=members, constant=single)
        assert isinstance(t, TileT)
        count, packed = count_of(t, self.threads), dtype in HALVES and t.layout.data == "full"
        return Storage(name, "uint32_t" if packed else CTYPE[dtype], count // 2 if packed else count, packed, members, single)

    def _name(self, stem: str) -> str:
        base = identifier(stem.replace(".", "_"))
        name, n = base, 1
        while name in self.names:
            n += 1
            name = f"{base}_{n}"
        self.names.add(name)
        return name

    def of(self, value: SSAValue) -> Storage:
        return self.storage[value]


def _head(value: SSAValue) -> bool:
    """Whether a value stands in the head of a role or a loop: the number of a worker or a turn, a word of a unit. What a loop carries is set before it."""
    if not isinstance(value, BlockArgument):
        return False
    loop = value.block.parent_op()
    return not isinstance(loop, (ops.For, ops.ForUnits)) or value.index < len(value.block.args) - len(loop.carried)


def _declared_where_made(value: SSAValue) -> bool:
    return _head(value) or (isinstance(value.owner, Operation) and not value.owner.regions)


def tied(op: Operation) -> Iterator[tuple[SSAValue, SSAValue]]:
    """(result, operand) that an operation holds in the same registers: an accumulator, tiles that pass through a wait."""
    if isinstance(op, ops.Perform) and op.results:
        if op.entry.effects.drains:
            yield from zip(op.results, op.arguments, strict=True)
        elif op.entry.effects.group and "c" in op.args:
            yield op.results[0], op.args["c"]


def same(value: SSAValue) -> set[SSAValue]:
    """A value, and the tiles before the waits that it passed through: making it writes nothing over them."""
    found = {value}
    while isinstance(op := value.owner, ops.Perform) and op.entry.effects.drains:
        value = op.arguments[value.index]  # type: ignore[attr-defined]
        found.add(value)
    return found


def _together(x: SSAValue, y: SSAValue) -> bool:
    """Whether two values are made at the same moment."""
    if isinstance(x, BlockArgument) and isinstance(y, BlockArgument):
        return x.block is y.block
    return x.owner is y.owner and isinstance(x.owner, Operation)
