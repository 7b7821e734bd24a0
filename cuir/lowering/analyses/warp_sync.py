"""Synchronisation of a worker's lanes, needed where one accesses memory that another has accessed.

A worker is sequential as a whole, its lanes are not: a read of memory that other lanes wrote, and a write of memory
that other lanes wrote or read, come after a join. Primitives at which all lanes meet anyway (copies and stores of the
engine, their waits, barriers) reset the state, as do stores of scalars, around which lanes always join. A copy by threads
overwrites memory like a store, and behind the wait that ends it, each lane has written what it copied.

Arrays are taken as wholes. Elements are distinguished only for stores to a tensor, of which a row always belongs to the
same lanes if it starts at a multiple of a worker's rows, and for tiles that are stored in chunks.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_

from xdsl.ir import Operation, SSAValue

from ...ops.base import PRODUCTS, Effects
from ...ops.traits import SUM
from ..ir import ops
from ..ir.exchanges import TakeColumns
from ..ir.fixed_point import Forward
from ..ir.ir_types import TileT, is_scalar
from ..ir.ir_walk import every, is_inlined
from ..layouts.tile_layouts import CHUNKS
from .alignment import is_multiple
from .memory import Accessed, Array, Memory, iterate_accesses, iterate_evaluated
from .stores import arrays_by_warp, find_warp_rows
from .value_flow import find_sources

COPIES = "cp_async"  # group of copies by threads
# key of the assignment of lanes: dims of a tensor for a tile's rows and columns, or array and shape of a tile in chunks
Dims = tuple[object, ...]


@dataclass(frozen=True)
class WarpSyncs:
    """Points at which lanes meet.

    Attributes:
        before: Operations before which the lanes of the worker meet.
        inside: Stores between whose reads and writes they meet.
        warps: Operations before which it is enough that the lanes of each warp meet.
        elided: Stores before which nobody needs to meet, since the same lanes wrote the same elements.
        untouched: Copies by threads before which nobody needs to meet, since no lane has accessed what they overwrite.
    """

    before: frozenset[Operation] = frozenset()
    inside: frozenset[Operation] = frozenset()
    warps: frozenset[Operation] = frozenset()
    elided: frozenset[Operation] = frozenset()
    untouched: frozenset[Operation] = frozenset()

    def __or__(self, other: WarpSyncs) -> WarpSyncs:
        before, warps = self.before | other.before, self.warps | other.warps
        met, inside = before | warps, self.inside | other.inside
        return WarpSyncs(before, inside, warps - before, (self.elided | other.elided) - met, (self.untouched | other.untouched) - met)


NOWHERE = WarpSyncs()


def find_warp_syncs(role: ops.Role, memory: Memory | None = None) -> WarpSyncs:
    """Return the points at which the lanes of a role meet, as it is printed with inlined values.

    `memory`: that of the role's kernel, if it is at hand.
    """
    kernel = role.parent_op()
    assert isinstance(kernel, ops.Kernel)
    flow = _WarpSyncs(role, memory or Memory(kernel))
    flow.run(role.body.block, _Touched())
    return reduce(or_, (syncs for syncs in flow.joins.values() if syncs is not NOWHERE), NOWHERE)


@dataclass(frozen=True)
class _Touched:
    """Memory that lanes have written and read since they last met.

    stable: written, but each element by one and the same lane, which the dims determine. in_flight: read by products
    that no wait has ended, which other warps may still read behind their own wait: no join ends that. copied: written by
    copies of threads that no wait has ended.
    """

    written: frozenset[Array] = frozenset()
    read: frozenset[Array] = frozenset()
    stable: frozenset[tuple[Array, Dims]] = field(default=frozenset())
    in_flight: frozenset[Array] = frozenset()
    copied: frozenset[Array] = frozenset()

    def __or__(self, other: _Touched) -> _Touched:
        in_flight, copied = self.in_flight | other.in_flight, self.copied | other.copied
        return _Touched(self.written | other.written, self.read | other.read, self.stable | other.stable, in_flight, copied)

    def before(self, now: _Touched) -> frozenset[Array]:
        """Return the arrays that need a warp barrier between these accesses and the later ones `now`."""
        stable, new = {a for a, _ in self.stable}, {a for a, _ in now.stable}
        wrote = self.written | stable
        reassigned = {a for a, dims in self.stable for b, other_dims in now.stable if a == b and dims != other_dims}
        return frozenset(now.read & wrote | now.written & (wrote | self.read) | new & (self.written | self.read) | reassigned)

    def without(self, arrays: frozenset[Array]) -> _Touched:
        return _Touched(self.written - arrays, self.read - arrays, frozenset((a, dims) for a, dims in self.stable if a not in arrays))


_UNTOUCHED = _Touched()


class _WarpSyncs(Forward[_Touched]):
    """The accesses since lanes last met, at each point of a role.

    `joins`: the points at which they meet, by operation.
    """

    def __init__(self, role: ops.Role, memory: Memory):
        super().__init__()
        self.joins: dict[Operation, WarpSyncs] = {}
        self.memory, self.rows = memory, role.threads.data // 2
        self.warp_rows, self.by_warps = find_warp_rows(role, memory), arrays_by_warp(role, memory)
        self._touched: dict[Operation, _Touched] = {}  # loops are visited more than once
        self.ignored = self.warp_rows is not None and self._is_only_stored(role, self.warp_rows)

    def _is_only_stored(self, role: ops.Role, rows: Array) -> bool:
        """Return whether the role only writes an array's memory and stores it by bulk stores."""
        memory = self.memory.of(rows.result)
        memory_accesses = [(op, a) for op in every(role) for a in iterate_accesses(op) if self.memory.of(a.place) is memory]
        return all(a.writes or op.entry.effects.group == "bulk_store" for op, a in memory_accesses if isinstance(op, ops.Perform))

    # ---- control flow
    def join(self, a: _Touched, b: _Touched) -> _Touched:
        """Return the accesses of two paths."""
        return a | b

    def visit(self, op: Operation, state: _Touched) -> _Touched:
        """Return the accesses after an operation; lanes meet before a branch of warps, which diverge inside."""
        after = super().visit(op, state)
        if not isinstance(op, ops.Branch) or isinstance(op, ops.If) or not self._meet_inside(op):
            return after
        after = self.run(op.then.block, _Touched()) | self.run(op.orelse.block, _Touched())
        assert not self._meet_inside(op), "a branch of warps only reads"
        self.joins[op] |= WarpSyncs(frozenset({op}))
        return after

    def _meet_inside(self, op: ops.Branch) -> bool:
        """Return whether lanes meet before an operation of a branch."""
        return any(self.joins[inner].before | self.joins[inner].warps for inner in every(op))

    # ---- one operation
    def transfer(self, op: Operation, state: _Touched) -> _Touched:
        """Return the accesses after an operation, and record whether lanes meet there."""
        if isinstance(op, ops.At) or (len(op.results) == 1 and is_inlined(op.results[0])):
            self.joins[op] = NOWHERE  # evaluated in its readers
            return state
        if not isinstance(op, (ops.Perform, TakeColumns)) and self._collect_touched(op) == _UNTOUCHED:
            self.joins[op] = NOWHERE
            return state
        after, self.joins[op] = self._visit_effects(op, state)
        written, read, in_flight, copied = after.written, after.read, state.in_flight, state.copied
        effects = op.entry.effects if isinstance(op, ops.Perform) else Effects()
        if effects.group == PRODUCTS:
            in_flight |= self._collect_touched(op).read
        elif effects.group == COPIES:
            copied |= self._collect_touched(op).written
        elif effects.drains == PRODUCTS:
            read |= in_flight
            in_flight = in_flight if op.const("pending") else frozenset()  # type: ignore[attr-defined]
        elif effects.drains == COPIES:
            written |= copied
            copied = copied if op.const("n") else frozenset()  # type: ignore[attr-defined]
        return replace(after, written=written, read=read, in_flight=in_flight, copied=copied)

    def _visit_effects(self, op: Operation, state: _Touched) -> tuple[_Touched, WarpSyncs]:
        if isinstance(op, ops.Perform) and self._joins_lanes(op):
            return _Touched(), WarpSyncs()
        if isinstance(op, TakeColumns):
            return _Touched(), WarpSyncs()  # between two joins
        now = self._collect_touched(op)
        if isinstance(op, ops.Perform) and is_scalar_store(op):
            return (_Touched() if any(isinstance(a, ops.Shared) for a in now.written) else now), WarpSyncs()
        point = frozenset({op})
        if isinstance(op, ops.Perform) and op.entry.effects.group == COPIES:  # it writes later
            issued = replace(now, written=frozenset())
            return (issued, WarpSyncs(point)) if state.before(now) else (state | issued, WarpSyncs(untouched=point))
        inside = point if now.read & (now.written | {a for a, _ in now.stable}) else frozenset()
        if conflicts := state.before(now):
            if conflicts <= self.by_warps:
                return state.without(self.by_warps) | now, WarpSyncs(frozenset(), inside, point)
            return now, WarpSyncs(point, inside)
        return state | now, WarpSyncs(inside=inside, elided=point if state.stable & now.stable else frozenset())

    def _joins_lanes(self, op: ops.Perform) -> bool:
        if self.warp_rows is not None and "bulk_store" in (op.entry.effects.group, op.entry.effects.drains):
            return False  # each warp stores for itself
        return op.kind.joins_worker

    def _collect_touched(self, op: Operation) -> _Touched:
        if op not in self._touched:
            self._touched[op] = self._compute_touched(op)
        return self._touched[op]

    def _compute_touched(self, op: Operation) -> _Touched:
        written, read, stable = set(), set(), set()
        for part in iterate_evaluated(op):
            for a in iterate_accesses(part):
                if a.access.proxy == "async" and isinstance(a.array, ops.Tensor):
                    continue  # accessed by the copy engine, not by lanes
                array = self.memory.of(a.place)
                if self.ignored and self.warp_rows is not None and array is self.memory.of(self.warp_rows.result):
                    continue
                assert isinstance(part, ops.Perform)
                if not a.writes:
                    read.add(array)
                elif (dims := self._find_lane_dims(part, a)) is not None:
                    stable.add((array, dims))
                else:
                    written.add(array)
        return _Touched(frozenset(written), frozenset(read), frozenset(stable))

    # ---- stores that keep elements and lanes together
    def _find_lane_dims(self, op: ops.Perform, a: Accessed) -> Dims | None:
        """Return the dims of a tensor that a store's rows and columns lie along; None if lanes may change.

        Lanes stay if every store along these dims gives an element to the same lane: rows and columns start at
        multiples of the lanes' period.
        """
        tile, place = op.args.get("tile"), a.place.owner
        if tile is None or not isinstance(tile.type, TileT) or not isinstance(place, ops.At):
            return None
        if isinstance(a.array, ops.Shared):
            return _find_chunk_dims(tile.type, place, a.array)
        (rows, cols), dims = tile.type.shape, dict[str, int]()
        if rows == 1:
            return None
        for dim, (start, size) in enumerate(place.parts):
            axis = None
            if size == -1 and start is not None and not is_scalar(start):
                axis = self._find_axis(start)
            elif size not in (-1, 1):
                axis = "column" if dim == len(place.parts) - 1 else "row"
                if start is not None and not is_multiple(start, self.rows):
                    return None
            else:
                continue
            if axis is None or axis in dims:
                return None
            dims[axis] = dim
        return dims.get("row"), dims.get("column") if cols > 1 else None

    def _find_axis(self, tile: SSAValue) -> str | None:
        """Return "row" or "column" if an index tile is the worker's rows or columns from a multiple on."""
        kinds, worklist, visited = set[str | None](), [tile], set[SSAValue]()
        while worklist:
            value = worklist.pop()
            if value in visited:
                continue
            visited.add(value)
            op = value.owner
            if (inputs := find_sources(value)) is not None:
                worklist += inputs
            elif isinstance(op, ops.Apply) and op.kind.linear == SUM:
                a, b = op.arguments[::-1] if is_scalar(op.arguments[0]) else op.arguments
                kinds |= set() if is_scalar(b) and is_multiple(b, self.rows) else {None}
                worklist.append(a)
            else:
                kinds.add(ops.kind_of(value).index_of)
        return kinds.pop() if len(kinds) == 1 else None


def _find_chunk_dims(t: TileT, place: ops.At, array: ops.Shared) -> Dims | None:
    """Return a key of the place of a lane's chunks, for a tile in chunks that has all rows of its array.

    None if columns do not start at multiples of the tile's (a power of two), since then nothing is known.
    """
    (start, _), cols = place.parts[-1], t.shape[1]
    steady = start is None or (cols & (cols - 1) == 0 and is_multiple(start, cols))
    return (array, *t.shape) if t.layout == CHUNKS and steady else None


def is_scalar_store(op: ops.Perform) -> bool:
    """Return whether an operation stores a scalar, which one lane does between two joins."""
    return any(a.writes for a in iterate_accesses(op)) and "tile" in op.args and is_scalar(op.args["tile"])


__all__ = ["WarpSyncs", "find_warp_syncs"]
