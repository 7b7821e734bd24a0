"""Emitted code of one role: variables, control flow, and operations in order.

The printers of primitives stand in `primitives` and in the targets.

Emitted code of a role's loop over work items, which counts or reads a queue in shared memory.

See ir/machine.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from xdsl.ir import Block, Operation, SSAValue

from ...ops.limits import count_pool_registers
from ...syntax.types import BOOL, F32
from ..analyses.liveness import find_peak, iterate_leaves
from ..ir import machine_ops as machine
from ..ir import ops
from ..ir.ir_types import ScalarT, TileT, dtype_of, is_tile
from ..ir.ir_walk import is_inlined, last
from ..lowered import TileRegisters
from ..select.join_ways import JOINED, ONE_LANE, UNJOINED
from ..select.runs import list_run
from ..select.ways import way_of
from .context import KernelContext
from .operator_text import strip
from .print_scope import RoleScope
from .tile_printer import TileEmitter
from .variable_storage import Storage, place_declarations


def ctype(queue: machine.Queue) -> str:
    """Return the template arguments of a queue's types."""
    return f"<{queue.slots.data}, {queue.words.data}>"


def strides(ctas: int) -> tuple[str, str]:
    """Return C++ expressions for the rank of a CTA (or its cluster) in the grid, and for the grid's size."""
    return ("int(blockIdx.x)", "int(gridDim.x)") if ctas == 1 else (f"int(blockIdx.x) / {ctas}", f"int(gridDim.x) / {ctas}")


def next_item(queue: machine.Queue, t: str) -> str:
    """Return the C++ expression for the work item after `t`.

    With dynamic scheduling it draws from an atomic counter, which the last draw of the launch resets to 0; otherwise it
    adds the stride between a CTA's items.
    """
    if queue.dynamic is not None:
        return "int(gridDim.x + atomicInc(counter, tile_count - 1))"
    return f"{t} + {strides(queue.ctas.data)[1]}"


@contextmanager
def emit_unit_loop(role: RoleScope, op: ops.ForUnits) -> Iterator[None]:
    """Emit the head and the tail of a role's loop over the work items; the body is emitted inside."""
    out, queue, t = role.out, machine.queue_of(op), role.name(op.turn)
    first, step = strides(role.kernel.cluster)
    lines: list[str] = []
    if role.kernel.starts_cta_per_unit:
        head = f"if (const int {t} = {first}; {t} < tile_count)"
    elif queue is None:
        head = f"for (int {t} = {first}; {t} < tile_count; {t} += {step})"
    else:
        name, unit = out.temp("queue"), out.temp("unit")
        out.line(f"cuir::TileQueue{ctype(queue)} {name}(slots);\nint {unit}[{queue.words.data}];")
        take = TAKES[way_of(op)].format(queue=name, unit=unit, ahead="take_ahead" if queue.ahead.data else "take_single")
        if queue.spare.data < 0 and op is queue.loops[0]:
            head = "while (true)"
            lines = [*_emit_posting(role, queue), f"const int {t} = {take};", f"if ({t} >= tile_count) break;"]
        else:
            head = f"for (int {t} = {take}; {t} < tile_count; {t} = {take})"
        lines += _declare_words(role, op, unit)
    with out.block(head):
        for line in lines:
            out.line(line)
        yield


def _declare_words(role: RoleScope, op: ops.ForUnits, unit: str) -> list[str]:
    """Return the declarations of values broadcast with a work item, as a role reads them.

    Args:
        unit: C++ name of the item's slot.
    """
    lines = []
    for word, value in op.reads:
        place = f"{unit}[{word.index}]"
        if word.copies > 1:  # one for each worker, in a row
            index = role.name(role.worker)
            last = word.copies - 1
            choice = "".join(f"{index} == {i} ? {unit}[{word.index + i}] : " for i in range(last))
            lines.append(f"{place} = {choice}{unit}[{word.index + last}];")
        if word.uniform:
            lines.append(f"{place} = __shfl_sync(~0u, {place}, 0);  // uniform")
        dtype, s = dtype_of(value), role.storage(value)
        text = f"__int_as_float({place})" if dtype == F32 else f"{place} != 0" if dtype == BOOL else place
        lines.append(f"const {s.ctype} {s.name} = {text};")
    return lines


def _emit_posting(role: RoleScope, queue: machine.Queue) -> list[str]:
    """Emit the declarations of a role that hands out, and return the lines that post the next item."""
    out, r = role.out, role.role
    assert isinstance(r, ops.Role)
    tickets, unit = out.temp("tickets"), out.temp("next")
    out.line(f"cuir::TileQueue{ctype(queue)} {tickets}(slots);\nint {unit} = int(blockIdx.x);")
    tests = [] if role.single and r.workers.data == 1 else [f"warpgroup == {r.warpgroup.data} && warp == {r.warp.data}"]
    tests += [] if role.single else ["lane == 0"]
    lines = [
        f"int unit_[{queue.words.data}] = {{{unit}}};",
        f"{tickets}.reserve();",
        f"{tickets}.post(unit_);",
        f"if ({unit} < tile_count) {unit} = {next_item(queue, unit)};",
    ]
    return [f"if ({' && '.join(tests)}) {{" if tests else "{", *(f"  {x}" for x in lines), "}"]


TAKES = {  # of a work item, by the selected way
    ONE_LANE: "{queue}.{ahead}({unit})",
    JOINED: "{queue}.take({unit}, lane)",
    UNJOINED: "cuir::take_unjoined({queue}, {unit}, lane)",
}
PRAGMAS = {"unrolled": "#pragma unroll", "rolled": "#pragma unroll 1", "nvcc's choice": None}  # of loops, by the selected way


class RolePrinter(RoleScope):
    """Printer of one role, or of the warp that hands out work items."""

    def __init__(self, kernel: KernelContext, role: ops.Role | machine.Queue, single: bool):
        super().__init__(kernel, role, single)
        self.elements = TileEmitter(self)
        self.places = self.elements.places
        self.declared = place_declarations(role, self.storages)

    @property
    def available_registers(self) -> int:
        """Registers of a thread: those of the role, or those of the launch."""
        assert isinstance(self.role, ops.Role)
        return self.role.registers.data or count_pool_registers(self.kernel.threads) // self.kernel.threads

    def estimate_registers(self) -> TileRegisters:
        """Return the registers of a thread that the role's tiles take at once."""
        assert isinstance(self.role, ops.Role)
        count, op = find_peak(self.role, self.storages.variables.liveness, self.threads)
        return TileRegisters(self.role.symbol.data, count, self.available_registers, self.span(op if op is not None else self.role))

    def declare(self, s: Storage) -> None:
        """Emit the declaration of a variable."""
        self.out.line(f"{s.ctype} {s.name}[{s.count}];" if s.count else f"{s.ctype} {s.name};")

    # ---- the text
    def emit_body(self) -> None:
        """Emit the role."""
        self.elements.start_statement()
        block = self.role.body.block
        assert isinstance(self.role, ops.Role)
        if any(is_tile(r) for op in self.role.walk() for r in op.results):
            rows = "16 * warp + lane / 4" if self.threads == 128 else "lane / 4"
            self.out.line(f"[[maybe_unused]] const int row = {rows}, col = 2 * (lane % 4);  // of this thread's first element in a tile")
        if any(True for _ in self.worker.uses):
            self.out.line(f"const int {self.name(self.worker)} = {self.kernel.worker_index(self.role)};")
        at = len(self.out.lines)
        self.emit_block(block)
        self.out.insert(at, self.start)

    def emit_block(self, block: Block) -> None:
        """Emit the operations of a block, in batches that are printed together."""
        skipped: set[Operation] = set()
        for op in block.ops:
            if op in skipped:
                continue
            batch = list_run(op)
            for s in (s for part in batch for s in self.declared.get(part, [])):
                self.declare(s)
            skipped |= set(batch)
            self.emit_statement(op, batch)

    def emit_statement(self, op: Operation, batch: Sequence[Operation]) -> None:
        """Emit an operation."""
        if isinstance(op, (ops.At, ops.Yield, ops.Constant, machine.HandOut)) or (len(op.results) == 1 and is_inlined(op.results[0])):
            return
        self.elements.start_statement()
        self.out.mark(self.span(op))
        if isinstance(op, ops.Apply):
            self._emit_apply(op)
        elif isinstance(op, ops.Perform):
            self._emit_perform(op, batch)
        elif isinstance(op, ops.If):
            self._emit_if(op)
        elif isinstance(op, ops.For):
            self._emit_for(op)
        elif isinstance(op, ops.ForUnits):
            self._emit_for_units(op)
        else:
            self._emit_machine(op)

    def _emit_machine(self, op: Operation) -> None:
        """Emit an operation that only the machine has."""
        printer = self.target.printer(op.name)
        for result in op.results:
            s = self.storage(result)
            if s.constant and s.count:
                self.declare(s)
        if printer is not None:
            printer(self, op)
        else:  # elementwise
            self.elements.assign(self.storage(op.results[0]), op.results[0], op)

    def _emit_apply(self, op: ops.Apply) -> None:
        s = self.storage(op.result)
        printer = self.target.printer(op.op)
        if isinstance(op.result.type, ScalarT):
            head = f"const {s.ctype} " if s.constant else ""
            self.out.line(f"{head}{s.name} = {strip(self.elements.apply(op, self.elements.scalar))};")
            return
        if s.constant:
            self.declare(s)
        if printer is not None:
            printer(self, op)
        else:
            self.elements.assign(s, op.result, op)

    def _emit_perform(self, op: ops.Perform, batch: Sequence[Operation]) -> None:
        printer = self.target.printer(op.op)
        assert printer is not None, op.op
        for result in op.results:
            s = self.storage(result)
            if s.constant and s.count:
                self.declare(s)
        for part in batch[1:]:
            for result in part.results:
                if not is_inlined(result) and isinstance(result.type, TileT) and self.storage(result).constant:
                    self.declare(self.storage(result))
        printer(self, op) if len(batch) == 1 else printer(self, op, batch)

    # ---- control flow
    def _emit_if(self, op: ops.If) -> None:
        self.emit_branch(op, strip(self.elements.scalar(op.condition)))

    def emit_branch(self, op: ops.Branch, condition: str) -> None:
        """Emit a branch and the values of its results."""
        with self.out.block(f"if ({condition})"):
            self._emit_region(op.then.block, op.results)
        if len(op.orelse.block.ops) > 1 or self._collect_moves(op.results, last(op.orelse).values):
            with self.out.block("else"):
                self._emit_region(op.orelse.block, op.results)

    def _emit_region(self, block: Block, targets: Sequence[SSAValue]) -> None:
        self.emit_block(block)
        end = block.last_op
        assert isinstance(end, ops.Yield)
        self.emit_moves(targets, end.values)

    def _emit_for(self, op: ops.For) -> None:
        self.emit_moves(op.inner, op.carried)
        counter = self.name(op.turn)
        start, step = strip(self.elements.scalar(op.start)), op.step.data
        stop = self.elements.scalar(op.stop)  # keeps its parentheses: a choice binds less than a comparison
        sign = "<" if step > 0 else ">"
        move = f"++{counter}" if step == 1 else f"--{counter}" if step == -1 else f"{counter} += {step}"
        if (pragma := PRAGMAS[way_of(op)]) is not None:
            self.out.line(pragma)
        with self.out.block(f"for (int {counter} = {start}; {counter} {sign} {stop}; {move})"):
            self._emit_region(op.body.block, op.inner)
        self.emit_moves(op.results, op.inner)

    def _emit_for_units(self, op: ops.ForUnits) -> None:
        self.emit_moves(op.inner, op.carried)
        with emit_unit_loop(self, op):
            self._emit_region(op.body.block, op.inner)
        self.emit_moves(op.results, op.inner)

    # ---- values where paths meet
    def _collect_moves(self, targets: Sequence[SSAValue], sources: Sequence[SSAValue]) -> list[tuple[Storage, SSAValue]]:
        """Return the variables that need a new value, with its source."""
        moves = []
        for target, source in zip(targets, sources, strict=True):
            to = self.storage(target)
            if is_inlined(source) or source in self.kernel.frame or self.storage(source) is not to:
                moves.append((to, source))
        return moves

    def emit_moves(self, targets: Sequence[SSAValue], sources: Sequence[SSAValue]) -> None:
        """Emit the assignment of variables, as if all at once: none is written before it is read."""
        self._emit_ordered_moves(self._collect_moves(targets, sources))

    def _emit_ordered_moves(self, remaining: list[tuple[Storage, SSAValue]]) -> None:
        """Emit moves in an order that reads each variable before it is overwritten.

        A copy to a temporary breaks a cycle.
        """
        while remaining:
            reads = [{self.storages.get(leaf) for leaf in iterate_leaves(source)} for _, source in remaining]
            free = [i for i, (to, _) in enumerate(remaining) if not any(to in r for j, r in enumerate(reads) if j != i)]
            if free:
                self.elements.start_statement()
                self.elements.assign(*remaining.pop(free[0]))
                continue
            to, source = remaining.pop(0)  # a cycle: its first value waits in a temporary
            saved = replace(to, name=self.out.temp("kept"))
            self.declare(saved)
            self.elements.start_statement()
            self.elements.assign(saved, source)
            self._emit_ordered_moves(remaining)
            self._emit_copy(to, saved)
            return

    def _emit_copy(self, to: Storage, source: Storage) -> None:
        if not to.count:
            self.out.line(f"{to.name} = {source.name};")
            return
        self.out.line(f"#pragma unroll\nfor (int i_ = 0; i_ < {to.count}; ++i_) {to.name}[i_] = {source.name}[i_];")
