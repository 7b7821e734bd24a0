"""A product in flight whose registers must be copied is waited for first.

Where paths meet, or where a product goes on with an accumulator, a value may have to be copied, since another one that is still needed lies where it should be.
A copy of registers in flight would read what is not there yet, and make ptxas serialise every product of the kernel.
"""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.ir import Operation, SSAValue

from ...ops import TABLE
from ...ops.base import PRODUCTS
from ..facts.variables import Variables
from ..ir import ops
from ..ir.machine import note
from ..ir.walk import every, last
from .rewriting import before

WAIT = next(name for name, entry in TABLE.items() if entry.effects.drains == PRODUCTS)
CHOICE = (
    "a product in flight is waited for here, since its registers are copied: another value that is needed later lies where it would go on"
)


def run(kernel: ops.Kernel) -> None:
    for role in kernel.roles:
        if any(isinstance(op, ops.Perform) and op.entry.effects.group == PRODUCTS for op in every(role)):
            while _finish_one(role):
                pass


def _finish_one(role: ops.Role) -> bool:
    """Waits before the first operation that copies products in flight; whether there was one."""
    where = Variables(role)
    for op in every(role):
        ages = where.flight.before[op]
        copied = [v for v in dict.fromkeys(copies(op, where)) if v in ages]
        if copied:
            before(op, note(CHOICE))
            pending = min(ages[v] for v in copied)
            wait = ops.perform(WAIT, {f"x{i}": v for i, v in enumerate(copied)}, [v.type for v in copied], {"pending": pending})
            before(op, wait)
            for value, finished in zip(copied, wait.results, strict=True):
                finished.name_hint = value.name_hint
                for i, operand in enumerate(op.operands):
                    if operand is value:
                        op.operands[i] = finished
            return True
    return False


def copies(op: Operation, where: Variables) -> Iterator[SSAValue]:
    """The values that are copied before an operation, or where it hands them on: of a loop's results also what it starts with, and what each turn yields."""

    def apart(a: SSAValue, b: SSAValue) -> bool:
        return where.of.get(a) is not where.of.get(b)

    if isinstance(op, ops.Perform) and op.entry.effects.group and "c" in op.args and apart(op.args["c"], op.results[0]):
        yield op.args["c"]
    loop = op.parent_op() if isinstance(op, ops.Yield) else op
    if isinstance(loop, ops.Loop):
        given = last(loop.body).values if loop is not op else loop.carried
        yield from (v for v, a, r in zip(given, loop.inner, loop.results, strict=True) if apart(v, a) or apart(a, r))
    elif isinstance(op, ops.Yield) and isinstance(loop, ops.Branch):
        yield from (v for v, r in zip(op.values, loop.results, strict=True) if apart(v, r))
