"""Insert a wait for a product in flight before its registers are copied.

At the end of a branch, a value may have to move to other registers. If a product in flight still writes the value's
registers, the copy would read them too early, so the pass waits first.

ptxas would also serialise every product. The same holds where a product goes on with an accumulator whose registers
hold another live value.
"""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.ir import Operation, SSAValue

from ...ops import TABLE
from ...ops.base import PRODUCTS
from ..analyses.variables import Variables
from ..ir import ops
from ..ir.ir_walk import every, last
from ..ir.machine_ops import note
from .rewriting import before

WAIT = next(name for name, entry in TABLE.items() if entry.effects.drains == PRODUCTS)
CHOICE = (
    "a product in flight is waited for here, since its registers are copied: another value that is needed later lies where it would go on"
)


def run(kernel: ops.Kernel) -> None:
    """Insert waits in each role until no product in flight is copied."""
    for role in kernel.roles:
        if any(isinstance(op, ops.Perform) and op.entry.effects.group == PRODUCTS for op in every(role)):
            while _finish_one(role):
                pass


def _finish_one(role: ops.Role) -> bool:
    """Insert a wait before the first operation that copies products in flight; return whether one does."""
    variables = Variables(role)
    for op in every(role):
        ages = variables.flight.before[op]
        in_flight = [v for v in dict.fromkeys(iterate_copies(op, variables)) if v in ages]
        if in_flight:
            before(op, note(CHOICE))
            pending = min(ages[v] for v in in_flight)
            wait = ops.perform(WAIT, {f"x{i}": v for i, v in enumerate(in_flight)}, [v.type for v in in_flight], {"pending": pending})
            before(op, wait)
            for value, finished in zip(in_flight, wait.results, strict=True):
                finished.name_hint = value.name_hint
                for i, operand in enumerate(op.operands):
                    if operand is value:
                        op.operands[i] = finished
            return True
    return False


def iterate_copies(op: Operation, variables: Variables) -> Iterator[SSAValue]:
    """Yield the values that are copied before an operation, or where it passes them on.

    For a loop these are its initial values, and for its yield the values of a turn, if they do not end in the result's
    registers.
    """

    def differ(a: SSAValue, b: SSAValue) -> bool:
        return variables.of.get(a) is not variables.of.get(b)

    if isinstance(op, ops.Perform) and op.entry.effects.group and "c" in op.args and differ(op.args["c"], op.results[0]):
        yield op.args["c"]
    loop = op.parent_op() if isinstance(op, ops.Yield) else op
    if isinstance(loop, ops.Loop):
        values = last(loop.body).values if loop is not op else loop.carried
        yield from (v for v, a, r in zip(values, loop.inner, loop.results, strict=True) if differ(v, a) or differ(a, r))
    elif isinstance(op, ops.Yield) and isinstance(loop, ops.Branch):
        yield from (v for v, r in zip(op.values, loop.results, strict=True) if differ(v, r))
