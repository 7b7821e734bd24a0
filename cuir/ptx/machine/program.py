"""A kernel and the functions that it calls, as basic blocks of functions on vectors.

An instruction that computes lane by lane gets its meaning from `isa`; one that touches what threads share is an action, a
function entered with `@action` in a file actions_*.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from ...text.diagnostics import CuirError
from ...text.source import Span
from ..isa.instruction_table import Opcode, UnknownForm, split_opcode
from ..module import Address, Function, Instruction, Module, Operand, Variable
from .block_order import order_blocks
from .groups import Group
from .lane_runs import bind_meaning, fuse_lane_steps
from .operands import Array, Fetch, Reader, RegisterFile, list_parts
from .product_runs import fuse_products

GLOBAL_BASE = 0x7F0000000000
CONST_BASE = 0x7E0000000000
PARAM_BASE = 0x7D0000000000
SHARED_WINDOW = 0x10000000000  # generic address of the first byte of shared memory
LOCAL_WINDOW = 0x20000000000
SHARED_BASE = 0x400  # the first 1 KB belongs to the system
CTA_STEP = 1 << 24  # from an address in shared memory to the same one in the next CTA of the cluster
FUNCTION_BASE = 0x100
EXIT = -1
Step = Callable[[Group], None]
Moves = list[tuple[int, Array | None]]  # targets, and the threads (None: all) that go there


@dataclass(eq=False)
class Block:
    """Basic block.

    Attributes:
        index: Its number among all blocks.
        step_places: The instruction of each step.
        first, last: Instructions, by their numbers in the program.
        gathers: Registers whose values the block reads.
        scatters: Registers that it writes and that are read later.
        end: Function that tells where threads go on.
        meets: "" for none, "warp" or "warpgroup" if whole ones must stand here, "mask" if the lanes of `mask` must.
        touched: Registers that it reads or writes, other than by a product.
        asked: The same, and the registers that hold A of a product.
        product_writes: Registers of products that it writes, with the register of which each becomes a copy, if any.
        waits: Whether threads wait at a barrier of the CTA behind the steps.
        order: Place in the order in which blocks are run.
    """

    index: int
    first: int
    function: str
    last: int = 0
    steps: list[Step] = field(default_factory=list)
    step_places: list[int] = field(default_factory=list)
    gathers: tuple[int, ...] = ()
    scatters: tuple[int, ...] = ()
    end: Callable[[Group], Moves] = lambda g: []
    successors: tuple[int, ...] = ()
    meets: str = ""
    touched: frozenset[int] = frozenset()
    asked: frozenset[int] = frozenset()
    product_writes: tuple[tuple[int, int | None], ...] = ()
    mask: Fetch | None = None
    waits: bool = False
    order: int = 0


@dataclass
class Binding:
    """What an action is made from.

    Attributes:
        place: Number of the instruction in the program.
    """

    instruction: Instruction
    op: Opcode
    reader: Reader
    place: int
    block: Block

    def fetch(self, i: int, type_name: str) -> Fetch:
        """Return a function that reads an operand."""
        return self.reader.fetch(self.get(i), type_name)

    def note_mask(self, i: int) -> None:
        """Note the operand whose lanes must stand before the block, if the block begins here."""
        if self.place == self.block.first:
            self.block.mask = self.fetch(i, "b32")

    def get(self, i: int) -> Operand:
        """Return an operand. Raises UnknownForm if there are fewer."""
        if i >= len(self.instruction.operands):
            raise UnknownForm(f"{len(self.instruction.operands)} operands of `{self.op.text}`")
        return self.instruction.operands[i]


Action = Callable[[Binding], Step]
ACTIONS: dict[str, Action] = {}
MEETING = {"shfl": "mask", "vote": "mask", "match": "mask", "redux": "mask", "elect": "mask", "mma": "warp", "ldmatrix": "warp"} | {
    "stmatrix": "warp",
    "movmatrix": "warp",
    "bar": "warp",
    "barrier": "warp",
    "tensormap": "warp",
    "wgmma": "warpgroup",
}

ASSERTION = "__assertfail"  # what a failing `assert` calls, whose body is the driver's
# Behind these a block ends: branches, and what other threads may wait for, so that a schedule can let them go on there.
ENDING = ("bra", "brx", "ret", "exit", "trap", "brkpt", "mbarrier", "atom", "fence", "membar", "wgmma")


def action(*names: str) -> Callable[[Action], Action]:
    """Enter the maker of the steps of these instructions."""

    def enter(maker: Action) -> Action:
        ACTIONS.update(dict.fromkeys(names, maker))
        return maker

    return enter


def make_unknown(instruction: Instruction, function: str, reason: str) -> CuirError:
    """Make the error of an instruction that has no meaning here."""
    place = f"{instruction.chain[0].path}:{instruction.chain[0].line}, " if instruction.chain else ""
    return CuirError.of(
        "O123", f"{place}line {instruction.line} of the PTX of `{function}`: the machine does not know {reason}", None, "nothing is skipped"
    )


class Program:
    """A kernel, ready to run.

    Attributes:
        blocks: Basic blocks of all functions; the kernel begins at block 0.
        instructions: Instructions, with the function of each.
        local_bytes: Bytes of local memory of a thread: variables, and parameters of functions.
        shared_bytes: Bytes of shared memory of a CTA, without those that a launch adds.
        uses: Registers that each instruction reads, and writes; known where there are products of warpgroups.
        named: Variables and functions that instructions name.
        product_registers: Registers of such products, and those that are copied to them.
    """

    @cached_property
    def has_mbarriers(self) -> bool:
        """Return whether the kernel uses mbarriers."""
        return any(i.op.startswith("mbarrier.init") for i, _ in self.instructions)

    def __init__(self, module: Module, kernel: str, symbols: dict[str, int]):
        self.module, self.kernel = module, module.functions[kernel]
        self.blocks: list[Block] = []
        self.instructions: list[tuple[Instruction, str]] = []
        self.file = RegisterFile()
        self.symbols = dict(symbols)
        self.local_bytes, self.shared_bytes = 0, 0
        self.entries: dict[str, int] = {}
        self.param_places: dict[tuple[str, str], int] = {}
        self.returns: dict[str, list[int]] = {}
        self._edges: dict[int, list[int]] = {}
        self.uses: list[tuple[frozenset[int], frozenset[int]]] = []
        self.product_registers: set[int] = set()
        self.named: set[str] = set()
        self.spans: dict[int, Span] = {}  # of instructions that findings have named
        self.matrix_places: dict[tuple[object, ...], tuple[Array, Array]] = {}  # of products in shared memory: chunks, entries
        self.product_clashes: dict[tuple[int, int], bool] = {}  # whether a product must wait for another one, by their places
        names = self._find_called(kernel)
        for offset, name in enumerate(names):
            self.symbols.setdefault(name, FUNCTION_BASE + offset)
        self._place_shared(names)
        for name in names:
            self._bind_function(module.functions[name])
        self._link()
        self._note_products()

    # ---- layout
    def _find_called(self, kernel: str) -> list[str]:
        """Return the kernel and the functions that it calls, directly or not. Raises CuirError O123 for a recursion."""
        found: list[str] = []

        def visit(name: str, callers: tuple[str, ...]) -> None:
            if name in callers:
                raise CuirError.of("O123", f"the function `{name}` of the PTX calls itself, which the machine does not run")
            if name not in found:
                found.append(name)
            for i in self.module.functions[name].instructions:
                for target in _find_callees(i, self.module):
                    visit(target, (*callers, name))

        visit(kernel, ())
        return found

    def _place_shared(self, names: Sequence[str]) -> None:
        """Give each variable of shared memory its address; those without a size share what the launch adds."""
        end = SHARED_BASE
        used = {w for n in names for i in self.module.functions[n].instructions for o in i.operands for w in _list_words(o)}
        declared = [v for v in self.module.variables.values() if v.space == "shared" and v.name in used]
        declared += [v for n in names for v in self.module.functions[n].variables if v.space == "shared"]
        for v in (v for v in declared if v.size is not None):
            end = -(-end // v.alignment) * v.alignment
            self.symbols[v.name] = end
            end += v.size or 0
        dynamic = [v for v in declared if v.size is None]
        end = -(-end // max([16, *(v.alignment for v in dynamic)])) * max([16, *(v.alignment for v in dynamic)]) if dynamic else end
        self.symbols |= {v.name: end for v in dynamic}
        self.shared_bytes = end - SHARED_BASE

    def _place_local(self, function: Function) -> dict[str, int]:
        """Give each variable of a function in local memory, and each parameter, its address."""
        places: dict[str, int] = {}
        own = [v for v in function.variables if v.space in ("local", "param")]
        if not function.is_entry:
            own += [*function.parameters, *function.results]
        for v in own:
            if v.size is None:
                raise CuirError.of("O123", f"`{v.name}` in `{function.name}` has no size")
            self.local_bytes = -(-self.local_bytes // max(v.alignment, 8)) * max(v.alignment, 8)
            places[v.name] = self.local_bytes
            self.param_places[function.name, v.name] = self.local_bytes
            self.local_bytes += v.size
        return places

    # ---- blocks
    def _bind_function(self, function: Function) -> None:
        """Bind the instructions of a function to blocks."""
        for name, type_name in function.registers.items():
            self.file.add(function.name, name, type_name)
        self.file.add(function.name, "%carry", "pred")
        local = self._place_local(function)
        symbols = self.symbols | local
        if function.is_entry:
            offset = PARAM_BASE
            for v in function.parameters:
                offset = -(-offset // v.alignment) * v.alignment
                symbols[v.name] = offset
                offset += v.size or 0
        self.entries[function.name] = len(self.blocks)
        labels: dict[str, int] = {}
        block: Block | None = None
        pending: list[tuple[Block, Instruction, Opcode]] = []
        met: tuple[str, Operand] | None = None
        for i in function.instructions:
            op = split_opcode(i.op)
            alone = op.name in ("call", "bar", "barrier")
            meets = op.name in MEETING and _needs_others(op)
            if block is None or i.labels or alone or (meets and not _stands_together(met, op, i)):
                met = None
                following = Block(len(self.blocks), len(self.instructions), function.name)
                self.blocks.append(following)
                block = following
                labels |= dict.fromkeys(i.labels, len(self.blocks) - 1)
            if meets and met is None:
                met = (op.name, _get_mask(op, i))
            block.last = len(self.instructions) + 1
            self.instructions.append((i, function.name))
            pending.append((block, i, op))
            if op.name in ENDING or alone or op.has("volatile", "relaxed", "acquire", "release", "acq_rel"):
                block = None
        first = self.entries[function.name]
        uses: dict[int, tuple[set[int], set[int]]] = {}
        place = self.blocks[first].first
        for block, i, op in pending:
            reader = Reader(function.name, self.file, symbols)
            try:
                self._bind(Binding(i, op, reader, place, block), labels)
            except UnknownForm as reason:
                raise make_unknown(i, function.name, str(reason)) from None
            place += 1
            reads, writes = uses.setdefault(block.index, (set(), set()))
            self.uses.append((frozenset(reader.reads), frozenset(reader.writes)))
            self.named |= reader.named
            reads |= (reader.reads | (reader.writes if i.guard is not None else set())) - writes
            writes |= reader.writes
        self._note_uses(uses)

    def _note_uses(self, uses: dict[int, tuple[set[int], set[int]]]) -> None:
        """Find the registers that blocks of a function read, and those that they must keep."""
        for index, (reads, writes) in uses.items():
            self.blocks[index].gathers = tuple(sorted(reads))
            self.blocks[index].scatters = tuple(sorted(writes))

    def _note_products(self) -> None:
        """Note what blocks do with the registers of products."""
        products = [n for n, (i, _) in enumerate(self.instructions) if i.op.startswith("wgmma.mma")]
        if not products:
            return
        kept = self.product_registers
        firsts: dict[int, set[int]] = {}  # registers of A, by product
        for n in products:
            i, function = self.instructions[n]
            firsts[n] = {self.file.numbers[function, r] for r in (i.operands[1] if isinstance(i.operands[1], tuple) else ())}
            kept |= firsts[n].union(self.file.numbers[function, r] for r in list_parts(i.operands[0]))
        copies: dict[int, set[int]] = {}
        for n, (i, _) in enumerate(self.instructions):
            reads, writes = self.uses[n]
            if is_copy(i) and len(reads) == 1:
                for w in writes:
                    copies.setdefault(w, set()).update(reads)
        work = list(kept)
        while work:
            for source in copies.get(work.pop(), ()):
                if source not in kept:
                    kept.add(source)
                    work.append(source)
        for block in self.blocks:
            own = [n for n in range(block.first, block.last) if not self.instructions[n][0].op.startswith("wgmma")]
            block.touched = frozenset().union(*(r | w for r, w in (self.uses[n] for n in own))) & kept
            block.asked = block.touched.union(*(first for n, first in firsts.items() if block.first <= n < block.last))
            found: list[tuple[int, int | None]] = []
            for n in own:
                reads, writes = self.uses[n]
                if is_copy(self.instructions[n][0]):
                    found += [(w, r) for w in writes & kept for r in reads if len(reads) == 1]
                else:
                    found += [(w, None) for w in writes & kept]
            block.product_writes = tuple(found)

    def _link(self) -> None:
        """Find the order of blocks, and drop results that nobody reads."""
        for n, block in enumerate(self.blocks):
            called = _find_callees(self.instructions[block.last - 1][0], self.module)
            self._edges[n] = [*(t for t in block.successors if t >= 0), *(self.entries[t] for t in called)]
        for name, targets in self.returns.items():
            for n, block in enumerate(self.blocks):
                if block.function == name and self.instructions[block.last - 1][0].op.startswith("ret"):
                    self._edges[n] += targets
        for block, place in zip(self.blocks, order_blocks(len(self.blocks), self._edges)):
            block.order = place
        live: list[set[int]] = [set() for _ in self.blocks]
        work = list(range(len(self.blocks)))
        sources: dict[int, list[int]] = {}
        for n, targets in self._edges.items():
            for t in targets:
                sources.setdefault(t, []).append(n)
        while work:
            n = work.pop()
            block = self.blocks[n]
            after = set().union(*(live[t] for t in self._edges[n]))
            before = set(block.gathers) | (after - set(block.scatters))
            if before != live[n]:
                live[n] = before
                work += sources.get(n, [])
        for n, block in enumerate(self.blocks):
            after = set().union(*(live[t] for t in self._edges[n]))
            block.scatters = tuple(r for r in block.scatters if r in after)
            rest = (self.uses[p][0] for p in range(block.first, block.last) if p not in block.step_places)
            needed = frozenset(after).union(*rest)
            steps, uses = fuse_products(block.steps, [self.uses[p] for p in block.step_places], needed)
            block.steps = fuse_lane_steps(steps, uses, needed)

    def _bind(self, b: Binding, labels: dict[str, int]) -> None:
        """Bind one instruction."""
        name = b.op.name
        if name in ("bra", "brx", "ret", "exit", "trap", "brkpt", "call"):
            self._bind_end(b, labels)
            return
        following = self._find_following(b.block)
        b.block.successors = (following,)
        b.block.end = lambda g: [(following, None)]
        if name in MEETING and b.place == b.block.first and _needs_others(b.op):
            b.block.meets = "mask" if name == "bar" and b.op.has("warp") else MEETING[name]
        if name in ACTIONS:
            self._add_step(b, self._guard(b, ACTIONS[name](b)))
            return
        self._add_step(b, self._guard(b, bind_meaning(b.op, b.instruction.operands, b.reader), everywhere=True))

    @staticmethod
    def _add_step(b: Binding, step: Step) -> None:
        b.block.steps.append(step)
        b.block.step_places.append(b.place)

    def _guard(self, b: Binding, step: Step, everywhere: bool = False) -> Step:
        """Make a step run where its predicate holds; everywhere: it may run for all, and keep results there."""
        guard = b.instruction.guard
        if guard is None:
            return step
        used, written = tuple(b.reader.reads), tuple(b.reader.writes)
        test = b.reader.fetch(guard[0] if guard[1] else "!" + guard[0], "pred")

        def run(g: Group) -> None:
            p = g.spread(test(g))
            if p.all():
                step(g)
            elif p.any():
                if everywhere:
                    old = [g.regs[r] for r in written]
                    step(g)
                    for r, value in zip(written, old):
                        g.regs[r] = np.where(p, g.regs[r], value)
                    return
                chosen = np.flatnonzero(p)
                part = Group(g.machine, g.slots[chosen], {r: g.regs[r][chosen] for r in {*used, *written}})
                step(part)
                for r in written:
                    merged = g.regs[r].copy()
                    merged[chosen] = part.regs[r]
                    g.regs[r] = merged

        return run

    def _bind_end(self, b: Binding, labels: dict[str, int]) -> None:
        """Bind a branch, a call or a return."""
        block, name, guard = b.block, b.op.name, b.instruction.guard
        following = self._find_following(block)
        go: Callable[[Group], Moves]
        targets: tuple[int, ...]
        if name == "bra":
            target = labels[b.get(0)]
            go, targets = (lambda g: [(target, None)]), (target,)
        elif name == "brx":
            go, targets = self._bind_index(b, labels)
        elif name == "call":
            go, targets = self._bind_call(b, following)
        elif name == "ret" and not self.module.functions[block.function].is_entry:
            function = block.function
            go, targets = (lambda g: g.machine.find_returns(function, g.slots)), ()
        else:
            if name in ("trap", "brkpt"):  # there is no debugger
                self._add_trap(b)
            go, targets = (lambda g: [(EXIT, None)]), (EXIT,)
        if guard is None:
            block.end, block.successors = go, targets
            return
        test = b.reader.fetch(guard[0] if guard[1] else "!" + guard[0], "pred")
        block.successors = (*targets, following)

        def branch(g: Group) -> Moves:
            p = g.spread(test(g))
            count = np.count_nonzero(p)
            if count == 0:
                return [(following, None)]
            if count == g.n:
                return go(g)
            chosen = np.flatnonzero(p)
            part = Group(g.machine, g.slots[chosen], {r: g.regs[r][chosen] for r in b.reader.reads})
            return [*((t, chosen if s is None else chosen[s]) for t, s in go(part)), (following, np.flatnonzero(~p))]

        block.end = branch

    def _add_trap(self, b: Binding) -> None:
        """Let threads that come here end the run."""
        place = b.place
        self._add_step(b, self._guard(b, lambda g: g.machine.report_trap(place, g.slots)))

    def _bind_index(self, b: Binding, labels: dict[str, int]) -> tuple[Callable[[Group], Moves], tuple[int, ...]]:
        """Bind a branch by an index."""
        index = b.fetch(0, "u32")
        targets = tuple(labels[t] for t in b.instruction.targets)

        def go(g: Group) -> Moves:
            values = g.spread(index(g))
            return [(targets[v], np.flatnonzero(values == v)) for v in np.unique(values).tolist()]

        return go, targets

    def _bind_call(self, b: Binding, following: int) -> tuple[Callable[[Group], Moves], tuple[int, ...]]:
        """Bind a call: parameters are copied to the callee's, results back behind it."""
        operands = list(b.instruction.operands)
        results = list(operands.pop(0)) if isinstance(operands[0], tuple) else []
        target = operands[0]
        arguments = list(operands[1]) if len(operands) > 1 and isinstance(operands[1], tuple) else []
        if target == ASSERTION:
            self._add_trap(b)
            return (lambda g: [(EXIT, None)]), (EXIT,)
        if target not in self.module.functions:
            if target != "vprintf":
                known = target in self.module.declared
                raise UnknownForm(f"the body of `{target}`" if known else f"a call of `{target}`, which a register holds")
            return (lambda g: [(following, None)]), (following,)  # what a kernel prints is no result
        callee = self.module.functions[target]
        self.returns.setdefault(target, []).append(following)
        caller = b.block.function
        there, back = (list(zip(v, a)) for v, a in ((callee.parameters, arguments), (callee.results, results)))

        def go(g: Group) -> Moves:
            for v, a in there:
                g.machine.copy_local(g.slots, self.param_places[caller, a], self.param_places[target, v.name], v.size or 0)
            moves = [(self.param_places[target, v.name], self.param_places[caller, a], v.size or 0) for v, a in back]
            g.machine.note_call(target, g.slots, following, moves)
            return [(self.entries[target], None)]

        return go, (following,)

    def _find_following(self, block: Block) -> int:
        """Return the block behind a block of the same function."""
        n = block.index + 1
        return n if n < len(self.blocks) and self.blocks[n].function == block.function else EXIT


def is_copy(instruction: Instruction) -> bool:
    """Return whether an instruction copies a register or a constant: ptxas, not the program, places copies."""
    return instruction.op.startswith("mov.") and not any(isinstance(o, tuple) for o in instruction.operands)


def _needs_others(op: Opcode) -> bool:
    """Return whether lanes must execute an instruction together: barriers of clusters, and changes of maps, let each come alone."""
    return not (op.has("cluster") or op.name == "tensormap") or op.has("aligned")


def _get_mask(op: Opcode, instruction: Instruction) -> Operand:
    """Return the operand that names the lanes of an exchange; "" for whole warps."""
    at = {"shfl": 4, "vote": 2, "match": 2, "redux": 2, "elect": 1}.get(op.name, -1)
    return instruction.operands[at] if 0 <= at < len(instruction.operands) else ""


def _stands_together(met: tuple[str, Operand] | None, op: Opcode, instruction: Instruction) -> bool:
    """Return whether the threads of a block that begins with a meeting stand together at this instruction too.

    Whole warps do for every instruction, others for the same constant mask.
    """
    if met is None:
        return False
    name, mask = met
    return MEETING[name] in ("warp", "warpgroup") or (
        MEETING[op.name] == "mask" and mask == _get_mask(op, instruction) and isinstance(mask, int)
    )


def _find_callees(instruction: Instruction, module: Module) -> list[str]:
    """Return the functions with a body that an instruction calls."""
    if not instruction.op.startswith("call"):
        return []
    return [o for o in instruction.operands if isinstance(o, str) and o in module.functions]


def _list_words(operand: Operand) -> list[str]:
    """Return the names in an operand."""
    if isinstance(operand, Address):
        return [operand.base] if isinstance(operand.base, str) else []
    return [w for part in list_parts(operand) for w in ([part] if isinstance(part, str) else [])]


def make_symbols(variables: Sequence[Variable]) -> tuple[dict[str, int], dict[str, int]]:
    """Return addresses of the variables in global and in constant memory."""
    ends = {"global": GLOBAL_BASE, "const": CONST_BASE}
    addresses: dict[str, dict[str, int]] = {"global": {}, "const": {}}
    for v in variables:
        if v.space in ends and v.size is not None:
            step = max(v.alignment, 16)
            start = -(-ends[v.space] // step) * step
            addresses[v.space][v.name] = start
            ends[v.space] = start + v.size + 16  # a gap, so that what runs past the end is seen
    return addresses["global"], addresses["const"]
