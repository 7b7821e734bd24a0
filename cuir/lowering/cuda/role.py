"""The text of one role: variables, control flow, operations in order. What a primitive is printed as stands in `primitives` and in the targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import FileLineColLoc
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from ...text.diagnostics import CuirError
from ...text.source import Span
from ..facts.lane_joins import LaneJoins, lane_joins
from ..facts.stores import stores_by_warps
from ..ir import machine, ops
from ..ir.types import ScalarT, TileT, is_tile
from ..passes.fusion import inlined
from ..passes.rewriting import last
from .elements import LOOP, Elements
from .operators import strip
from .places import Places
from .storage import Allocation, Storage, count_of, fragment, leaves, tied
from .units import units

if TYPE_CHECKING:
    from .frame import KernelPrinter


class RolePrinter:
    """Prints one role, or what the warp that hands out units does. `single`: it runs on one lane of its warp."""

    def __init__(self, kernel: KernelPrinter, role: ops.Role | machine.Queue, single: bool):
        self.kernel, self.role, self.out, self.single = kernel, role, kernel.out, single
        self.target = kernel.target
        self.threads = role.threads.data if isinstance(role, ops.Role) else 32
        self.body_block = role.body.block
        self.allocation = Allocation(self.body_block, self.threads, set(kernel.names))
        self.elements, self.places = Elements(self), Places(self)
        self.declared: dict[int, list[Storage]] = {}  # id of an operation -> variables declared before it
        self._made: dict[SSAValue, Storage] = {}
        self._place_declarations()
        joins = lane_joins(role) if isinstance(role, ops.Role) else LaneJoins()
        self.joins = joins.before  # before which the lanes of the worker meet
        self.reads_what_it_stores = joins.inside  # stores between whose reads and writes they meet
        self.stores_by_warps = isinstance(role, ops.Role) and stores_by_warps(role)
        self._once: dict[str, str] = {}  # text -> name of what is computed once, at the start of the role
        self._start: list[str] = []

    # ---- lookups
    def span(self, op: object) -> Span:
        """Where in the program an operation comes from."""
        location = op.location if isinstance(op, Operation) else None
        return self.kernel.span_of(location if isinstance(location, FileLineColLoc) else None)

    def storage(self, value: SSAValue) -> Storage:
        return self.allocation.of(value)

    def storage_or_none(self, value: SSAValue) -> Storage | None:
        return self.allocation.storage.get(value)

    def once(self, ctype: str, stem: str, text: str) -> str:
        """The name of a value that never changes, computed at the start of the role."""
        if text not in self._once:
            self._once[text] = self.out.temp(stem)
            self._start.append(f"{ctype} {self._once[text]} = {text};")
        return self._once[text]

    def made_since(self, wait: ops.Perform) -> list[SSAValue]:
        """Full tiles computed in the wait's block under the products that it waits for, and read behind it."""
        sources = {id(v) for v in wait.arguments}
        live, found = self.allocation.liveness.after[wait], list[SSAValue]()
        op = wait.prev_op
        while op is not None and not any(id(r) in sources for r in op.results):
            for r in op.results:
                full = isinstance(r.type, TileT) and r.type.layout.data == "full"
                if full and not inlined(r) and r in live and not (isinstance(op, ops.Perform) and op.entry.effects.group):
                    found.append(r)
            op = op.prev_op
        return found[::-1]

    @property
    def storing_lane(self) -> str:
        """A condition that the threads meet which issue the worker's asynchronous stores."""
        return "if (lane == 0) " if self.stores_by_warps else self.first_lane

    def name(self, value: SSAValue) -> str:
        """The name of a stored scalar, or of one of the kernel's frame."""
        found = self.kernel.frame.get(value)
        return found if found is not None else self.storage(value).name

    def fragment(self, t: TileT) -> object:
        return fragment(t, self.threads)

    def fresh(self, value: SSAValue) -> Storage:
        """An array for a tile that has no place of its own."""
        t = value.type
        assert isinstance(t, TileT)
        from .storage import CTYPE, HALVES

        packed = t.element in HALVES and t.layout.data == "full"
        count = count_of(t, self.threads)
        return Storage(self.out.temp("t"), "uint32_t" if packed else CTYPE[t.element], count // 2 if packed else count, packed)

    # ---- lanes of a worker
    def join(self) -> None:
        """What any lane did before is done before what any lane does after."""
        if self.single:
            return
        if self.threads == 32:
            self.out.line("__syncwarp();")
        else:
            assert isinstance(self.role, ops.Role)
            self.out.line(f"cuir::bar_sync({self.kernel.worker_barrier(self.role)}, 128);")

    @property
    def first_lane(self) -> str:
        """A condition that one thread of the worker meets; empty on a single lane."""
        if self.single:
            return ""
        return "if (lane == 0) " if self.threads == 32 else "if (threadIdx.x % 128 == 0) "

    # ---- variables
    def _place_declarations(self) -> None:
        """Variables of several values are declared in the innermost block that holds all that is made of them and read."""
        paths: dict[int, list[list[tuple[Block, Operation | None]]]] = {}
        storages: dict[int, Storage] = {}

        def touch(value: SSAValue, path: list[tuple[Block, Operation | None]]) -> None:
            s = self.allocation.storage.get(value)
            if s is not None and not s.constant:
                storages[id(s)] = s
                paths.setdefault(id(s), []).append(path)

        def visit(block: Block, path: list[tuple[Block, Operation | None]]) -> None:
            for op in block.ops:
                here = [*path, (block, op)]
                for operand in op.operands:
                    for leaf in leaves(operand):
                        touch(leaf, here)
                for result in op.results:
                    touch(result, here)
                for region in op.regions:
                    if isinstance(op, (ops.For, ops.ForUnits)):  # what a loop carries is set before it
                        for argument in region.block.args[len(region.block.args) - len(op.carried) :]:
                            touch(argument, here)
                    visit(region.block, here)

        visit(self.body_block, [])
        for key, found in paths.items():
            depth = 0
            while all(len(p) > depth for p in found) and len({id(p[depth][0]) for p in found}) == 1:
                depth += 1
                if len({id(p[depth - 1][1]) for p in found}) != 1:
                    break
            block = found[0][depth - 1][0]
            order = {id(op): i for i, op in enumerate(block.ops)}
            first = min((p[depth - 1][1] for p in found), key=lambda op: order[id(op)])
            self.declared.setdefault(id(first), []).append(storages[key])

    def declare(self, s: Storage) -> None:
        self.out.line(f"{s.ctype} {s.name}[{s.count}];" if s.count else f"{s.ctype} {s.name};")

    # ---- the text
    def body(self) -> None:
        self.elements.hoisted = {}
        block = self.body_block
        assert isinstance(self.role, ops.Role)
        if any(is_tile(r) for op in self.role.walk() for r in op.results):
            rows = "16 * warp + lane / 4" if self.threads == 128 else "lane / 4"
            self.out.line(f"[[maybe_unused]] const int row = {rows}, col = 2 * (lane % 4);  // of this thread's first element in a tile")
        if any(True for _ in block.args[0].uses):
            self.out.line(f"const int {self.name(block.args[0])} = {self.kernel.worker_index(self.role)};")
        at = len(self.out.lines)
        self.block(block)
        self.out.insert(at, self._start)

    def block(self, block: Block) -> None:
        skipped: set[Operation] = set()
        for op in block.ops:
            if op in skipped:
                continue
            printer = self.target.printer(op.op) if isinstance(op, ops.Perform) else None
            batch = [op] if printer is None else printer.batch(op)
            for s in (s for part in batch for s in self.declared.get(id(part), [])):
                self.declare(s)
            skipped |= set(batch)
            self.statement(op, batch)

    def statement(self, op: Operation, batch: Sequence[Operation]) -> None:
        if isinstance(op, (ops.At, ops.Yield, ops.Constant, machine.HandOut)) or (len(op.results) == 1 and inlined(op.results[0])):
            return
        self.elements.hoisted = {}
        self.out.mark(self.span(op))
        if any(part in self.joins for part in batch):
            self.join()
        if isinstance(op, ops.Apply):
            self._apply(op)
        elif isinstance(op, ops.Perform):
            self._perform(op, batch)
        elif isinstance(op, ops.If):
            self._if(op)
        elif isinstance(op, ops.For):
            self._for(op)
        elif isinstance(op, ops.ForUnits):
            self._for_units(op)
        else:
            self._machine(op)

    def _machine(self, op: Operation) -> None:
        """An operation that only the machine has."""
        printer = self.target.printer(op.name)
        for result in op.results:
            s = self.storage(result)
            if s.constant and s.count:
                self.declare(s)
        if printer is not None:
            printer(self, op)
        else:  # an elementwise one
            self.elements.into(self.storage(op.results[0]), op.results[0], op)

    def _apply(self, op: ops.Apply) -> None:
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
            self.elements.into(s, op.result, op)

    def _perform(self, op: ops.Perform, batch: Sequence[Operation]) -> None:
        printer = self.target.printer(op.op)
        if printer is None:
            raise CuirError.of("L001", f"the lowering has no meaning for `{op.entry.written}` as a statement", self.span(op))
        for result in op.results:
            s = self.storage(result)
            if s.constant and s.count:
                self.declare(s)
        for part in batch[1:]:
            for result in part.results:
                if not inlined(result) and isinstance(result.type, TileT) and self.storage(result).constant:
                    self.declare(self.storage(result))
        printer(self, op) if len(batch) == 1 else printer(self, op, batch)

    # ---- control flow
    def _if(self, op: ops.If) -> None:
        self.branch(op, strip(self.elements.scalar(op.condition)))

    def branch(self, op: ops.Branch, condition: str) -> None:
        with self.out.block(f"if ({condition})"):
            self._region(op.then.block, op.results)
        if len(op.orelse.block.ops) > 1 or self._moves(op.results, last(op.orelse).values):
            with self.out.block("else"):
                self._region(op.orelse.block, op.results)

    def _region(self, block: Block, targets: Sequence[SSAValue]) -> None:
        self.block(block)
        end = block.last_op
        assert isinstance(end, ops.Yield)
        self.move(targets, end.values)

    def _for(self, op: ops.For) -> None:
        turn, *carried = op.body.block.args
        self.move(carried, op.carried)
        counter = self.name(turn)
        start, stop, step = strip(self.elements.scalar(op.start)), strip(self.elements.scalar(op.stop)), op.step.data
        sign = "<" if step > 0 else ">"
        move = f"++{counter}" if step == 1 else f"--{counter}" if step == -1 else f"{counter} += {step}"
        if not self.single:
            self.out.line("#pragma unroll 1")  # copies of the body cost more than the branch
        with self.out.block(f"for (int {counter} = {start}; {counter} {sign} {stop}; {move})"):
            self._region(op.body.block, carried)
        self.move(op.results, carried)

    def _for_units(self, op: ops.ForUnits) -> None:
        carried = op.body.block.args[len(op.body.block.args) - len(op.carried) :]
        self.move(carried, op.carried)
        with units(self, op):
            self._region(op.body.block, carried)
        self.move(op.results, carried)

    # ---- values where paths meet
    def _moves(self, targets: Sequence[SSAValue], sources: Sequence[SSAValue]) -> list[tuple[Storage, SSAValue]]:
        found = []
        for target, source in zip(targets, sources, strict=True):
            to = self.storage(target)
            if inlined(source) or source in self.kernel.frame or self.storage(source) is not to:
                found.append((to, source))
        return found

    def move(self, targets: Sequence[SSAValue], sources: Sequence[SSAValue]) -> None:
        """Gives variables their values, all at once: none is written before it is read."""
        left = self._moves(targets, sources)
        while left:
            reads = [
                {id(self.allocation.storage[leaf]) for leaf in leaves(source) if leaf in self.allocation.storage} for _, source in left
            ]
            free = [i for i, (to, _) in enumerate(left) if not any(id(to) in r for j, r in enumerate(reads) if j != i)]
            if free:
                self.elements.hoisted = {}
                self.elements.into(*left.pop(free[0]))
                continue
            to, source = left.pop(0)  # a circle: its first value waits in a variable of its own
            saved = Storage(self.out.temp("kept"), to.ctype, to.count, to.packed)
            self.declare(saved)
            self.elements.into(saved, source)
            self.move_rest(left)
            self._copy(to, saved)
            return

    def move_rest(self, left: list[tuple[Storage, SSAValue]]) -> None:
        for to, source in left:
            self.elements.into(to, source)

    def _copy(self, to: Storage, source: Storage) -> None:
        if not to.count:
            self.out.line(f"{to.name} = {source.name};")
            return
        self.out.line(f"#pragma unroll\nfor (int i_ = 0; i_ < {to.count}; ++i_) {to.name}[i_] = {source.name}[i_];")


__all__ = ["LOOP", "BlockArgument", "RolePrinter", "tied"]
