"""Evaluation of the operations of the tile IR that refer to the table of primitives.

A pure operation is evaluated by its entry's `evaluate` on numbers and tiles; the few that depend on more than numbers
are in `STRUCTURAL`. Effects follow from the entry's `effects`: accesses, arrivals and waits. Engines act at once, so a
group in flight needs no waiting, and a fence does nothing, unless the order of lanes is followed (lane_order.py). A new
primitive needs nothing here unless it is structural.

Evaluation of machine operations that hold regions or wait; others have a method `evaluate`.

Pure regions are run as often as is convenient: the body of a queue once in a CTA for each work item, a warp's branch
once for all warps that take it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from xdsl.ir import Block, Operation, SSAValue

from ...checking.checked import ctas_along
from ...ops import OPERATORS, TABLE, meaning
from ...ops.base import Effects
from ...ops.meaning import Value, tiles
from ...ops.meaning.tiles import HELD_DTYPES
from ...syntax.types import DType
from . import ir_types as types
from . import ops
from .control import Kernel
from .evaluator_state import Fault, Frame, Meeting, NamedBarrier, PhaseWait, SharedPlace, UnitsOfCluster, Waiting, Worker
from .machine_ops import HandOut, Pinned, Queue, WarpIf
from .ops import Apply, Perform

Function = Callable[..., Value]  # of the values of operands: a number, truth value or tile
Structural = Callable[[Apply], Function]  # returns a function of the worker and the values of operands
PARTS = 4  # threads that share a row of a tile of layout `partial`, and hold a summand each


@dataclass(frozen=True)
class Step:
    """An operation as code: a function of a frame; `waits`: a generator of waits."""

    run: Callable[[Frame], Value]
    waits: bool = False


# ---- pure operations
def compute_held_shape(t: types.TileT) -> tuple[int, int]:
    """Return the shape of the tensor that holds a tile."""
    return (t.shape[0], PARTS) if t.layout.holds_parts else t.shape


def _zeros(op: Apply) -> Function:
    shape, dtype = _tile(op)
    return lambda w: torch.zeros(shape, dtype=dtype)


def _full(op: Apply) -> Function:
    (shape, storage), dtype = _tile(op), types.dtype_of(op.result)
    return lambda w, value: tiles.round_to(torch.full(shape, value, dtype=storage), dtype)


def _rows(op: Apply) -> Function:
    n = _tile(op)[0][0]
    return lambda w: torch.arange(n, dtype=torch.int32).reshape(n, 1)


def _cols(op: Apply) -> Function:
    n = _tile(op)[0][1]
    return lambda w: torch.arange(n, dtype=torch.int32).reshape(1, n)


def _cast(op: Apply) -> Function:
    source, target = types.dtype_of(op.arguments[0]), types.dtype_of(op.result)
    if types.is_tile(op.result):
        return lambda w, x: tiles.cast(x, source, target)
    return lambda w, x: meaning.cast(x, source, target)


def _cta_rank(op: Apply) -> Function:
    def rank(w: Worker) -> int:
        return w.rank

    return rank


def _tile(op: Apply) -> tuple[tuple[int, int], torch.dtype]:
    assert isinstance(op.result.type, types.TileT), op
    return compute_held_shape(op.result.type), HELD_DTYPES[op.result.type.element]


STRUCTURAL: dict[str, Structural] = {
    "zeros": _zeros,
    "full": _full,
    "rows": _rows,
    "cols": _cols,
    "cast": _cast,
    "cta_rank": _cta_rank,
}


def gaps() -> list[str]:
    """Return the entries of the table that make values and cannot be evaluated."""
    entries = {**TABLE, **OPERATORS}
    elsewhere = {"nbytes", "view", "T", *(n for n, e in entries.items() if e.effects != Effects() or e.where == "declaration")}
    return sorted(n for n, e in entries.items() if e.evaluate is None and n not in STRUCTURAL and n not in elsewhere)


def numbers(op: Apply) -> Function:
    """Return the function that a pure operation computes of the values of its operands."""
    meaning = op.entry.evaluate
    dtype = types.dtype_of(op.arguments[-1])  # the first may be a condition
    on_tiles = [types.is_tile(a) for a in op.arguments]
    of_tiles = any(on_tiles) or types.is_tile(op.result)
    function = None if meaning is None else meaning.tile(dtype) if of_tiles else meaning.scalar(dtype)
    if function is None or meaning is None:
        raise Fault(f"`{op.op}` has no meaning on {dtype}")
    if not of_tiles:
        return function
    if not any(on_tiles):  # a tile of numbers
        of_tile, storage = function, HELD_DTYPES[dtype]
        return lambda *values: of_tile(*(torch.full((1, 1), v, dtype=storage) for v in values))
    if meaning.divides:
        divide = function
        function = lambda x, y: divide(x, tiles.require_nonzero(y))  # noqa: E731
    if not all(on_tiles):
        function = _with_scalars(function, [HELD_DTYPES[types.dtype_of(a)] for a in op.arguments], on_tiles)
    if (result := types.dtype_of(op.result)).narrow:
        return _with_rounding(function, result)
    return function


def _with_scalars(function: Function, dtypes: list[torch.dtype], on_tiles: list[bool]) -> Function:
    """Pass numbers beside tiles as tensors without dims, which all of PyTorch's functions take."""
    if on_tiles == [True, False]:
        second = dtypes[1]
        return lambda x, y: function(x, torch.tensor(y, dtype=second))

    def run(*values: Value) -> torch.Tensor:
        result: torch.Tensor = function(*(v if t else torch.tensor(v, dtype=d) for v, d, t in zip(values, dtypes, on_tiles, strict=True)))
        return result

    return run


def _with_rounding(function: Function, dtype: DType) -> Function:
    return lambda *values: tiles.cast(function(*values), types.DTYPES["f32"], dtype)


# ---- effects
@dataclass(frozen=True)
class Effect:
    """A primitive with an effect: the places of its arguments and results in a frame."""

    op: Perform
    args: dict[str, int]
    results: tuple[int, ...]


def effect(site: Effect) -> Step:
    """Compile a primitive's effect on memory and barriers from its entry in the table."""
    entry, args = site.op.entry, site.args
    effects = entry.effects
    reads = [a.arg for a in effects.accesses if a.mode == "read" and a.arg in args]
    writes = [a.arg for a in effects.accesses if a.mode != "read" and a.arg in args]
    if effects.joins:
        return Step(_join, waits=True)
    if effects.waits:
        return Step((_meet if effects.arrives else _wait_for_phase)(args, effects.waits), waits=True)
    if effects.arrives:
        return Step(_arrive(site, args[effects.arrives]))
    if reads and entry.sums:
        return Step(_product_into(site, args[writes[0]]) if writes else _product(site))
    if reads and writes:
        return Step(_move(site, args[reads[0]], args[writes[0]]))
    if writes:
        return Step(_store(site, args[writes[0]]))
    if reads:
        place, (result,) = args[reads[0]], site.results

        def read(r: Frame) -> None:
            r[result] = r[place].read()

        return Step(read)
    pairs = list(zip(site.results, args.values(), strict=True)) if site.results else []

    def give_anew(r: Frame) -> None:
        for result, x in pairs:
            r[result] = r[x]

    return Step(give_anew)


def _join(r: Frame) -> Waiting:
    return _arrive_and_wait(r[0].joint)


def _arrive_and_wait(bar: NamedBarrier) -> Waiting:
    meeting = Meeting(bar, bar.arrive())
    if not meeting.over():
        yield meeting


def _meet(args: dict[str, int], at: str) -> Callable[[Frame], Waiting]:
    bar = args[at]
    return lambda r: _arrive_and_wait(r[bar])


def _wait_for_phase(args: dict[str, int], at: str) -> Callable[[Frame], Waiting]:
    bar, parity = args[at], args["parity"]

    def run(r: Frame) -> Waiting:
        if r[parity] not in (0, 1):
            raise Fault(f"a parity is 0 or 1, found {r[parity]}")
        wait = PhaseWait(r[bar], r[parity])
        if not wait.over():
            yield wait

    return run


def _arrive(site: Effect, bar: int) -> Callable[[Frame], None]:
    if (expected := site.args.get("bytes")) is not None:
        return lambda r: r[bar].arrive(r[expected])
    if not site.op.const("cluster", False):
        return lambda r: r[bar].arrive()
    ctas = make_cta_list(site)

    def in_line(r: Frame) -> None:
        for rank in ctas(r):
            r[bar].cluster[rank].arrive()

    return in_line


def make_cta_list(site: Effect) -> Callable[[Frame], list[int]]:
    """Return a function that returns the CTAs of the cluster that `cluster=` names."""
    axis, kernel = site.op.const("cluster"), site.op.parent_op()
    while not isinstance(kernel, Kernel):
        assert kernel is not None, site.op
        kernel = kernel.parent_op()
    size, across = kernel.cluster.data, kernel.cluster_x.data
    return lambda r: ctas_along(size, across, r[0].rank, axis)


def _move(site: Effect, source: int, target: int) -> Callable[[Frame], None]:
    """Compile a copy by an engine, which happens at once, or the move of a transpose whose columns are interleaved.

    It goes into memory of one CTA or, with `cluster`, of several, where its bytes land on a barrier.
    """
    add, ctas = site.op.const("add", False), make_cta_list(site) if site.op.const("cluster", False) else None
    lands = site.op.entry.effects.completes
    bar = site.args.get(lands) if lands else None
    interleaves = site.op.kind.interleaves

    def run(r: Frame) -> None:
        place, landing_barrier, value = r[target], None if bar is None else r[bar], r[source].read()
        if interleaves:
            value = tiles.interleave(value.mT)
        if ctas is None:
            if add:
                place.reduce(value)
            else:
                place.write(value)
            if landing_barrier is not None:
                landing_barrier.land(place.nbytes)
            return
        for rank in ctas(r):
            place.peer(rank).write(value)
            if landing_barrier is not None:
                landing_barrier.cluster[rank].land(place.nbytes)

    return run


def _store(site: Effect, place: int) -> Callable[[Frame], None]:
    value, mask, add = site.args["tile"], site.args.get("mask"), site.op.const("add", False)

    def run(r: Frame) -> None:
        r[place].write(r[value], None if mask is None else r[mask], add)

    return run


def _product(site: Effect) -> Callable[[Frame], None]:
    a, b, c, (result,) = site.args["a"], site.args["b"], site.args.get("c"), site.results
    holds = site.args.get("holds")  # whether the accumulator holds a sum, or nothing yet
    parts = int(site.op.const("parts", 0))

    def run(r: Frame) -> None:
        x, y = (v.values if v.__class__ is SharedPlace else v for v in (r[a], r[b]))
        if parts:
            x, y = tiles.split_operands(x, y, parts)
        r[result] = product(x, y, None if c is None or not (holds is None or r[holds]) else r[c])

    return run


def _product_into(site: Effect, place: int) -> Callable[[Frame], None]:
    """Compile a product whose accumulator lies in memory."""
    a, b, accumulate = site.args["a"], site.args["b"], site.args.get("accumulate")

    def run(r: Frame) -> None:
        target = r[place]
        before = target.read() if accumulate is None or r[accumulate] else None
        target.write(product(r[a].values, r[b].values, before))

    return run


def product(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None) -> torch.Tensor:
    """Return a @ b + c in float32, in the interpreter's order of sums.

    It calls the same function of PyTorch, with operands laid out in the same way.
    """
    if a.stride(1) != 1:
        a = a.contiguous()
    a, b = a.unsqueeze(0), b.unsqueeze(0)
    return (torch.bmm(a, b) if c is None else torch.baddbmm(c.unsqueeze(0), a, b))[0]


ROWS = 16  # of a warp, out of each 16 rows per warp of the worker


class Compiler(Protocol):
    """A compiler of operations to code (evaluate.py)."""

    def place(self, value: SSAValue) -> int: ...
    def all(self, values: Sequence[SSAValue]) -> tuple[int, ...]: ...
    def block(self, block: Block) -> Step: ...


# ---- work items by a queue
@dataclass(frozen=True)
class UnitsOfQueue:
    """The work items of a cluster as a queue hands them out in a CTA, with their broadcast words.

    `frame`: that of the warp that hands out.
    """

    units: UnitsOfCluster
    frame: Frame
    unit: int
    each: Callable[[Frame], object]
    values: tuple[int, ...]
    cache: dict[int, list[Value]] = field(default_factory=dict)

    def sequence(self) -> Iterator[int]:
        return self.units.sequence()

    def words(self, unit: int) -> list[Value]:
        """Return words 1, 2, ... of the slot of a work item."""
        words = self.cache.get(unit)
        if words is None:
            self.frame[self.unit] = unit
            self.each(self.frame)
            words = self.cache[unit] = [self.frame[v] for v in self.values]
        return words


def _compile_queue(to: Compiler, op: Queue) -> Step:
    units, result, hand_out = to.place(op.units), to.place(op.result), op.hand_out
    preamble, item_body = to.block(op.body.block), to.block(hand_out.body.block)
    unit, values = to.place(hand_out.unit), to.all(hand_out.words)

    def run(r: Frame) -> None:
        frame = list(r)
        preamble.run(frame)
        r[result] = UnitsOfQueue(r[units], frame, unit, item_body.run, values)

    return Step(run)


def make_word_reader(to: Compiler, loop: ops.ForUnits) -> Callable[[Frame, int], None] | None:
    """Return a function that puts the words of a work item into a loop's frame; None if it reads none."""
    if not loop.reads:
        return None
    units = to.place(loop.units)
    words_by_place = [(to.place(place), word.index - 1, word.copies > 1) for word, place in loop.reads]

    def read(r: Frame, unit: int) -> None:
        values, worker = r[units].words(unit), r[0].index
        for place, first, per_worker in words_by_place:
            r[place] = values[first + worker if per_worker else first]

    return read


# ---- warps
def _compile_warp_if(to: Compiler, op: WarpIf) -> Step:
    """Evaluate both sides where warps differ, and select each row of the results by its warp."""
    vote, results = to.place(op.decision), to.all(op.outputs)
    role: Operation | None = op
    while role is not None and not isinstance(role, ops.Role):
        role = role.parent_op()
    assert isinstance(role, ops.Role)
    warps = role.threads.data // 32
    sides = []
    for region in (op.then, op.orelse):
        last = region.block.last_op
        assert isinstance(last, ops.Yield)
        sides.append((to.block(region.block).run, to.all(last.values)))
    (then, then_values), (orelse, orelse_values) = sides

    def run(r: Frame) -> None:
        rows = r[vote].any(-1)
        warp = torch.arange(len(rows)) // ROWS % warps
        takes = torch.stack([rows[warp == w].any() for w in range(warps)])
        if len(rows) == 1 or bool(takes.all()) or not bool(takes.any()):
            run_side, values = (then, then_values) if bool(takes.any()) else (orelse, orelse_values)
            run_side(r)
            for result, value in zip(results, values, strict=True):
                r[result] = r[value]
            return
        then(r)
        orelse(r)
        for result, x, y in zip(results, then_values, orelse_values, strict=True):
            if isinstance(r[x], torch.Tensor) and r[x].shape[0] == len(rows):
                r[result] = torch.where(takes[warp].unsqueeze(1), r[x], r[y])
            elif isinstance(r[x], torch.Tensor) or r[x] != r[y]:
                raise Fault("warps take different sides of a branch that gives something else than rows")
            else:
                r[result] = r[x]

    return Step(run)


def _compile_pinned(to: Compiler, op: Pinned) -> Step | None:
    if op.condition is None or op.barrier is None or op.parity is None:
        return None
    condition, bar, parity = to.all([op.condition, op.barrier, op.parity])

    def run(r: Frame) -> Waiting:
        if r[condition]:
            wait = PhaseWait(r[bar], r[parity])
            if not wait.over():
                yield wait

    return Step(run, waits=True)


def _compile_nothing(to: Compiler, op: Operation) -> None:
    """Compile an operation that its parent runs: no code."""


CODE: dict[type[Operation], Callable[[Any, Any], Step | None]] = {
    Queue: _compile_queue,
    HandOut: _compile_nothing,
    WarpIf: _compile_warp_if,
    Pinned: _compile_pinned,
}


__all__ = [
    "CODE",
    "PARTS",
    "STRUCTURAL",
    "Effect",
    "Function",
    "Step",
    "Structural",
    "compute_held_shape",
    "effect",
    "gaps",
    "make_cta_list",
    "make_word_reader",
    "numbers",
    "product",
]
