"""The order of a worker's lanes and engines in the evaluator: two accesses that nothing orders are a Fault.

A worker runs as a whole, so a missing join changes no number. Instead, each access names the lanes that do it, by the
layout of its tile, and is remembered until these lanes have met the others. An access of other lanes to the same
element before that may come first on a GPU. Proxies are followed in the same way: an engine may not overwrite what was
read through another proxy without a fence before the arrival that released it. What one thread sets up, barriers and
tensor memory, is for others only behind a sync of the CTA.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from xdsl.dialects.builtin import FileLineColLoc
from xdsl.ir import Operation, SSAValue

from ...ops.base import PRODUCTS, Access
from ...syntax.types import TENSOR_MEMORY
from ..layouts.layouts import LANES
from ..layouts.tile_layouts import CHUNKS, TileLayout
from . import ops
from .evaluate_operations import Effect, make_cta_list
from .evaluator_state import Box, Element, Elements, Fault, Frame, Place, SharedArray, SharedPlace, TensorArgument
from .ir_types import ElementT, SharedT, TensorT, TileT, is_scalar
from .ir_walk import every, is_inlined
from .synchronisation import BARRIERS, COLUMNS, ROLES, ClusterSync, CtaSync, Join, RegisterFence

Memory = SharedArray | TensorArgument
WARP_ROWS = 16  # of an operand, in each 64


class Holders(NamedTuple):
    """The first and the last thread that accesses each element of a tile; they differ where several may."""

    low: torch.Tensor
    high: torch.Tensor


def _hold(low: int, high: int) -> Holders:
    return Holders(torch.full((1, 1), low), torch.full((1, 1), high))


@functools.cache
def find_holders(layout: TileLayout, shape: tuple[int, int], threads: int) -> Holders:
    """Return the threads that hold each element of a tile in registers."""
    whole = layout.of(shape, threads)
    atom, turns = whole.atom, whole.turns
    numbers = np.arange(1 << sum(bits for _, bits in atom.inputs))
    images = np.zeros_like(numbers)
    for i, image in enumerate(atom.columns):
        images ^= (numbers >> i & 1) * image
    inputs, outputs = _split(numbers, atom.inputs), _split(images, atom.outputs)
    sizes, zero = dict(atom.outputs), np.zeros_like(numbers)
    low, high = np.full(shape, threads), np.full(shape, -1)
    total = int(np.prod([count for _, count in whole.repeats], dtype=int))
    for k in range(total):
        offset, done, rest = {"row": 0, "column": 0}, dict[str, int](), k
        for name, count in whole.repeats:
            offset[name] += rest % count * (done.get(name, 1) << sizes[name])
            done[name] = done.get(name, 1) * count
            rest //= count
        thread = (inputs.get("warp", zero) * turns + k % turns) * LANES + inputs.get("lane", zero)
        row, column = (outputs.get(name, zero) + offset[name] for name in ("row", "column"))
        inside = (row < shape[0]) & (column < shape[1])
        np.minimum.at(low, (row[inside], column[inside]), thread[inside])
        np.maximum.at(high, (row[inside], column[inside]), thread[inside])
    return Holders(torch.from_numpy(low), torch.from_numpy(high))


def _split(numbers: np.ndarray, dims: tuple[tuple[str, int], ...]) -> dict[str, np.ndarray]:
    result, shift = dict[str, np.ndarray](), 0
    for name, bits in dims:
        result[name] = numbers >> shift & (1 << bits) - 1
        shift += bits
    return result


@functools.cache
def _hold_rows_by_warp(rows: int, threads: int, one_lane: bool) -> Holders:
    """Return the warp of each 16 rows, or its first lane."""
    warp = torch.arange(rows).reshape(-1, 1) // WARP_ROWS % (threads // LANES) * LANES
    return Holders(warp, warp if one_lane else warp + LANES - 1)


@dataclass(eq=False)
class Touch:
    """An access of a worker's lanes, or of an engine for them.

    Attributes:
        holders: The threads of each element, found when they matter.
        in_flight: An engine is at it, so a join does not end it.
        joined_warps: The lanes of each warp have met since.
    """

    op: ops.Perform
    place: Place
    holders: Callable[[], Holders]
    writes: bool
    adds: bool = False
    mask: torch.Tensor | None = None
    in_flight: bool = False
    joined_warps: bool = False

    @property
    def memory(self) -> Memory:
        """The array or tensor."""
        return self.place.array if isinstance(self.place, SharedPlace) else self.place.tensor

    @functools.cached_property
    def positions(self) -> torch.Tensor:
        """Position in the memory of each element, -1 for those that are not accessed."""
        positions = _find_positions(self.place)
        return positions if self.mask is None else torch.where(self.mask, positions, -1)

    @functools.cached_property
    def key(self) -> object:
        """Return a key that determines the threads of each element; None if nothing simple does."""
        place = self.place
        if self.mask is not None or not isinstance(place, (SharedPlace, Box)):
            return None
        where = place.key if isinstance(place, SharedPlace) else (place.starts, place.sizes)
        return self.op, self.memory.name, where

    def repeats(self, other: Touch) -> bool:
        """Return whether the same operation accesses the same place."""
        return self.key is not None and self.key == other.key

    def meets(self, later: Touch) -> bool:
        """Return whether another thread (or warp, if warps have joined) may access an element of this access later."""
        if not (self.writes or later.writes) or (self.adds and later.adds):
            return False
        if self.memory is not later.memory:
            assert isinstance(self.place, SharedPlace) and isinstance(later.place, SharedPlace)
            return self.place.shares_bytes(later.place)
        if isinstance(self.place, SharedPlace) and isinstance(later.place, SharedPlace) and not self.place.overlaps(later.place):
            return False
        first, second = self.positions, later.positions
        if int(first.max()) < int(second[second >= 0].min() if bool((second >= 0).any()) else 1 << 62):
            return False
        size = 1 + max(int(first.max()), int(second.max()))
        low, high = torch.full((size,), 1 << 30), torch.full((size,), -1)
        at, of_first = _spread(first, self.holders())
        low.scatter_reduce_(0, at, of_first.low, "amin")
        high.scatter_reduce_(0, at, of_first.high, "amax")
        at, of_second = _spread(second, later.holders())
        low, high = low[at], high[at]
        threads = [low, high, of_second.low, of_second.high]
        if self.joined_warps:
            threads = [t // LANES for t in threads]
        same = (threads[0] == threads[1]) & (threads[2] == threads[3]) & (threads[0] == threads[2])
        return bool(((high >= 0) & ~same).any())


def _spread(positions: torch.Tensor, holders: Holders) -> tuple[torch.Tensor, Holders]:
    """Return the accessed positions in a row, and their threads."""
    positions, low, high = torch.broadcast_tensors(positions, *holders)
    inside = positions >= 0
    return positions[inside], Holders(low[inside].long(), high[inside].long())


def _find_positions(place: Place) -> torch.Tensor:
    if isinstance(place, SharedPlace):
        dims = place.array.dims
        part = torch.arange(place.array.values.numel()).reshape(dims)[place.index]
        return part.T if place.key[2] else part.reshape(-1, part.shape[-1] if part.dim() else 1)
    if isinstance(place, Box):
        positions = torch.zeros((), dtype=torch.int64)
        inside = torch.ones((), dtype=torch.bool)
        for start, size, dim, stride in zip(place.starts, place.sizes, place.tensor.shape, place.tensor.strides, strict=True):
            i = start + torch.arange(size)
            positions, inside = positions.unsqueeze(-1) + i * stride, inside.unsqueeze(-1) & (i >= 0) & (i < dim)
        return torch.where(inside, positions, -1).reshape(place.shape)
    if isinstance(place, Elements):
        return torch.where(place.inside, place.offset, -1)
    return torch.full((1, 1), place.offset)


class LaneOrder:
    """The accesses of a worker that its other lanes, or engines, do not know of yet."""

    def __init__(self, threads: int, meetings: dict[object, bool]) -> None:
        self.threads, self.meetings = threads, meetings
        self.pending: dict[Memory, list[Touch]] = {}
        self.unsynced: Operation | None = None  # the last one with an access of lanes since those of a warp met
        self.exchanged = ""  # what warps have done with the parts of columns since they last met: "given" or "taken"
        self.flights: dict[str, list[list[Touch]]] = {}  # by group of engines, in the order of issue
        self.unfenced: list[Touch] = []  # reads of arrays that an engine refills, since the last fence

    def add(self, touch: Touch) -> None:
        """Remember an access. Raises Fault if an earlier one of another lane may come later."""
        self.check(touch)
        known = self.pending.setdefault(touch.memory, [])
        for i, earlier in enumerate(known):
            if earlier.repeats(touch) and earlier.in_flight == touch.in_flight:
                known[i] = touch
                return
        known.append(touch)

    def check(self, touch: Touch) -> None:
        """Raise Fault if an earlier access of another lane may come after this one."""
        memory = touch.memory
        for m in (memory, *(memory.over if isinstance(memory, SharedArray) else ())):
            for earlier in self.pending.get(m, ()):
                if self._meet(earlier, touch):
                    order = "only the lanes of each warp have joined" if earlier.joined_warps else "no join orders the two"
                    others = "warps" if earlier.joined_warps else "lanes"
                    raise Fault(f"{_describe(earlier.op)} accesses the same elements of `{m.name}` by other {others}, and {order}")

    def _meet(self, earlier: Touch, later: Touch) -> bool:
        """Return whether two accesses meet, from what the launch knows of such accesses."""
        if not (earlier.writes or later.writes):
            return False
        if earlier.key is None or later.key is None:
            return earlier.meets(later)
        key = earlier.key, later.key, earlier.joined_warps
        result = self.meetings.get(key)
        if result is None:
            result = self.meetings[key] = earlier.meets(later)
        return result

    def join(self, warps: bool) -> None:
        """Let the lanes of each warp meet, or those of the worker."""
        self.unsynced = None
        if not warps:
            self.exchanged = ""
        if not self.pending:
            return
        if warps and self.threads > LANES:
            for touches in self.pending.values():
                for t in touches:
                    t.joined_warps |= not t.in_flight
            return
        left = {m: [t for t in touches if t.in_flight] for m, touches in self.pending.items()}
        self.pending = {m: touches for m, touches in left.items() if touches}

    def fence(self) -> None:
        """Order the reads so far before later accesses by engines."""
        self.unfenced.clear()

    def issue(self, group: str, touches: list[Touch]) -> None:
        """Add accesses of an engine to the group that is open, or, if the group has no commits, as one of their own."""
        flights = self.flights.setdefault(group, [[]])
        flights[-1] += touches
        if group != "cp_async":
            flights.append([])

    def commit(self, group: str) -> None:
        """Close the open group."""
        self.flights.setdefault(group, [[]]).append([])

    def drain(self, group: str, left: int) -> None:
        """End all closed groups but the last ones."""
        flights = self.flights.get(group, [[]])
        done = len(flights) - 1 - left
        for touches in flights[: max(0, done)]:
            for t in touches:
                t.in_flight = False
        self.flights[group] = flights[max(0, done) :]

    def give_columns(self) -> None:
        """Write parts of columns. Raises Fault if another warp may still read or write those before."""
        if self.exchanged:
            raise Fault("another warp may still need the parts of columns that were exchanged before, and no join orders the two")
        self.exchanged = "given"

    def take_columns(self) -> None:
        """Read parts of columns. Raises Fault if another warp may still write them."""
        if self.exchanged == "given":
            raise Fault("another warp may not have given its part of the columns yet, and no join orders the two")
        self.exchanged = "taken"

    def check_met(self) -> None:
        """Raise Fault if the lanes of a warp have not met since their last access."""
        if self.unsynced is not None:
            raise Fault(f"a lane arrives before the lanes of its warp have met after {_describe(self.unsynced)}")

    def arrive(self) -> None:
        """Release the accesses so far. Raises Fault if lanes of a warp have not met."""
        self.check_met()
        for t in self.unfenced:
            t.memory.released.append(t)  # type: ignore[union-attr]
        self.unfenced.clear()


def _describe(op: Operation) -> str:
    name = getattr(op, "op", op.name)
    return f"`{name}`" + (f" in line {op.location.line.data}" if isinstance(op.location, FileLineColLoc) else "")


# ---- code
@dataclass(frozen=True)
class RoleLanes:
    """State that follows the accesses of a role.

    Attributes:
        threads: Of a worker; 1 if one lane runs the role.
        written: Arrays and tensors that the role writes by lanes, or by engines that it starts.
        refilled: Arrays that an engine writes.
        changed: Tensors that the kernel writes, and all arrays.
        in_columns: Arrays in tensor memory.
        unmet: Behind what the CTA's threads do not meet.
        may_exit: A CTA may end before others of its cluster.
    """

    threads: int
    written: frozenset[str]
    refilled: frozenset[str]
    changed: frozenset[str]
    in_columns: frozenset[str]
    unmet: frozenset[str]
    may_exit: bool

    def find_unready(self, op: Operation) -> str:
        """Return why what an operation uses may not be there, "" if it is."""
        if isinstance(op, ops.ForUnits) or (
            isinstance(op, ops.Perform) and not op.kind.hardware and (op.entry.effects.releases or op.entry.effects.waits)
        ):
            return "the barriers may not be initialised yet: no sync of the CTA follows" if BARRIERS in self.unmet else ""
        if not any(name in self.in_columns for name, _ in _list_accesses(op)):
            return ""
        if COLUMNS in self.unmet:
            return "tensor memory may not be allocated yet: no sync of the CTA follows"
        return "tensor memory may be freed already: no sync of the CTA follows the roles" if ROLES in self.unmet else ""


def analyse_role(role: ops.Role, one_lane: bool) -> RoleLanes:
    """Return what a role's accesses are followed for."""
    kernel = role.parent_op()
    assert isinstance(kernel, ops.Kernel)
    written = {name for op in every(role) for name, a in _list_accesses(op) if a.mode != "read"}
    spans = {d.symbol.data: d for d in kernel.body.block.ops if isinstance(d, ops.Shared)}
    if written & spans.keys():
        written |= spans.keys()  # any two arrays may share bytes
    refilled = {n for op in every(kernel) for n, a in _list_accesses(op) if a.mode != "read" and a.proxy == "async" and n in spans}
    changed = {d.symbol.data for d in kernel.body.block.ops if isinstance(d, ops.Tensor) and d.written is not None}
    may_exit = not any(isinstance(op, ClusterSync) and op.argument is None for op in kernel.body.block.ops)
    in_columns = {name for name, d in spans.items() if d.offset.data >= TENSOR_MEMORY}
    met = {op.behind.data for op in kernel.body.block.ops if isinstance(op, CtaSync)}
    return RoleLanes(
        1 if one_lane else role.threads.data,
        frozenset(written),
        frozenset(refilled),
        frozenset(changed | spans.keys()),
        frozenset(in_columns),
        frozenset({BARRIERS, COLUMNS, ROLES} - met),
        may_exit,
    )


def find_lanes_apart(kernel: ops.Kernel) -> str:
    """Return what may go wrong at a sync behind the roles, which whole warps enter, "" if their lanes have met."""
    for op in kernel.body.block.ops:
        is_last = (isinstance(op, ClusterSync) and op.argument is None) or (isinstance(op, CtaSync) and op.behind.data == ROLES)
        previous = op.prev_op
        if is_last and not isinstance(previous, CtaSync) and not (isinstance(previous, Join) and previous.lanes.data != "none"):
            return f"lanes of a warp may enter `{op.name}` behind the roles one by one: no join precedes it"
    return ""


def _list_accesses(op: Operation) -> list[tuple[str, Access]]:
    if not isinstance(op, ops.Perform) or not op.entry.effects.accesses:
        return []
    args, result = op.args, list[tuple[str, Access]]()
    for access in op.entry.effects.accesses:
        place = args.get(access.arg)
        if place is not None and isinstance(place.type, (SharedT, TensorT, ElementT)):
            result.append((_name_memory(place), access))
    return result


def _name_memory(place: SSAValue) -> str:
    while isinstance(place.owner, ops.At):
        place = place.owner.array
    assert isinstance(place.owner, (ops.Shared, ops.Tensor))
    return place.owner.symbol.data


Follow = Callable[[Frame], None]


def follow_effect(site: Effect, role: RoleLanes) -> tuple[Follow | None, Follow | None]:
    """Return what happens to the order of lanes before an operation, and after it."""
    op = site.op
    if unready := role.find_unready(op) or _find_unfenced(op):
        return functools.partial(_refuse, unready), None
    before, after = _follow_synchronisation(op)
    if before is None and after is None:
        before = _follow_accesses(op, site.args, role)
    if role.may_exit and op.const("cluster", False):
        return functools.partial(_signal, make_cta_list(site), before), after
    return before, after


def _find_unfenced(op: ops.Perform) -> str:
    """Return what may go wrong behind a wait for products whose results nvcc does not know to be new, "" if nothing."""
    if op.entry.effects.drains != PRODUCTS:
        return ""
    fenced = op.next_op.tiles if isinstance(op.next_op, RegisterFence) else ()
    if all(r in fenced or all(isinstance(use.operation, RegisterFence) for use in r.uses) for r in op.results):
        return ""
    return "nvcc may read the registers of products before their wait: no fence of the registers follows it"


def _refuse(because: str, r: Frame) -> None:
    raise Fault(because)


def _signal(ctas: Callable[[Frame], list[int]], then: Follow | None, r: Frame) -> None:
    """Let a worker signal, or copy to, other CTAs. Raises Fault if one of them has ended."""
    for rank in ctas(r):
        if not r[0].running[rank]:
            raise Fault(f"CTA {rank} may have exited: no CTA waits for the others at its end")
    if then is not None:
        then(r)


def _follow_synchronisation(op: ops.Perform) -> tuple[Follow | None, Follow | None]:
    effects = op.entry.effects
    if effects.joins or (effects.waits and effects.arrives):
        return lambda r: r[0].lanes.join(warps=False), None
    if effects.arrives and not op.kind.hardware:
        return lambda r: r[0].lanes.arrive(), None
    if effects.fences:
        return lambda r: r[0].lanes.fence(), None
    if effects.commits:
        commits = effects.commits
        return lambda r: r[0].lanes.commit(commits), None
    if effects.drains:
        drains, left = effects.drains, int(op.const("pending", op.const("n", 0)))
        return None, lambda r: r[0].lanes.drain(drains, left)
    return None, None


def _follow_accesses(op: ops.Perform, places: dict[str, int], role: RoleLanes) -> Follow | None:
    effects, steps = op.entry.effects, list[Follow]()
    mask = places.get("mask")
    touches_of_group: list[Callable[[Frame], Touch]] = []
    for name, access in _list_accesses(op):
        at, writes, adds = places[access.arg], access.mode != "read", bool(op.const("add", False))
        if access.proxy == "async" and not isinstance(op.args[access.arg].type, SharedT):
            continue  # an engine's, of a tensor
        holders = _choose_holders(op, access, role.threads)

        def make(r: Frame, at: int = at, writes: bool = writes, adds: bool = adds, holders: Callable[[], Holders] = holders) -> Touch:
            return Touch(op, r[at], holders, writes, writes and adds, None if mask is None else r[mask])

        if effects.completes and writes:
            steps.append(functools.partial(_overwrite, make, role.threads > 1))
            continue
        in_lanes = not access.late and not op.kind.product
        if in_lanes and not writes and name in role.refilled:
            steps.append(lambda r, make=make: r[0].lanes.unfenced.append(make(r)))  # type: ignore[misc]
        if role.threads == 1:
            continue
        if name in role.written and access.late:
            touches_of_group.append(make)
        elif name in role.written:
            steps.append(lambda r, make=make: r[0].lanes.add(make(r)))  # type: ignore[misc]
        if in_lanes and name in role.changed:
            steps.append(lambda r: setattr(r[0].lanes, "unsynced", op))
    if effects.group and role.threads > 1:
        steps.append(functools.partial(_issue, effects.group, touches_of_group))
    if len(steps) == 1:
        return steps[0]

    def run(r: Frame) -> None:
        for step in steps:
            step(r)

    return run if steps else None


def _issue(group: str, makers: list[Callable[[Frame], Touch]], r: Frame) -> None:
    touches = [make(r) for make in makers]
    for t in touches:
        t.in_flight = True
        r[0].lanes.add(t)
    r[0].lanes.issue(group, touches)


def _overwrite(make: Callable[[Frame], Touch], has_lanes: bool, r: Frame) -> None:
    """Let an engine write: what lanes and other proxies read or wrote there must be over."""
    touch = make(r)
    if has_lanes:
        r[0].lanes.check(touch)
    assert isinstance(touch.place, SharedPlace)
    for array in touch.place.array.cluster:
        for earlier in array.released:
            assert isinstance(earlier.place, SharedPlace)
            if earlier.place.overlaps(touch.place):
                raise Fault(f"the copy may overtake {_describe(earlier.op)} of `{array.name}`: no proxy fence orders the two")


def _choose_holders(op: ops.Perform, access: Access, threads: int) -> Callable[[], Holders]:
    """Return a function that returns the threads of an access, the same each time."""
    effects, place = op.entry.effects, op.args[access.arg]
    everyone = functools.partial(_hold, 0, threads - 1)
    if op.kind.product:
        if access.arg == "a" and isinstance(place.type, SharedT):
            return functools.partial(_hold_rows_by_warp, int(place.type.sizes[0]), threads, False)
        return everyone
    if effects.group == "bulk_store":
        if op.const("by_warps"):
            assert isinstance(place.type, SharedT)
            return functools.partial(_hold_rows_by_warp, int(place.type.sizes[0]), threads, True)
        return functools.partial(_hold, 0, 0)
    if access.late:
        return everyone
    tile = op.args.get("tile") if access.mode != "read" else op.results[0] if op.results else None
    if tile is None or not isinstance(tile.type, TileT):
        return functools.partial(_hold, 0, 0) if access.mode != "read" and tile is not None and is_scalar(tile) else everyone
    t, writes = tile.type, access.mode != "read"
    exchanged = isinstance(place.type, SharedT) and t.layout.varies_by_row and t.layout.varies_by_column and t.layout != CHUNKS

    def hold() -> Holders:
        low, high = find_holders(t.layout, t.shape, threads)
        if exchanged:  # instructions on blocks and swapped rows exchange elements within a warp
            return Holders(low // LANES * LANES, low // LANES * LANES + LANES - 1)
        return Holders(low, low if writes else high)

    return hold


def defer_inlined(operations: Sequence[Operation]) -> list[Operation]:
    """Return operations in the order of their code: an inlined read of memory stands directly before its reader."""
    deferred, result = set[Operation](), list[Operation]()

    def place(op: Operation) -> None:
        for operand in op.operands if deferred else ():
            if operand.owner in deferred:
                assert isinstance(operand.owner, Operation)
                deferred.discard(operand.owner)
                place(operand.owner)
        result.append(op)

    for op in operations:
        inlined = len(op.results) == 1 and is_inlined(op.results[0])
        if inlined and (isinstance(op, ops.Perform) or (deferred and any(o.owner in deferred for o in op.operands))):
            deferred.add(op)
        else:
            place(op)
    return result


__all__ = [
    "Element",
    "Holders",
    "LaneOrder",
    "RoleLanes",
    "Touch",
    "analyse_role",
    "defer_inlined",
    "find_holders",
    "find_lanes_apart",
    "follow_effect",
]
