"""Hoist values that depend on the work item alone to the warp that hands out work items by a queue.

A warp without other work broadcasts the values through a queue in shared memory; without such a warp, none are hoisted.

A value is hoisted if some role computes it for every work item, by more than a few cheap operations, from nothing that
a role does. One that also depends on the worker is broadcast once for each. Without a spare warp, a warp of the first
role hands out dynamic work items. The queue is made only where it is profitable. On a GPU without mbarriers there is
none: dynamic work items are CTAs, which the hardware hands out.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

from xdsl.ir import Block, BlockArgument, Operation, Region, SSAValue

from ...checking.fact_solver import reach
from ...ops.limits import TARGETS
from ...syntax.types import I32
from ..analyses.memory import is_memory_effect_free
from ..analyses.uniformity import runs_on_one_lane
from ..analyses.value_numbers import DIVISION, LOAD, Number, Numbers, find_element
from ..ir import machine_ops as machine
from ..ir import ops
from ..ir.ir_types import dtype_of, scalar
from ..ir.ir_walk import every, last, operations


def build_body(numbers: Numbers, words: Mapping[int, int], names: Mapping[int, str]) -> Region:
    """Build the region of a queue.

    Values that are the same for all work items come first, if they are speculatable; then `tile.hand_out` of the words,
    in their order.

    Args:
        numbers: The kernel's value numbers.
        words: The broadcast values, by number, with their first word.
        names: Names of values, for people.
    """
    preamble, item_body = Block(), Block(arg_types=[scalar(I32)])
    item_body.args[0].name_hint = "unit"
    maker = _ValueMaker(numbers, preamble)
    word_values: list[SSAValue] = []
    for n in sorted(words):
        for worker in range(numbers.table[n].copies):
            value = maker.make(n, worker, item_body, maker.get_worker_scope(worker))
            value.name_hint = names.get(n)
            word_values.append(value)
    item_body.add_op(ops.end(word_values))
    preamble.add_op(machine.HandOut(regions=[Region(item_body)]))
    return Region(preamble)


Scope = dict[int, SSAValue]


class _ValueMaker:
    """A builder of values anew by their numbers, each once in a scope."""

    def __init__(self, numbers: Numbers, preamble: Block):
        self.numbers, self.preamble = numbers, preamble
        self.same: Scope = dict(numbers.frame)  # for all work items
        self.shared: Scope = {}  # of a work item, for all workers
        self.by_worker: dict[int, Scope] = {}

    def get_worker_scope(self, worker: int) -> Scope:
        return self.by_worker.setdefault(worker, {})

    def make(self, number: int, worker: int, block: Block, worker_scope: Scope, inner: Scope | None = None) -> SSAValue:
        """Return the value in `block`, or above it.

        `inner`: values that an enclosing branch has made.
        """
        for n in self._collect_missing(number, worker_scope, inner):
            value = self.numbers.table[n]
            if inner is not None and not self._is_invariant(n):
                inner[n] = self._make_one(n, worker, block, worker_scope, inner)
            elif self._is_invariant(n):
                self.same[n] = self._make_one(n, worker, self.preamble, worker_scope, inner)
            else:
                (worker_scope if value.worker else self.shared)[n] = self._make_one(n, worker, block, worker_scope, inner)
        return self._find_operand(number, worker_scope, inner)

    def _find_operand(self, number: int, worker_scope: Scope, inner: Scope | None) -> SSAValue:
        for scope in (self.same, self.shared, worker_scope, inner or {}):
            if number in scope:
                return scope[number]
        raise KeyError(number)

    def _collect_missing(self, number: int, worker_scope: Scope, inner: Scope | None) -> list[int]:
        """Return the numbers below a number that are not made, operands first.

        Sides of a branch are left to the branch.
        """
        needed: set[int] = set()
        worklist = [number]
        while worklist:
            n = worklist.pop()
            if n not in needed and not any(n in scope for scope in (self.same, self.shared, worker_scope, inner or {})):
                needed.add(n)
                value = self.numbers.table[n]
                worklist += value.operands[:1] if isinstance(value.op, ops.If) else value.operands
        return sorted(needed)

    def _is_invariant(self, number: int) -> bool:
        """Return whether a value is made once, before all work items.

        It is the same for all of them, and speculatable: no division by 0 or read outside of a tensor if there is none.
        """
        value = self.numbers.table[number]
        if value.of_unit or value.worker:
            return False
        if number in self.same or isinstance(value.op, ops.Constant):
            return True
        total = isinstance(value.op, ops.Apply) and (not value.op.kind.divides_integers or bool(ops.constant_value(value.op.arguments[1])))
        return total and all(map(self._is_invariant, value.operands))

    def _make_one(self, number: int, worker: int, block: Block, worker_scope: Scope, inner: Scope | None) -> SSAValue:
        value = self.numbers.table[number]
        if value.op is None:
            if value.worker is None:
                unit = block
                while not unit.args:  # of a branch
                    unit = unit.parent_block()  # type: ignore[assignment]
                return unit.args[0]
            return self._add(ops.constant(worker, I32), None, block)
        if isinstance(value.op, ops.If):
            return self._make_branch(number, worker, block, worker_scope, inner)
        operands = [self._find_operand(n, worker_scope, inner) for n in value.operands]
        if isinstance(value.op, ops.Apply):  # exact: equal floats may be compared in one role and not in another
            exact = any(dtype_of(v).is_float for v in operands)
            return self._add(ops.apply(value.op.op, operands, value.type, exact), value.op, block)
        if isinstance(value.op, ops.Perform):
            place = find_element(value.op)
            assert place is not None
            at = self._add(ops.at(place.array, [(g, -1) for g in operands], place.result.type), place, block)
            return self._add(ops.perform(value.op.op, {value.op.params.data[0].data: at}, [value.type]), value.op, block)
        assert isinstance(value.op, ops.Constant)
        return self._add(value.op.clone(), value.op, block)

    def _make_branch(self, number: int, worker: int, block: Block, worker_scope: Scope, inner: Scope | None) -> SSAValue:
        condition, *sides = self.numbers.table[number].operands
        condition_value = self._find_operand(condition, worker_scope, inner)
        source = self.numbers.table[number].op
        new_branch = ops.If(
            operands=[condition_value], regions=[Region(Block()), Region(Block())], result_types=[[self.numbers.table[number].type]]
        )
        self._add(new_branch, source, block)
        for side, region in zip(sides, new_branch.regions, strict=True):
            value = self.make(side, worker, region.block, worker_scope, dict(inner or {}))
            region.block.add_op(ops.end([value]))
        return new_branch.results[0]

    def _add(self, op: Operation, source: Operation | None, block: Block) -> SSAValue:
        if source is not None:
            op.location = source.location
            if not isinstance(op, (ops.If, ops.Constant)):
                op.results[0].name_hint = source.results[0].name_hint
        block.add_op(op)
        return op.results[0]


MOST = 23  # broadcast words; four slots of them and the work item's index fit into resources.RESERVED
WARPS = 4  # of a warpgroup


def run(kernel: ops.Kernel) -> None:
    """Insert a queue of work items, if the kernel allows one and profits from it."""
    units = next((op for op in kernel.body.block.ops if isinstance(op, ops.Units)), None)
    if units is None:
        return
    loops = {role: loops for role in kernel.roles if (loops := _list_loops(role))}
    if not loops:
        return
    spare = _find_spare_warp(kernel)
    if not _can_queue(kernel, loops, spare):
        if units.dynamic is not None and not TARGETS[kernel.arch.data].has("mbarriers"):
            _insert_note(kernel, units, "each unit of work is a CTA: the hardware starts one when another ends")
        elif units.dynamic is not None:
            del units.properties["dynamic"]
            text = "dynamic tiles are handed out statically: else they need two warps (one that no role has in a cluster), and one loop over them at the top of each role"
            _insert_note(kernel, units, text)
        return
    numbers, readers = Numbers(kernel), [_Reader(role, of_role) for role, (of_role,) in loops.items()]
    words = _select_broadcast_values(numbers, readers) if spare is not None else {}
    is_costly = any(numbers.costs(n, min(DIVISION, LOAD)) for n in words)
    if units.dynamic is None and not is_costly:
        return
    names = _read_words(numbers, readers, words)
    if words:
        _insert_note(
            kernel,
            units,
            f"a spare warp works out {', '.join(names.get(n, 'a value') for n in words)} of each tile for all roles, which read them in shared memory",
        )
    _insert_queue(kernel, units, readers, spare, numbers, words, names)


def _list_loops(role: ops.Role) -> list[ops.ForUnits]:
    """Return the loops over work items, nested ones too."""
    return [op for op in every(role) if isinstance(op, ops.ForUnits)]


def _count_warps(role: ops.Role) -> int:
    return role.workers.data * role.threads.data // 32


def _find_spare_warp(kernel: ops.Kernel) -> int | None:
    """Return the first warp of the CTA without a role, in a warpgroup that has one with a role."""
    used = {WARPS * r.warpgroup.data + r.warp.data + i for r in kernel.roles for i in range(_count_warps(r))}
    free = (w for w in range(kernel.threads.data // 32) if w not in used and any(w // WARPS == t // WARPS for t in used))
    return next(free, None)


def _can_queue(kernel: ops.Kernel, loops: Mapping[ops.Role, Sequence[ops.ForUnits]], spare: int | None) -> bool:
    is_top_level = all([loop.parent_op() for loop in of_role] == [role] for role, of_role in loops.items())
    is_single_warp = spare is None and sum(map(_count_warps, loops)) < 2
    return (
        TARGETS[kernel.arch.data].has("mbarriers")
        and is_top_level
        and not is_single_warp
        and (kernel.cluster.data == 1 or spare is not None)
    )


def _insert_note(kernel: ops.Kernel, units: ops.Units, text: str) -> None:
    new_note = machine.note(text)
    new_note.location = units.location
    kernel.body.block.insert_op_after(new_note, units)


def _insert_queue(
    kernel: ops.Kernel,
    units: ops.Units,
    readers: Sequence[_Reader],
    spare: int | None,
    numbers: Numbers,
    words: Mapping[int, int],
    names: Mapping[int, str],
) -> None:
    """Insert the queue before the roles, and let the readers' loops read it."""
    dynamic = units.dynamic is not None
    # Static work items are known in advance; a dynamic one is drawn late, for the first CTA that is free: when all
    # workers have taken the one before, or, where single lanes fetch for the others, when these have.
    single_lane = [r.role for r in readers if runs_on_one_lane(r.role)]
    ahead = sum(role.workers.data for role in single_lane) if dynamic and spare is not None and len(single_lane) < len(readers) else 0
    queue = machine.queue(
        units.result,
        build_body(numbers, words, names),
        slots=2 if ahead else 1 if dynamic else 4,
        words=-(-(1 + sum(numbers.table[n].copies for n in words)) // 4) * 4,
        spare=-1 if spare is None else spare,
        readers=sum(_count_warps(r.role) for r in readers),
        ctas=kernel.cluster.data,
        ahead=ahead,
        dynamic=dynamic,
    )
    queue.location = units.location
    queue.result.name_hint = "queue"
    kernel.body.block.insert_op_before(queue, kernel.roles[0])
    for reader in readers:
        reader.loop.operands[0] = queue.result


# ---- values to broadcast
class _Reader:
    """A role with a loop over work items, and what its effects and its control flow read."""

    def __init__(self, role: ops.Role, loop: ops.ForUnits):
        self.role, self.loop = role, loop
        self.operands: list[SSAValue] = []
        self._collect(role.body.block)

    def collect_live(self, numbers: Numbers, leaves: Container[int]) -> set[SSAValue]:
        """Return the values on which an effect depends.

        Operands of values in `leaves` are not visited.
        """

        def follow(value: SSAValue) -> Iterator[SSAValue]:
            if (number := numbers[value]) is None or number not in leaves:
                yield from _iterate_operands(value)

        return reach(self.operands, follow)

    def _collect(self, block: Block) -> bool:
        """Add the operands of a block, and return whether it has an effect."""
        has_effect = False
        for op in operations(block):
            if isinstance(op, ops.Apply):  # most are
                continue
            inside = False
            for region in op.regions:
                inside |= self._collect(region.block)
            if isinstance(op, ops.Branch):
                read = [op.decision] if inside else []
            elif isinstance(op, ops.Yield) and isinstance(op.parent_op(), (ops.Loop, ops.Branch)):
                continue  # readers of the results need its operands
            elif isinstance(op, ops.For):
                read, inside = [op.start, op.stop], True
            elif isinstance(op, ops.ForUnits):
                read, inside = [], True
            else:
                inside = not is_memory_effect_free(op)
                read = list(op.operands) if inside else []
            has_effect |= inside
            self.operands += read
        return has_effect


def _select_broadcast_values(numbers: Numbers, readers: Sequence[_Reader]) -> dict[int, int]:
    """Select the values to broadcast, by number, with the first word of each in a slot.

    A value has one word for each of its copies.
    """
    table = numbers.table
    computed = {n for r in readers for op in r.loop.body.block.ops for v in op.results if (n := numbers[v]) is not None}
    candidates = {n for n in computed if table[n].of_unit and _is_profitable(numbers, table[n], ())}
    selected = {n for r in readers for v in r.collect_live(numbers, candidates) if (n := numbers[v]) in candidates and n is not None}
    selected = _share_operands(numbers, selected, candidates)
    words: dict[int, int] = {}
    used = 1
    for n in sorted(selected):  # operands come before their readers
        if _is_profitable(numbers, table[n], words) and used + table[n].copies <= MOST + 1:
            words[n] = used
            used += table[n].copies
    return words


def _share_operands(numbers: Numbers, selected: set[int], candidates: set[int]) -> set[int]:
    """Replace values that are one cheap operation away from the same value by that one."""
    table = numbers.table
    while True:
        best, replacement = 0, (-1, set[int]())
        for base in {n for v in selected for n in table[v].operands if n in candidates} - selected:
            replaced = {v for v in selected if base in table[v].operands and not _is_profitable(numbers, table[v], selected - {v} | {base})}
            saving = sum(table[v].copies for v in replaced) - table[base].copies
            if (saving, -base) > (best, -replacement[0]):
                best, replacement = saving, (base, replaced)
        if not best:
            return selected
        selected = selected - replacement[1] | {replacement[0]}


def _is_profitable(numbers: Numbers, value: Number, free: Container[int]) -> bool:
    """Return whether a value is worth its words.

    Each costs a move and a register, where the compiler could rematerialise it; selecting one of several copies costs a
    few more.
    """
    return numbers.costs(value.number, 2 * value.copies + 2, free)


def _iterate_operands(value: SSAValue) -> Iterator[SSAValue]:
    """Yield the operands of a value, in this turn of its loop or the one before."""
    op = value.block.parent_op() if isinstance(value, BlockArgument) else value.owner
    if isinstance(op, ops.Apply):  # most are
        yield from op.arguments
    elif isinstance(op, ops.Loop):
        values = op.inner if isinstance(value, BlockArgument) else op.outputs
        if value in values:
            index = list(values).index(value)
            yield from (op.carried[index], last(op.body).values[index])
    elif isinstance(op, ops.Branch):
        index = list(op.outputs).index(value)  # type: ignore[arg-type]
        yield from (op.decision, last(op.then).values[index], last(op.orelse).values[index])
    elif isinstance(op, Operation) and not isinstance(op, ops.Role):
        yield from op.operands


# ---- words that the roles read
@dataclass
class _Reading:
    """A word that a role reads, and the values of the role that it replaces."""

    word: ops.Word
    values: list[SSAValue]  # replaced by the word


def _read_words(numbers: Numbers, readers: Sequence[_Reader], words: Mapping[int, int]) -> dict[int, str]:
    """Let the roles read the broadcast values, and return names of these for people."""
    names: dict[int, str] = {}
    for reader in readers:
        loop, live = reader.loop, reader.collect_live(numbers, words)
        by_number: dict[int, _Reading] = {}
        for value in _iterate_results(loop):
            number = numbers[value]
            if number is not None and number in words and value in live:
                reading = by_number.setdefault(number, _Reading(ops.Word(words[number], numbers.table[number].copies), []))
                reading.values.append(value)
        readings = [by_number[n] for n in sorted(by_number)]
        for i, reading in enumerate(readings):
            argument = loop.body.block.insert_arg(reading.values[0].type, 1 + i)
            argument.name_hint = next((v.name_hint for v in reading.values if v.name_hint), None)
            for value in reading.values:
                value.replace_all_uses_with(argument)
        for number, reading in by_number.items():
            hint = next((v.name_hint for v in reading.values if v.name_hint), None)
            if hint:
                names.setdefault(number, hint)
        loop.properties["words"] = ops.words_attribute([r.word for r in readings])
        _sweep(reader.role)
    return names


def _iterate_results(loop: ops.ForUnits) -> Iterator[SSAValue]:
    """Yield the results inside a loop, in the order of the text."""
    for op in every(loop):
        yield from op.results


def _sweep(role: ops.Role) -> None:
    """Remove operations without an effect whose results are not read any more."""
    for op in reversed(list(every(role))):
        if op.results and all(r.first_use is None for r in op.results) and is_memory_effect_free(op):
            op.detach()
            op.erase()


__all__ = ["build_body", "run"]
