"""The body of a queue: what the warp that hands out units computes, from the numbers of the values that travel."""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.ir import Block, Operation, Region, SSAValue

from ...syntax.types import I32
from ..facts.numbers import Numbers, element_of
from ..ir import machine, ops
from ..ir.types import dtype_of, scalar


def body(numbers: Numbers, words: Mapping[int, int], names: Mapping[int, str]) -> Region:
    """What is the same for all units first, if it can be computed for no unit too; then `tile.hand_out` of the words, in their order. `names`: of the values, for people."""
    once, each = Block(), Block(arg_types=[scalar(I32)])
    each.args[0].name_hint = "unit"
    maker = _Maker(numbers, once)
    yielded: list[SSAValue] = []
    for n in sorted(words):
        for worker in range(numbers.table[n].copies):
            value = maker.make(n, worker, each, maker.scope_of(worker))
            value.name_hint = names.get(n)
            yielded.append(value)
    each.add_op(ops.end(yielded))
    once.add_op(machine.HandOut(regions=[Region(each)]))
    return Region(once)


Scope = dict[int, SSAValue]


class _Maker:
    """Makes values anew by their numbers, each once for a scope."""

    def __init__(self, numbers: Numbers, once: Block):
        self.numbers, self.once = numbers, once
        self.same: Scope = dict(numbers.frame)  # for all units
        self.shared: Scope = {}  # of a unit, for all workers
        self.own: dict[int, Scope] = {}  # of a worker

    def scope_of(self, worker: int) -> Scope:
        return self.own.setdefault(worker, {})

    def make(self, number: int, worker: int, block: Block, own: Scope, inner: Scope | None = None) -> SSAValue:
        """The value in `block`, or above it. inner: what a branch has made, which is no one else's."""
        for n in self._missing(number, own, inner):
            value = self.numbers.table[n]
            if inner is not None and not self._same(n):
                inner[n] = self._one(n, worker, block, own, inner)
            elif self._same(n):
                self.same[n] = self._one(n, worker, self.once, own, inner)
            else:
                (own if value.worker else self.shared)[n] = self._one(n, worker, block, own, inner)
        return self._operand(number, own, inner)

    def _operand(self, number: int, own: Scope, inner: Scope | None) -> SSAValue:
        for scope in (self.same, self.shared, own, inner or {}):
            if number in scope:
                return scope[number]
        raise KeyError(number)

    def _missing(self, number: int, own: Scope, inner: Scope | None) -> list[int]:
        """What stands below a number and is not made, operands first. The sides of a branch are its own business."""
        needed: set[int] = set()
        left = [number]
        while left:
            n = left.pop()
            if n not in needed and not any(n in scope for scope in (self.same, self.shared, own, inner or {})):
                needed.add(n)
                value = self.numbers.table[n]
                left += value.operands[:1] if isinstance(value.op, ops.If) else value.operands
        return sorted(needed)

    def _same(self, number: int) -> bool:
        """Whether a value is made once: it is the same for all units, and no division by 0 or read outside of a tensor if there is no unit."""
        value = self.numbers.table[number]
        if value.of_unit or value.worker:
            return False
        if number in self.same or isinstance(value.op, ops.Constant):
            return True
        total = isinstance(value.op, ops.Apply) and (not value.op.kind.divides_integers or bool(ops.known(value.op.arguments[1])))
        return total and all(map(self._same, value.operands))

    def _one(self, number: int, worker: int, block: Block, own: Scope, inner: Scope | None) -> SSAValue:
        value = self.numbers.table[number]
        if value.op is None:
            if value.worker is None:
                unit = block
                while not unit.args:  # of a branch
                    unit = unit.parent_block()  # type: ignore[assignment]
                return unit.args[0]
            return self._add(ops.constant(worker, I32), None, block)
        if isinstance(value.op, ops.If):
            return self._branch(number, worker, block, own, inner)
        given = [self._operand(n, own, inner) for n in value.operands]
        if isinstance(value.op, ops.Apply):  # equal floats may be compared in one role and not in another: computed as written
            exact = any(dtype_of(v).is_float for v in given)
            return self._add(ops.apply(value.op.op, given, value.type, exact), value.op, block)
        if isinstance(value.op, ops.Perform):
            place = element_of(value.op)
            assert place is not None
            at = self._add(ops.at(place.array, [(g, -1) for g in given], place.result.type), place, block)
            return self._add(ops.perform(value.op.op, {value.op.params.data[0].data: at}, [value.type]), value.op, block)
        assert isinstance(value.op, ops.Constant)
        return self._add(value.op.clone(), value.op, block)

    def _branch(self, number: int, worker: int, block: Block, own: Scope, inner: Scope | None) -> SSAValue:
        condition, *sides = self.numbers.table[number].operands
        given = self._operand(condition, own, inner)
        source = self.numbers.table[number].op
        made = ops.If(operands=[given], regions=[Region(Block()), Region(Block())], result_types=[[self.numbers.table[number].type]])
        self._add(made, source, block)
        for side, region in zip(sides, made.regions, strict=True):
            value = self.make(side, worker, region.block, own, dict(inner or {}))
            region.block.add_op(ops.end([value]))
        return made.results[0]

    def _add(self, op: Operation, source: Operation | None, block: Block) -> SSAValue:
        if source is not None:
            op.location = source.location
            if not isinstance(op, (ops.If, ops.Constant)):
                op.results[0].name_hint = source.results[0].name_hint
        block.add_op(op)
        return op.results[0]


__all__ = ["body"]
