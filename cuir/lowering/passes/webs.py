"""Values that are one variable of the program: what loops carry and branches give, with what flows into them.

A web is closed under this: a loop's argument and result belong to what the loop was given and what its turns yield, a branch's result to what its regions
yield. Passes that keep something else beside a variable, or in its place, change a web as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from xdsl.ir import Block, Operation, SSAValue

from ..ir import ops
from ..ir.walk import every, last, operations
from .rewriting import carry, give, set_yield


def joins(kernel: ops.Kernel | ops.Role) -> Iterator[tuple[SSAValue, list[SSAValue]]]:
    """Each value that stands where paths meet, with the values that flow into it. A loop's result is its argument after the last turn."""
    for op in every(kernel):
        if not op.regions:
            continue
        if isinstance(op, ops.Branch):
            for result, *given in zip(op.results, last(op.then).values, last(op.orelse).values, strict=True):
                yield result, given
        elif isinstance(op, ops.Loop):
            for argument, result, *given in zip(op.inner, op.results, op.carried, last(op.body).values, strict=True):
                yield argument, given
                yield result, [argument]


@dataclass
class Web:
    """`joined`: values where paths meet; `made`: what flows into them and is made by an operation."""

    joined: set[SSAValue] = field(default_factory=set)
    made: dict[SSAValue, None] = field(default_factory=dict)

    def __contains__(self, value: SSAValue) -> bool:
        return value in self.joined or value in self.made


def webs(role: ops.Role, through: Callable[[SSAValue], Iterable[SSAValue]] = lambda _: ()) -> list[Web]:
    """The webs of a role, in the order of its text. `through`: operands that belong to the web of what is made of them."""
    flows = dict(joins(role))
    parent: dict[SSAValue, SSAValue] = {}

    def root(v: SSAValue) -> SSAValue:
        while (p := parent.setdefault(v, v)) is not v:
            v = p
        return v

    numbers: list[tuple[SSAValue, SSAValue]] = []  # a known number may start many variables
    for value, sources in flows.items():
        for source in sources:
            if isinstance(source.owner, ops.Constant):
                root(value)
                numbers.append((value, source))
                continue
            parent[root(source)] = root(value)
            left = [source]
            while left:
                for operand in through(left.pop()):
                    if root(operand) is not root(value):
                        parent[root(operand)] = root(value)
                        left.append(operand)
    by_root: dict[SSAValue, Web] = {}
    for value in list(parent):
        web = by_root.setdefault(root(value), Web())
        if value in flows:
            web.joined.add(value)
        else:
            web.made[value] = None
    for value, number in numbers:
        by_root[root(value)].made[number] = None
    return list(by_root.values())


class Companions:
    """Carries values beside a variable wherever it is carried.

    `make` gives the companions of a value that an operation makes: it puts what they take behind that operation (`behind`), and asks `of` for the companions
    of the web's values that the operation reads.
    """

    def __init__(self, role: ops.Role, web: Web, make: Callable[[Companions, SSAValue], list[SSAValue]]):
        self.role, self.web, self.make = role, web, make
        self.known: dict[SSAValue, list[SSAValue]] = {}
        self._block(role.body.block)

    def of(self, value: SSAValue) -> list[SSAValue]:
        if value not in self.known:
            self.known[value] = self.make(self, value)
        return self.known[value]

    def behind(self, value: SSAValue, new: Operation) -> SSAValue:
        """Puts an operation behind the one that makes a value, or at the start of the role if that is made outside."""
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
                self._branch(op)
            elif op.regions and isinstance(op, ops.Loop):
                self._loop(op)
            else:
                for value in op.results:
                    if value in self.web.made:
                        self.of(value)

    def _branch(self, op: ops.Branch) -> None:
        for region in op.regions:
            self._block(region.block)
        chosen = [i for i, r in enumerate(op.results) if r in self.web.joined]
        if not chosen:
            return
        ends = [[self.of(last(region).values[i]) for i in chosen] for region in op.regions]
        new, results = give(op, [pair for a, b in zip(*ends, strict=True) for pair in zip(a, b, strict=True)])
        n = len(results) // len(chosen)
        for k, i in enumerate(chosen):
            self.web.joined.add(new.results[i])
            self.known[new.results[i]] = results[k * n : (k + 1) * n]

    def _loop(self, op: ops.Loop) -> None:
        count = len(op.carried)
        chosen = [i for i, argument in enumerate(op.inner) if argument in self.web.joined]
        if not chosen:
            self._block(op.body.block)
            return
        new, arguments = carry(op, [v for i in chosen for v in self.of(op.carried[i])])
        n = len(arguments) // len(chosen)
        for k, i in enumerate(chosen):
            self.known[new.inner[i]] = arguments[k * n : (k + 1) * n]
        self._block(new.body.block)
        values = list(last(new.body).values)[:count]
        set_yield(new.body, [*values, *(v for i in chosen for v in self.of(values[i]))])
        for k, i in enumerate(chosen):
            self.web.joined.add(new.results[i])
            self.known[new.results[i]] = list(new.results[count + k * n : count + (k + 1) * n])


__all__ = ["Companions", "Web", "joins", "webs"]
