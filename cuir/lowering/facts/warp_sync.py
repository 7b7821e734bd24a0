"""Where the lanes of a worker must meet because one touches memory that another one has touched.

A worker is sequential as a whole, its lanes are not: a read of what other lanes wrote, and a write of what other lanes wrote or read, come after a join.
Primitives at which all lanes meet anyway (asynchronous copies and stores, their waits, barriers) end the account, as do stores of scalars, which join by
themselves. Arrays are taken as wholes: which lane touches which element is asked only of stores to a tensor, of which a row always belongs to the same lanes
if it starts at a multiple of a worker's rows, and of tiles that are stored in chunks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from xdsl.ir import Block, Operation, SSAValue

from ...ops.traits import SUM
from ..ir import ops
from ..ir.inlining import inlined
from ..ir.types import TileT, is_scalar
from ..ir.walk import every
from .flow import sources
from .memory import Accessed, Array, Memory, accesses, evaluated
from .multiples import multiple
from .stores import own_rows, rows_of_warps

Dims = tuple[
    object, ...
]  # what tells lanes: the dims of a tensor along which a tile's rows and columns lie; an array and the shape of a tile in chunks


@dataclass(frozen=True)
class WarpSyncs:
    """Operations before which the lanes meet, stores between whose reads and writes they do, and operations before which it is enough that those of each warp meet."""

    before: frozenset[Operation] = frozenset()
    inside: frozenset[Operation] = frozenset()
    warps: frozenset[Operation] = frozenset()

    def __or__(self, other: WarpSyncs) -> WarpSyncs:
        return WarpSyncs(self.before | other.before, self.inside | other.inside, (self.warps | other.warps) - self.before - other.before)


def warp_syncs(role: ops.Role) -> WarpSyncs:
    """Where the lanes of a role meet, as it is printed: what has no place of its own is worked out where it is read."""
    return _WarpSyncs(role).block(role.body.block, _Touched())[1]


@dataclass(frozen=True)
class _Touched:
    """What lanes have written, and read, since they last met. stable: written, but each element by one and the same lane, that of the dims."""

    written: frozenset[Array] = frozenset()
    read: frozenset[Array] = frozenset()
    stable: frozenset[tuple[Array, Dims]] = field(default=frozenset())

    def __or__(self, other: _Touched) -> _Touched:
        return _Touched(self.written | other.written, self.read | other.read, self.stable | other.stable)

    def before(self, now: _Touched) -> frozenset[Array]:
        """The arrays for which lanes must meet between these accesses and later ones."""
        stable, new = {a for a, _ in self.stable}, {a for a, _ in now.stable}
        wrote = self.written | stable
        moved = {a for a, dims in self.stable for b, other in now.stable if a == b and dims != other}
        return frozenset(now.read & wrote | now.written & (wrote | self.read) | new & (self.written | self.read) | moved)

    def without(self, arrays: frozenset[Array]) -> _Touched:
        return _Touched(self.written - arrays, self.read - arrays, frozenset((a, dims) for a, dims in self.stable if a not in arrays))


class _WarpSyncs:
    def __init__(self, role: ops.Role):
        kernel = role.parent_op()
        assert isinstance(kernel, ops.Kernel)
        self.memory, self.rows = Memory(kernel), role.threads.data // 2
        self.own, self.by_warps = own_rows(role), rows_of_warps(role)
        self.ignored = self.own is not None and self._stored_alone(role, self.own)

    def _stored_alone(self, role: ops.Role, own: Array) -> bool:
        """Whether the role does nothing else with an array's memory than to store what its warps write there."""
        memory = self.memory.of(own.result)
        touching = [(op, a) for op in every(role) for a in accesses(op) if self.memory.of(a.place) is memory]
        return all(a.writes or op.entry.effects.group == "bulk_store" for op, a in touching if isinstance(op, ops.Perform))

    # ---- control flow
    def block(self, block: Block, state: _Touched) -> tuple[_Touched, WarpSyncs]:
        """What is touched behind a block that begins in a state, and the joins in it."""
        joins = WarpSyncs()
        for op in block.ops:
            state, inside = self._operation(op, state)
            joins |= inside
        return state, joins

    def _operation(self, op: Operation, state: _Touched) -> tuple[_Touched, WarpSyncs]:
        if isinstance(op, ops.At) or (len(op.results) == 1 and inlined(op.results[0])):
            return state, WarpSyncs()  # its readers work it out
        state, joins = self._own(op, state)
        if isinstance(op, ops.Branch):
            (then, a), (orelse, b) = self.block(op.then.block, state), self.block(op.orelse.block, state)
            if a.before | b.before | a.warps | b.warps and not isinstance(op, ops.If):  # inside, each warp goes its own way
                (then, a), (orelse, b) = self.block(op.then.block, _Touched()), self.block(op.orelse.block, _Touched())
                assert not a.before | b.before | a.warps | b.warps, "a branch of warps only reads"
                joins |= WarpSyncs(frozenset({op}))
            return then | orelse, joins | a | b
        if isinstance(op, ops.Loop):
            start = state
            while True:  # what the end of the body leaves is there at its beginning, too
                after, inside = self.block(op.body.block, start)
                if start | after == start:
                    return state | after, joins | inside
                start |= after
        return state, joins

    # ---- one operation
    def _own(self, op: Operation, state: _Touched) -> tuple[_Touched, WarpSyncs]:
        if isinstance(op, ops.Perform) and self._meets(op):
            return _Touched(), WarpSyncs()
        now = self._touched(op)
        if isinstance(op, ops.Perform) and is_scalar_store(op):
            return (_Touched() if any(isinstance(a, ops.Shared) for a in now.written) else now), WarpSyncs()
        here = frozenset({op})
        inside = here if now.read & (now.written | {a for a, _ in now.stable}) else frozenset()
        if between := state.before(now):
            if between <= self.by_warps:
                return state.without(self.by_warps) | now, WarpSyncs(frozenset(), inside, here)
            return now, WarpSyncs(here, inside)
        return state | now, WarpSyncs(frozenset(), inside)

    def _meets(self, op: ops.Perform) -> bool:
        if self.own is not None and "bulk_store" in (op.entry.effects.group, op.entry.effects.drains):
            return False  # each warp stores for itself
        return op.kind.joins_worker

    def _touched(self, op: Operation) -> _Touched:
        written, read, stable = set(), set(), set()
        for part in evaluated(op):
            for a in accesses(part):
                if a.access.proxy == "async" and isinstance(a.array, ops.Tensor):
                    continue  # by the copy engine, not by lanes
                array = self.memory.of(a.place)
                if self.ignored and self.own is not None and array is self.memory.of(self.own.result):
                    continue
                assert isinstance(part, ops.Perform)
                if not a.writes:
                    read.add(array)
                elif (dims := self._steady_lanes(part, a)) is not None:
                    stable.add((array, dims))
                else:
                    written.add(array)
        return _Touched(frozenset(written), frozenset(read), frozenset(stable))

    # ---- stores that keep elements and lanes together
    def _steady_lanes(self, op: ops.Perform, a: Accessed) -> Dims | None:
        """The dims of a tensor that a store's rows and columns lie along, if every store along them gives an element to the same lane: rows and columns
        start at multiples of what the lanes hold without beginning anew. None of other stores."""
        tile, place = op.args.get("tile"), a.place.owner
        if tile is None or not isinstance(tile.type, TileT) or not isinstance(place, ops.At):
            return None
        if isinstance(a.array, ops.Shared):
            return _steady_chunks(tile.type, place, a.array)
        (rows, cols), dims = tile.type.shape, dict[str, int]()
        if rows == 1:
            return None
        for dim, (start, size) in enumerate(place.parts):
            along = None
            if size == -1 and start is not None and not is_scalar(start):
                along = self._from_multiple(start)
            elif size not in (-1, 1):
                along = "column" if dim == len(place.parts) - 1 else "row"
                if start is not None and not multiple(start, self.rows):
                    return None
            else:
                continue
            if along is None or along in dims:
                return None
            dims[along] = dim
        return dims.get("row"), dims.get("column") if cols > 1 else None

    def _from_multiple(self, tile: SSAValue) -> str | None:
        """ "row" or "column" if an index tile is the worker's rows or columns from a multiple on."""
        kinds, left, seen = set[str | None](), [tile], set[SSAValue]()
        while left:
            value = left.pop()
            if value in seen:
                continue
            seen.add(value)
            op = value.owner
            if (given := sources(value)) is not None:
                left += given
            elif isinstance(op, ops.Apply) and op.kind.linear == SUM:
                a, b = op.arguments[::-1] if is_scalar(op.arguments[0]) else op.arguments
                kinds |= set() if is_scalar(b) and multiple(b, self.rows) else {None}
                left.append(a)
            else:
                kinds.add(ops.kind_of(value).index_of)
        return kinds.pop() if len(kinds) == 1 else None


def _steady_chunks(t: TileT, place: ops.At, array: ops.Shared) -> Dims | None:
    """Of a tile in chunks, which has all rows of its array: what says where in it a lane's chunks are, if columns start at multiples of its own (a power of two, else nothing is known)."""
    (start, _), cols = place.parts[-1], t.shape[1]
    steady = start is None or (cols & (cols - 1) == 0 and multiple(start, cols))
    return (array, *t.shape) if t.layout.data == "chunks" and steady else None


def is_scalar_store(op: ops.Perform) -> bool:
    """Whether an operation stores a scalar, which one lane does between joins of its own."""
    return any(a.writes for a in accesses(op)) and "tile" in op.args and is_scalar(op.args["tile"])


__all__ = ["WarpSyncs", "warp_syncs"]
