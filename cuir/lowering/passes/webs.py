"""Webs: SSA values that are one variable of the program, joined by loops and branches.

A web is closed: a loop's argument and result belong to its initial value and the values that its turns yield, a
branch's result to those that its regions yield. Passes that carry another value beside a variable, or in its place,
change a web as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from xdsl.ir import Block, Operation, SSAValue

from ..ir import ops
from ..ir.ir_walk import every, last, operations
from .rewriting import carry, extend_branch, set_yield


def iterate_joins(kernel: ops.Kernel | ops.Role) -> Iterator[tuple[SSAValue, list[SSAValue]]]:
    """Yield each value at which paths meet, with the values that flow into it.

    A loop's result is its argument after the last turn.
    """
    for op in every(kernel):
        if not op.regions:
            continue
        if isinstance(op, ops.Branch):
            for result, *sources in zip(op.results, last(op.then).values, last(op.orelse).values, strict=True):
                yield result, sources
        elif isinstance(op, ops.Loop):
            for argument, result, *sources in zip(op.inner, op.results, op.carried, last(op.body).values, strict=True):
                yield argument, sources
                yield result, [argument]


@dataclass
class Web:
    """Values of one variable.

    Attributes:
        joined: Values at which paths meet.
        definitions: Values that flow into these and are defined by an operation.
    """

    joined: set[SSAValue] = field(default_factory=set)
    definitions: dict[SSAValue, None] = field(default_factory=dict)

    def __contains__(self, value: SSAValue) -> bool:
        return value in self.joined or value in self.definitions


def find_webs(role: ops.Role, through: Callable[[SSAValue], Iterable[SSAValue]] = lambda _: ()) -> list[Web]:
    """Return the webs of a role, in the order of its text.

    `through` returns the operands of a value's definition that belong to its web.
    """
    flows = dict(iterate_joins(role))
    parent: dict[SSAValue, SSAValue] = {}

    def root(v: SSAValue) -> SSAValue:
        while (p := parent.setdefault(v, v)) is not v:
            v = p
        return v

    numbers: list[tuple[SSAValue, SSAValue]] = []  # a constant may start many variables
    for value, sources in flows.items():
        for source in sources:
            if isinstance(source.owner, ops.Constant):
                root(value)
                numbers.append((value, source))
                continue
            parent[root(source)] = root(value)
            worklist = [source]
            while worklist:
                for operand in through(worklist.pop()):
                    if root(operand) is not root(value):
                        parent[root(operand)] = root(value)
                        worklist.append(operand)
    by_root: dict[SSAValue, Web] = {}
    for value in list(parent):
        web = by_root.setdefault(root(value), Web())
        if value in flows:
            web.joined.add(value)
        else:
            web.definitions[value] = None
    for value, number in numbers:
        by_root[root(value)].definitions[number] = None
    return list(by_root.values())


class Companions:
    """Values that are carried beside a variable wherever it is carried.

    `make` returns the companions of a value that an operation defines: it inserts their operations behind that one
    (`behind`), and calls `of` for the companions of the web's values that the operation reads.
    """

    def __init__(self, role: ops.Role, web: Web, make: Callable[[Companions, SSAValue], list[SSAValue]]):
        self.role, self.web, self.make = role, web, make
        self.by_value: dict[SSAValue, list[SSAValue]] = {}
        self._block(role.body.block)

    def of(self, value: SSAValue) -> list[SSAValue]:
        """Return the companions of a value."""
        if value not in self.by_value:
            self.by_value[value] = self.make(self, value)
        return self.by_value[value]

    def behind(self, value: SSAValue, new: Operation) -> SSAValue:
        """Insert an operation behind the definition of a value, and return its result.

        It goes to the start of the role if the value is defined outside.
        """
        owner = value.owner
        if isinstance(owner, Operation) and owner.parent_op() is not self.role.parent_op():
            assert owner.parent is not None
            new.location = owner.location
            owner.parent.insert_op_after(new, self._last.get(value, owner))
            self._last[value] = new
        else:
            first = self.role.body.block.first_op
            assert first is not None
            self.role.body.block.insert_op_before(new, first)
        return new.results[0]

    def _block(self, block: Block) -> None:
        self._last: dict[SSAValue, Operation] = {}
        for op in operations(block):
            if op.parent is None:
                continue
            if op.regions and isinstance(op, ops.Branch):
                self._extend_branch(op)
            elif op.regions and isinstance(op, ops.Loop):
                self._extend_loop(op)
            else:
                for value in op.results:
                    if value in self.web.definitions:
                        self.of(value)

    def _extend_branch(self, op: ops.Branch) -> None:
        for region in op.regions:
            self._block(region.block)
        indices = [i for i, r in enumerate(op.results) if r in self.web.joined]
        if not indices:
            return
        ends = [[self.of(last(region).values[i]) for i in indices] for region in op.regions]
        new, results = extend_branch(op, [pair for a, b in zip(*ends, strict=True) for pair in zip(a, b, strict=True)])
        n = len(results) // len(indices)
        for k, i in enumerate(indices):
            self.web.joined.add(new.results[i])
            self.by_value[new.results[i]] = results[k * n : (k + 1) * n]

    def _extend_loop(self, op: ops.Loop) -> None:
        count = len(op.carried)
        indices = [i for i, argument in enumerate(op.inner) if argument in self.web.joined]
        if not indices:
            self._block(op.body.block)
            return
        new, arguments = carry(op, [v for i in indices for v in self.of(op.carried[i])])
        n = len(arguments) // len(indices)
        for k, i in enumerate(indices):
            self.by_value[new.inner[i]] = arguments[k * n : (k + 1) * n]
        self._block(new.body.block)
        values = list(last(new.body).values)[:count]
        set_yield(new.body, [*values, *(v for i in indices for v in self.of(values[i]))])
        for k, i in enumerate(indices):
            self.web.joined.add(new.results[i])
            self.by_value[new.results[i]] = list(new.results[count + k * n : count + (k + 1) * n])


__all__ = ["Companions", "Web", "find_webs", "iterate_joins"]
