"""The body of a queue: the code of the warp that hands out work items, from value numbers."""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.ir import Block, Operation, Region, SSAValue

from ...syntax.types import I32
from ..analyses.value_numbers import Numbers, find_element
from ..ir import machine_ops as machine
from ..ir import ops
from ..ir.ir_types import dtype_of, scalar


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


__all__ = ["build_body"]
