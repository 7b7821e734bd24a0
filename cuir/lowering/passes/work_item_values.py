"""Units of work come by a queue where that pays, and values that follow from a unit alone are computed once per CTA, by the warp that hands the units out.

A value travels from that warp to the roles if every unit runs through its computation in some role, if it follows from the unit and from nothing that a role
does, and if it is more than a few cheap operations away from what is there anyway. A value that also depends on which worker of its role reads it travels once
for each of them. Without a warp that no role has, a warp of the first role hands out dynamic units, and each role computes its values itself.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

from xdsl.ir import BlockArgument, Operation, SSAValue
from xdsl.traits import Pure

from ...ops.limits import TARGETS
from ..facts.lanes import runs_on_one_lane
from ..facts.numbers import DIVISION, LOAD, Number, Numbers
from ..facts.uniformity import reads_constant
from ..ir import machine, ops
from ..ir.types import is_scalar
from ..ir.walk import every, last
from . import hand_out

MOST = 23  # words that travel; four slots of them and the unit's number fit into what resources.RESERVED keeps
WARPS = 4  # of a warpgroup


def run(kernel: ops.Kernel) -> None:
    units = next((op for op in kernel.body.block.ops if isinstance(op, ops.Units)), None)
    readers = [role for role in kernel.roles if _loops(role)]
    if units is None or not readers:
        return
    spare = _spare_warp(kernel)
    if not _can_queue(kernel, readers, spare):
        if units.dynamic is not None:
            del units.properties["dynamic"]
            text = "dynamic tiles are handed out statically: else they need mbarriers, two warps (one that no role has in a cluster), and one loop over them at the top of each role"
            _note(kernel, units, text)
        return
    numbers = Numbers(kernel)
    words = _travelling(numbers, readers) if spare is not None else {}
    costly = any(numbers.cost(n, ()) >= min(DIVISION, LOAD) for n in words)
    if units.dynamic is None and not costly:
        return
    names = _read_words(numbers, readers, words)
    if words:
        _note(
            kernel,
            units,
            f"a spare warp works out {', '.join(names.get(n, 'a value') for n in words)} of each tile for all roles, which read them in shared memory",
        )
    _insert_queue(kernel, units, readers, spare, numbers, words, names)


def _loops(role: ops.Role) -> list[ops.ForUnits]:
    """Loops over units of work, nested ones too."""
    return [op for op in every(role) if isinstance(op, ops.ForUnits)]


def _warps(role: ops.Role) -> int:
    return role.workers.data * role.threads.data // 32


def _spare_warp(kernel: ops.Kernel) -> int | None:
    """The first warp of the CTA that no role has and that stands in a warpgroup with one."""
    taken = {WARPS * r.warpgroup.data + r.warp.data + i for r in kernel.roles for i in range(_warps(r))}
    free = (w for w in range(kernel.threads.data // 32) if w not in taken and any(w // WARPS == t // WARPS for t in taken))
    return next(free, None)


def _can_queue(kernel: ops.Kernel, readers: Sequence[ops.Role], spare: int | None) -> bool:
    plain = all([loop.parent_op() for loop in _loops(r)] == [r] for r in readers)
    alone = spare is None and sum(map(_warps, readers)) < 2
    return TARGETS[kernel.arch.data].has("mbarriers") and plain and not alone and (kernel.cluster.data == 1 or spare is not None)


def _note(kernel: ops.Kernel, units: ops.Units, text: str) -> None:
    made = machine.note(text)
    made.location = units.location
    kernel.body.block.insert_op_after(made, units)


def _insert_queue(kernel: ops.Kernel, units: ops.Units, readers: Sequence[ops.Role], spare: int | None, numbers: Numbers,
                  words: Mapping[int, int], names: Mapping[int, str]) -> None:  # fmt: skip
    """The queue behind the declaration of the units; the readers' loops read it."""
    dynamic = units.dynamic is not None
    # Static units are known in advance; a dynamic one is drawn late, so that whoever is free takes it: when all have taken the one before, or, where
    # single lanes fetch for the others, when these have, as they wait for it.
    single = [r for r in readers if runs_on_one_lane(r)]
    ahead = sum(r.workers.data for r in single) if dynamic and spare is not None and len(single) < len(readers) else 0
    made = machine.queue(
        units.result,
        hand_out.body(numbers, words, names),
        slots=2 if ahead else 1 if dynamic else 4,
        words=-(-(1 + sum(numbers.table[n].copies for n in words)) // 4) * 4,
        spare=-1 if spare is None else spare,
        readers=sum(map(_warps, readers)),
        ctas=kernel.cluster.data,
        ahead=ahead,
        dynamic=dynamic,
    )
    made.location = units.location
    made.result.name_hint = "queue"
    kernel.body.block.insert_op_before(made, kernel.roles[0])
    for role in readers:
        _loops(role)[0].operands[0] = made.result


# ---- which values travel
def _travelling(numbers: Numbers, readers: Sequence[ops.Role]) -> dict[int, int]:
    """The values that travel, by number, and the first word of each in a slot; a value has one word for each of its copies."""
    table = numbers.table
    computed = {n for role in readers for op in _loops(role)[0].body.block.ops for v in op.results if (n := numbers[v]) is not None}
    may = {n for n in computed if table[n].of_unit and _pays(numbers, table[n], ())}
    wanted = {n for role in readers for v in _live(role, numbers, may) if (n := numbers[v]) in may and n is not None}
    wanted = _shared(numbers, wanted, may)
    words: dict[int, int] = {}
    taken = 1
    for n in sorted(wanted):  # operands come before what is made of them
        if _pays(numbers, table[n], words) and taken + table[n].copies <= MOST + 1:
            words[n] = taken
            taken += table[n].copies
    return words


def _shared(numbers: Numbers, wanted: set[int], may: set[int]) -> set[int]:
    """The values wanted, where several are one cheap operation away from the same one: that one instead."""
    table = numbers.table
    while True:
        best, instead = 0, (-1, set[int]())
        for base in {n for v in wanted for n in table[v].operands if n in may} - wanted:
            over = {v for v in wanted if base in table[v].operands and not _pays(numbers, table[v], wanted - {v} | {base})}
            saved = sum(table[v].copies for v in over) - table[base].copies
            if (saved, -base) > (best, -instead[0]):
                best, instead = saved, (base, over)
        if not best:
            return wanted
        wanted = wanted - instead[1] | {instead[0]}


def _pays(numbers: Numbers, value: Number, free: Container[int]) -> bool:
    """Whether a value is worth its words: each costs a move and a register, where the compiler could make it again, and picking one's own of several a few."""
    return numbers.cost(value.number, free) > 2 * value.copies + 1


def _live(role: ops.Role, numbers: Numbers, given: Container[int]) -> set[SSAValue]:
    """Values of a role from which an effect follows; of a value that is given nothing below is needed."""
    live: set[SSAValue] = set()
    left = [v for op in every(role) for v in _always_read(op)]
    while left:
        value = left.pop()
        if value not in live:
            live.add(value)
            if (number := numbers[value]) is None or number not in given:
                left += _below(value)
    return live


def _always_read(op: Operation) -> Sequence[SSAValue]:
    """Operands of what has an effect, or steers what has one."""
    if isinstance(op, ops.Apply):  # most are
        return []
    if isinstance(op, ops.For):
        return [op.start, op.stop]
    if isinstance(op, ops.Branch):
        return [] if _pure(op) else [op.decision]
    if isinstance(op, ops.Yield) and isinstance(op.parent_op(), (ops.For, ops.ForUnits, ops.Branch)):
        return []  # what is read of it says so
    return [] if isinstance(op, ops.ForUnits) or _pure(op) else op.operands


def _pure(op: Operation) -> bool:
    """Whether an operation does nothing but give its results."""
    if isinstance(op, (ops.Apply, ops.Constant, ops.At)):
        return True
    if isinstance(op, ops.Perform):
        return reads_constant(op)
    if isinstance(op, ops.Branch):
        return all(isinstance(inner, ops.Yield) or _pure(inner) for region in op.regions for inner in region.block.ops)
    return op.has_trait(Pure)


def _below(value: SSAValue) -> Iterator[SSAValue]:
    """What a value is made of, in this turn of its loop or the one before."""
    op = value.block.parent_op() if isinstance(value, BlockArgument) else value.owner
    if isinstance(op, ops.Apply):  # most are
        yield from op.arguments
    elif isinstance(op, ops.Loop):
        inside = op.inner if isinstance(value, BlockArgument) else op.outputs
        if value in inside:
            index = list(inside).index(value)
            yield from (op.carried[index], last(op.body).values[index])
    elif isinstance(op, ops.Branch):
        index = list(op.outputs).index(value)  # type: ignore[arg-type]
        yield from (op.decision, last(op.then).values[index], last(op.orelse).values[index])
    elif isinstance(op, Operation) and not isinstance(op, ops.Role):
        yield from op.operands


# ---- what the roles read
@dataclass
class _Reading:
    word: ops.Word
    values: list[SSAValue]  # of the role, that the word replaces


def _read_words(numbers: Numbers, readers: Sequence[ops.Role], words: Mapping[int, int]) -> dict[int, str]:
    """Makes the roles read the values that travel. Gives their names, for people."""
    names: dict[int, str] = {}
    for role in readers:
        loop, live = _loops(role)[0], _live(role, numbers, words)
        by_number: dict[int, _Reading] = {}
        for value in _values(loop):
            number = numbers[value]
            if number is not None and number in words and value in live:
                reading = by_number.setdefault(number, _Reading(ops.Word(words[number], numbers.table[number].copies), []))
                reading.values.append(value)
        readings = [by_number[n] for n in sorted(by_number)]
        for i, reading in enumerate(readings):
            inside = loop.body.block.insert_arg(reading.values[0].type, 1 + i)
            inside.name_hint = next((v.name_hint for v in reading.values if v.name_hint), None)
            for value in reading.values:
                value.replace_all_uses_with(inside)
        for number, reading in by_number.items():
            hint = next((v.name_hint for v in reading.values if v.name_hint), None)
            if hint:
                names.setdefault(number, hint)
        loop.properties["words"] = ops.words_attribute([r.word for r in readings])
        steering = set() if runs_on_one_lane(role) else _steering(role)
        uniform = [ops.Word(w.index, w.copies, inside in steering) for w, inside in loop.reads]
        loop.properties["words"] = ops.words_attribute(uniform)
        _sweep(role)
    return names


def _values(loop: ops.ForUnits) -> Iterator[SSAValue]:
    """Results inside of a loop, in the order of the text."""
    for op in every(loop):
        yield from op.results


def _steering(role: ops.Role) -> set[SSAValue]:
    """Scalars that branches, loops and descriptors of products follow from."""
    needed: set[SSAValue] = set()
    left: list[SSAValue] = []
    for op in every(role):
        if isinstance(op, ops.If):
            left.append(op.condition)
        elif isinstance(op, ops.For):
            left += [op.start, op.stop]
        elif isinstance(op, ops.Perform) and op.entry.family == "compute" and op.entry.effects.group:
            left += [v for a in op.arguments if isinstance(a.owner, ops.At) for v in a.owner.starts]
    while left:
        value = left.pop()
        if value not in needed:
            needed.add(value)
            left += [v for v in _below(value) if is_scalar(v)]
    return needed


def _sweep(role: ops.Role) -> None:
    """Removes what nobody reads any more."""
    for op in reversed(list(every(role))):
        if op.results and _pure(op) and all(r.first_use is None for r in op.results):
            op.detach()
            op.erase()


__all__ = ["run"]
