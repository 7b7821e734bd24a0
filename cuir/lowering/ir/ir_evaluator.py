"""The evaluator: runs a kernel's tile IR on tensors, to compare results of passes bit by bit.

The outputs have the bits of the interpreter's, except where CTAs add to the same elements. Workers take turns in a
fixed order, each until it waits; engines act at once: races and schedules are checked by the interpreter, which a
program has passed before it is lowered. Regions become lists of functions of a frame, once for each run. Values are
never changed in place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from xdsl.dialects.builtin import FileLineColLoc
from xdsl.ir import Block, Operation, SSAValue

from ...ops.meaning import Value, f32
from ...ops.meaning.tiles import STORED
from ...syntax.types import F32
from . import ir_types as types
from . import ops
from .evaluate_operations import CODE, STRUCTURAL, Effect, Step, effect, make_word_reader, numbers
from .evaluator_state import (
    Box,
    Element,
    Elements,
    Fault,
    Frame,
    Mbarrier,
    NamedBarrier,
    SharedArray,
    TensorArgument,
    Units,
    UnitsOfCluster,
    Waiting,
    Worker,
    share_bytes,
)
from .lane_order import LaneOrder, RoleLanes, analyse_role, defer_inlined, find_lanes_apart, follow_effect
from .machine_ops import queue_of

Argument = torch.Tensor | int | float | bool
Run = Callable[[Frame], Value]


def evaluate(
    kernel: ops.Kernel, arguments: Mapping[str, Argument], *, ctas: int = 2, single_lane_roles: Collection[str] | None = None
) -> None:
    """Run a kernel on CPU tensors and numbers, and write its outputs in place.

    Args:
        kernel: The kernel.
        arguments: Tensors and numbers by name.
        ctas: The number of CTAs (or clusters) that share the work items.
        single_lane_roles: Names of roles that one lane runs. If they are given, the order of lanes is followed.

    Raises: Fault for operations that no valid program does, and for deadlocks, with the wait of each worker; for accesses
        of different lanes that no synchronisation orders, if their order is followed.
    """
    with torch.inference_mode():
        _Launch(_Compiler(kernel, single_lane_roles), arguments, ctas).run()


# ---- code
class _Compiler:
    """The code of a kernel.

    Every value has a place in the frames of workers; `initial` holds those that are constant.
    """

    def __init__(self, kernel: ops.Kernel, single_lane_roles: Collection[str] | None = None):
        self.single_lane_roles = single_lane_roles
        self.role: RoleLanes | None = None
        self.places: dict[SSAValue, int] = {}
        self.wholes: dict[SSAValue, int] = {}  # of whole arrays and tensors that are operands of effects
        self.initial: Frame = [None]  # the worker
        self.declarations: list[ops.Declaration] = []
        self.roles: list[tuple[ops.Role, int, Step]] = []
        self.kernel = kernel
        frame = []
        for op in kernel.body.block.ops:
            if isinstance(op, ops.Declaration):
                self.declarations.append(op)
                self.place(op.result)
            elif isinstance(op, ops.Role):
                if single_lane_roles is not None:
                    self.role = analyse_role(op, op.symbol.data in single_lane_roles)
                self.roles.append((op, self.place(op.body.block.args[0]), self.block(op.body.block)))
                self.role = None
            elif not isinstance(op, ops.Yield):
                frame.append(op)
        self.before = self.steps(frame)
        if self.before.waits:
            raise Fault("nobody waits before the roles begin")

    def place(self, value: SSAValue) -> int:
        """Return the place of a value in a frame."""
        place = self.places.get(value)
        if place is None:
            place = self.places[value] = len(self.initial)
            self.initial.append(None)
        return place

    def operand(self, value: SSAValue) -> int:
        """Return the frame's index of an effect's operand; a whole array has an index as a view besides."""
        if not isinstance(value.owner, (ops.Shared, ops.Tensor)):
            return self.place(value)
        place = self.wholes.get(value)
        if place is None:
            place = self.wholes[value] = len(self.initial)
            self.initial.append(None)
        return place

    def all(self, values: Sequence[SSAValue]) -> tuple[int, ...]:
        """Return the places of values."""
        return tuple(map(self.place, values))

    def block(self, block: Block) -> Step:
        """Compile the operations of a block without its last, whose values its parent reads."""
        return self.steps([op for op in block.ops if not isinstance(op, ops.Yield)])

    def steps(self, operations: Sequence[Operation]) -> Step:
        """Compile operations one after the other; those between two that wait become one function."""
        steps: list[tuple[Step, Operation]] = []
        for op in operations if self.role is None else defer_inlined(operations):
            try:
                step = self.step(op)
            except Fault as fault:
                raise _locate(fault, op) from None
            if step is not None:
                steps.append((step, op))
        parts: list[tuple[Run, bool]] = []
        sequence: list[tuple[Run, Operation]] = []
        for step, op in steps:
            if not step.waits:
                sequence.append((step.run, op))
                continue
            if sequence:
                parts.append((_run_in_sequence(sequence), False))
                sequence = []
            parts.append((_run_waiting(step.run, op), True))
        if not parts:
            return Step(_run_in_sequence(sequence))
        if sequence:
            parts.append((_run_in_sequence(sequence), False))

        def run(r: Frame) -> Waiting:
            for part, waits in parts:
                if waits:
                    yield from part(r)
                else:
                    part(r)

        return Step(run, waits=True)

    def step(self, op: Operation) -> Step | None:
        """Compile an operation; None if its result is constant."""
        if isinstance(op, ops.Constant):
            self.initial[self.place(op.result)] = f32(op.value) if isinstance(op.value, float) else op.value
            return None
        if isinstance(op, ops.Apply):
            return self.apply(op)
        if isinstance(op, ops.Perform):
            site = Effect(op, {n: self.operand(v) for n, v in op.args.items()}, self.all(op.outputs))
            return effect(site) if self.role is None else _follow(effect(site), *follow_effect(site, self.role))
        if isinstance(op, ops.At):
            return Step(self.at(op))
        if isinstance(op, ops.If):
            return self.branch(op)
        if isinstance(op, ops.For):
            return self.loop(op)
        if isinstance(op, ops.ForUnits):
            return self.units(op)
        if type(op) in CODE:
            return CODE[type(op)](self, op)
        function = getattr(op, "evaluate", None)
        if function is None:
            raise Fault(f"nothing says what {op.name} does")
        operands, results = [self.operand(v) for v in op.operands], self.all(op.results)

        def run(r: Frame) -> None:
            for result, value in zip(results, function(r[0], [r[x] for x in operands]), strict=True):
                r[result] = value

        return Step(run)

    def apply(self, op: ops.Apply) -> Step | None:
        operands, result = self.all(op.arguments), self.place(op.result)
        if op.op in STRUCTURAL:
            structural = STRUCTURAL[op.op](op)
            if not operands and not op.kind.rank:
                self.initial[result] = structural(None)
                return None

            def make(r: Frame) -> None:
                r[result] = structural(r[0], *[r[x] for x in operands])

            return Step(make)
        function = numbers(op)
        if len(operands) == 1:
            (a,) = operands

            def unary(r: Frame) -> None:
                r[result] = function(r[a])

            return Step(unary)
        if len(operands) == 2:
            a, b = operands

            def binary(r: Frame) -> None:
                r[result] = function(r[a], r[b])

            return Step(binary)

        def variadic(r: Frame) -> None:
            r[result] = function(*[r[x] for x in operands])

        return Step(variadic)

    # ---- places in memory
    def at(self, op: ops.At) -> Run:
        array, result, kind = self.place(op.array), self.place(op.result), op.result.type
        starts = [None if start is None else self.place(start) for start, _ in op.parts]
        sizes = [size for _, size in op.parts]
        if isinstance(kind, types.BarrierT):
            (stage,) = self.all(op.starts)

            def barrier(r: Frame) -> None:
                if not 0 <= r[stage] < len(r[array]):
                    raise Fault(f"there is no barrier {r[stage]} in a ring of {len(r[array])}")
                r[result] = r[array][r[stage]]

            return barrier

        def offsets(r: Frame) -> tuple[Value, ...]:
            return tuple([0 if start is None else r[start] for start in starts])

        if isinstance(op.array.type, types.SharedT):
            transposed, shape = isinstance(kind, types.SharedT) and bool(kind.transposed.data), tuple(sizes)

            def view(r: Frame) -> None:
                r[result] = r[array].place(offsets(r), shape, transposed)

            return view
        if isinstance(kind, types.ElementT):
            element: Any = Elements if kind.rows.data else Element

            def elements(r: Frame) -> None:
                r[result] = element(r[array], offsets(r))

            return elements
        dims = [d for d, size in enumerate(sizes) if size != -1]
        lengths = [abs(size) for size in sizes]  # of a dropped dim 1
        whole_dims = [d for d, size in enumerate(sizes) if not size]

        def box(r: Frame) -> None:
            tensor: TensorArgument = r[array]
            extents = lengths
            if whole_dims:
                extents = [tensor.shape[d] if d in whole_dims else n for d, n in enumerate(lengths)]
            rows = 1
            for d in dims[:-1]:
                rows *= extents[d]
            r[result] = Box(tensor, offsets(r), tuple(extents), (rows, extents[dims[-1]]))

        return box

    # ---- control flow
    def branch(self, op: ops.If) -> Step:
        condition, results = self.place(op.condition), self.all(op.outputs)
        sides = []
        for region in (op.then, op.orelse):
            step, last = self.block(region.block), region.block.last_op
            assert isinstance(last, ops.Yield)
            sides.append((step.run, step.waits, _copies(results, self.all(last.values))))
        (then, then_waits, give), (orelse, orelse_waits, give_orelse) = sides

        def choose(r: Frame) -> None:
            if r[condition]:
                then(r)
                give(r)
            else:
                orelse(r)
                give_orelse(r)

        def choose_waiting(r: Frame) -> Waiting:
            run, waits, last = (then, then_waits, give) if r[condition] else (orelse, orelse_waits, give_orelse)
            if waits:
                yield from run(r)
            else:
                run(r)
            last(r)

        waits = then_waits or orelse_waits
        return Step(choose_waiting if waits else choose, waits)

    def loop(self, op: ops.For) -> Step:
        start, stop, step = self.place(op.start), self.place(op.stop), op.step.data
        number = self.place(op.turn)

        def turns(r: Frame) -> Iterator[None]:
            for i in range(r[start], r[stop], step):
                r[number] = i
                yield

        return self.turns(op, turns)

    def units(self, op: ops.ForUnits) -> Step:
        units, number, read_words = self.place(op.units), self.place(op.turn), make_word_reader(self, op)
        follows = self.role is not None and self.role.threads > 1 and queue_of(op) is not None  # all lanes read the slot
        unready = self.role.find_unready(op) if self.role is not None and queue_of(op) is not None else ""

        def turns(r: Frame) -> Iterator[None]:
            if unready:
                raise Fault(unready)
            for t in r[units].sequence():
                r[number] = t
                if read_words is not None:
                    read_words(r, t)
                if follows:
                    r[0].lanes.unsynced = op
                yield

        return self.turns(op, turns)

    def turns(self, op: ops.Loop, each: Callable[[Frame], Iterator[None]]) -> Step:
        """Compile a loop.

        `each` puts the index of a turn, and the values that come with it, in their places.
        """
        last = op.body.block.last_op
        assert isinstance(last, ops.Yield)
        carried = self.all(op.inner)
        begin = _copies(carried, self.all(op.carried))
        advance = _copies(carried, self.all(last.values))
        give = _copies(self.all(op.outputs), carried)
        body = self.block(op.body.block)
        run = body.run

        def loop(r: Frame) -> None:
            begin(r)
            for _ in each(r):
                run(r)
                advance(r)
            give(r)

        def loop_waiting(r: Frame) -> Waiting:
            begin(r)
            for _ in each(r):
                yield from run(r)
                advance(r)
            give(r)

        return Step(loop_waiting if body.waits else loop, body.waits)


def _follow(step: Step, before: Run | None, after: Run | None) -> Step:
    """Return a step with what happens to the order of lanes before it, and after it."""
    if before is None and after is None:
        return step

    def run(r: Frame) -> None:
        if before is not None:
            before(r)
        step.run(r)
        if after is not None:
            after(r)

    def run_waiting(r: Frame) -> Waiting:
        if before is not None:
            before(r)
        yield from step.run(r)
        if after is not None:
            after(r)

    return Step(run_waiting if step.waits else run, step.waits)


def _copies(targets: Sequence[int], sources: Sequence[int]) -> Callable[[Frame], None]:
    """Return a function that copies all sources into all targets at once."""
    pairs = [(t, s) for t, s in zip(targets, sources, strict=True) if t != s]
    if not {t for t, _ in pairs} & {s for _, s in pairs}:

        def one_by_one(r: Frame) -> None:
            for t, s in pairs:
                r[t] = r[s]

        return one_by_one

    def at_once(r: Frame) -> None:
        for (t, _), value in zip(pairs, [r[s] for _, s in pairs], strict=True):
            r[t] = value

    return at_once


def _run_in_sequence(steps: Sequence[tuple[Run, Operation]]) -> Run:
    functions = [run for run, _ in steps]

    def run(r: Frame) -> None:
        function: Any = None
        try:
            for function in functions:
                function(r)
        except Exception as error:  # raised again with its place in the program
            raise _locate(error, next(op for f, op in steps if f is function), r[0]) from error

    return run


def _run_waiting(step: Run, op: Operation) -> Run:
    def run(r: Frame) -> Waiting:
        try:
            yield from step(r)
        except Exception as error:  # raised again with its place in the program
            raise _locate(error, op, r[0]) from error

    return run


def _locate(error: Exception, op: Operation, worker: Worker | None = None) -> Fault:
    """Return the error as a Fault that names the operation it comes from."""
    if isinstance(error, Fault) and error.located:
        return error
    name = getattr(op, "op", op.name)
    location = f" at {op.location.filename.data}:{op.location.line.data}" if isinstance(op.location, FileLineColLoc) else ""
    message = str(error) if isinstance(error, Fault) else f"{type(error).__name__}: {error}"
    fault = Fault(f"{worker.label + ', ' if worker else ''}`{name}`{location}: {message}")
    fault.located = True
    return fault


# ---- the machine
class _Launch:
    """Clusters of CTAs with their memory, barriers and workers."""

    def __init__(self, code: _Compiler, arguments: Mapping[str, Argument], ctas: int):
        if ctas < 1:
            raise ValueError(f"ctas is at least 1, found {ctas}")
        self.code, self.arguments = code, arguments
        units = next((d for d in code.declarations if isinstance(d, ops.Units)), None)
        self.units = Units(ctas if units is not None else 1, units is not None and units.dynamic is not None)
        self.per_cta = sum(role.workers.data for role, _, _ in code.roles)
        self.argument_values = self._bind_arguments()
        self.workers: list[tuple[Worker, Step]] = []
        self.meetings: dict[object, bool] = {}  # of accesses by lanes
        for cluster in range(self.units.clusters):
            self._add_cluster(cluster)

    def _bind_arguments(self) -> dict[int, Value]:
        """Return tensors and numbers by their places.

        Raises: ValueError for those that the kernel does not take.
        """
        values: dict[int, Value] = {}
        dims: dict[str, int] = {}
        unused = set(self.arguments)
        for d in self.code.declarations:
            name, place = d.symbol.data, self.code.place(d.result)
            if isinstance(d, ops.Tensor):
                t, kind = self.arguments[name], d.result.type
                assert isinstance(kind, types.TensorT)
                if not isinstance(t, torch.Tensor) or t.dtype != STORED[kind.element] or t.dim() != len(kind.sizes) or t.is_cuda:
                    raise ValueError(f"`{name}` is a {kind.element} tensor of {len(kind.sizes)} dims on the CPU")
                for dim, n in zip(kind.sizes, t.shape, strict=True):
                    if n != (dim if isinstance(dim, int) else dims.setdefault(dim, n)):
                        raise ValueError(f"a dim of `{name}`, {dim}, has the length {n}")
                values[place] = TensorArgument(name, t.detach(), kind.element)
                unused.discard(name)
        for d in self.code.declarations:
            if isinstance(d, ops.Parameter):
                name, place = d.symbol.data, self.code.place(d.result)
                value: Value = dims[name] if d.dim is not None else self.arguments[name]
                values[place] = f32(float(value)) if types.dtype_of(d.result) == F32 else value
                unused.discard(name)
        if unused:
            raise ValueError(f"`{self.code.kernel.symbol.data}` has no parameters {', '.join(sorted(unused))}")
        return values

    def _add_cluster(self, cluster: int) -> None:
        code, size = self.code, self.code.kernel.cluster.data
        arrays: dict[str, list[SharedArray]] = {d.symbol.data: [] for d in code.declarations if isinstance(d, ops.Shared)}
        rings: dict[tuple[str, int], list[Mbarrier]] = {}
        running = [self.per_cta] * size
        for rank in range(size):
            of_cta = (f" of CTA {rank}" if size > 1 else "") + (f" of cluster {cluster}" if self.units.clusters > 1 else "")
            frame = list(code.initial)
            joint = NamedBarrier(f"sync(){of_cta}", self.per_cta)
            frame[0] = Worker(f"the frame{of_cta}", rank, 0, joint, frame, running)
            for d in code.declarations:
                place = code.place(d.result)
                if isinstance(d, ops.Shared):
                    instances, kind = arrays[d.symbol.data], d.result.type
                    assert isinstance(kind, types.SharedT)
                    frame[place] = SharedArray(d.symbol.data, kind.element, kind.sizes, d.offset.data, instances)  # type: ignore[arg-type]
                    instances.append(frame[place])
                elif isinstance(d, ops.Barrier):
                    frame[place] = _make_barriers(d, of_cta, rings)
                elif isinstance(d, ops.Units):
                    frame[place] = UnitsOfCluster(self.units, cluster)
                else:
                    frame[place] = self.argument_values[place]
            share_bytes([of_name[rank] for of_name in arrays.values()])
            for array, place in code.wholes.items():
                frame[place] = frame[code.place(array)].whole()
            code.before.run(frame)
            for d in code.declarations:
                if isinstance(d, ops.Units):
                    self.units.count = frame[code.place(d.count)]
            for role, index, step in code.roles:
                for i in range(role.workers.data):
                    worker_frame = list(frame)
                    worker = Worker(f"{role.symbol.data}[{i}]{of_cta}", rank, i, joint, worker_frame, running)
                    if code.single_lane_roles is not None:
                        worker.lanes = LaneOrder(role.threads.data, self.meetings)
                    worker_frame[0], worker_frame[index] = worker, i
                    self.workers.append((worker, step))

    def run(self) -> None:
        """Run all workers to their end, each until it waits, round after round."""
        alive: list[tuple[Worker, Waiting]] = []
        for worker, step in self.workers:
            if step.waits:
                alive.append((worker, step.run(worker.frame)))
            else:
                step.run(worker.frame)
                worker.running[worker.rank] -= 1
        while alive:
            remaining, progress = [], False
            for worker, code in alive:
                if worker.wait is None or worker.wait.over():
                    progress = True
                    worker.wait = next(code, None)
                    if worker.wait is None:
                        worker.running[worker.rank] -= 1
                        continue
                remaining.append((worker, code))
            if not progress:
                raise Fault("deadlock: " + "; ".join(f"{w.label} waits for {w.wait}" for w, _ in alive))
            alive = remaining
        if self.code.single_lane_roles is not None and (apart := find_lanes_apart(self.code.kernel)):
            raise Fault(apart)


def _make_barriers(d: ops.Barrier, of_cta: str, rings: dict[tuple[str, int], list[Mbarrier]]) -> Any:
    """Make a barrier, or a ring of them.

    `rings`: the mbarriers of the CTAs before, by name and stage.
    """
    kind = d.result.type
    assert isinstance(kind, types.BarrierT)
    name, barriers = d.symbol.data, list[Value]()
    for stage in range(max(1, kind.stages.data)):
        text = f"{name}[{stage}]{of_cta}" if kind.stages.data else f"{name}{of_cta}"
        if not ops.entry(kind.kind.data).traits.hardware:
            instances = rings.setdefault((name, stage), [])
            barriers.append(Mbarrier(text, d.count.data, instances))
            instances.append(barriers[-1])
        else:
            barriers.append(NamedBarrier(text, d.count.data))
    return barriers if kind.stages.data else barriers[0]
