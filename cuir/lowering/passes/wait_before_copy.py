"""Insert a wait for a product in flight before its registers are copied.

At the end of a branch, a value may have to move to other registers. If a product in flight still writes the value's
registers, the copy would read them too early, so the pass waits first.

ptxas would also serialise every product. The same holds where a product goes on with an accumulator whose registers
hold another live value. Without this pass such values are undefined.
"""

from __future__ import annotations

from ...ops import TABLE
from ...ops.base import PRODUCTS
from ..analyses.variables import Variables, iterate_early_copies
from ..ir import ops
from ..ir.ir_walk import every
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
    op, in_flight = next(iterate_early_copies(role, variables), (role, ()))
    if not in_flight:
        return False
    before(op, note(CHOICE))
    pending = min(variables.flight.before[op][v] for v in in_flight)
    wait = ops.perform(WAIT, {f"x{i}": v for i, v in enumerate(in_flight)}, [v.type for v in in_flight], {"pending": pending})
    before(op, wait)
    for value, finished in zip(in_flight, wait.results, strict=True):
        finished.name_hint = value.name_hint
        for i, operand in enumerate(op.operands):
            if operand is value:
                op.operands[i] = finished
    return True
