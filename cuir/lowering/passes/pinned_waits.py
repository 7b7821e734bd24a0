"""Exponentials that the program computes while products run stay above the wait for these.

Compilers sink arithmetic below a wait, where the tensor core idles meanwhile. A branch before the wait that needs the results keeps them: one on a number that
all of them have gone into, if there is one. A wait for a barrier under a condition that stands there anyway becomes that branch.

They are left to the compiler where arithmetic on all elements of the product follows the wait, which takes less time mixed with them: where they meet the product itself, as the
weights of a backward pass do (P * (dP - delta)), for which the tensor core idles anyway, and where a loop carries on the product times something (acc * alpha in every block).
"""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.ir import Operation, SSAValue

from ...ops.base import PRODUCTS
from ..ir import ops
from ..ir.function import Function
from ..ir.types import TileT
from ..ir.walk import every, operations
from ..ir.warps import WarpIf, pinned
from .rewriting import before


def run(kernel: ops.Kernel) -> None:
    for op in every(kernel):
        if isinstance(op, ops.Perform) and op.entry.effects.drains == PRODUCTS and op.results:
            _pin(op)


def _pin(wait: ops.Perform) -> None:
    since = _since(wait)
    special = [r for op in since for r in _special(op)]
    if not special:
        return
    made_of: dict[SSAValue, set[SSAValue]] = {}
    for op in since:
        _trace(op, made_of)
    special = [v for v in special if not _meets(v, wait, made_of)]
    if not special or _carried(wait):
        return
    best = next((v for v in reversed(list(made_of)) if _number_a_row(v) and set(special) <= made_of[v]), None)
    last = [v for v in special if not any(v in made_of[o] and o is not v for o in special)]
    guard = _guard(wait)
    condition = None
    if guard is not None:
        inner = next(op for op in guard.then.block.ops if isinstance(op, ops.Perform))
        for op in operations(guard.then.block):
            if isinstance(op, (ops.At, ops.Apply, ops.Constant)):
                op.detach()
                before(guard, op)
        condition = guard.condition, inner.arg(inner.entry.effects.waits or "bar"), inner.arg("parity")
    before(wait, pinned([best] if best is not None else last, condition))
    if guard is not None:
        guard.detach()
        guard.erase()


def _trace(op: Operation, made_of: dict[SSAValue, set[SSAValue]]) -> None:
    """Notes what an operation's results are made of."""
    inside = {o for inner in [op, *every(op)] for o in inner.operands}
    for r in op.results:
        made_of[r] = {r} | {x for o in inside for x in made_of.get(o, {o})}


def _meets(value: SSAValue, wait: ops.Perform, made_of: Mapping[SSAValue, set[SSAValue]]) -> bool:
    """Whether elements of a tile meet those of the product that is waited for in arithmetic behind the wait, as far as the next product."""
    if not _elements(value):
        return False
    known, op = dict(made_of), wait.next_op
    while op is not None and not (isinstance(op, ops.Perform) and op.entry.traits.product):
        _trace(op, known)
        for r in op.results:
            if _elements(r) and value in known[r] and not known[r].isdisjoint(wait.results):
                return True
        op = op.next_op
    return False


def _carried(wait: ops.Perform) -> bool:
    """Whether a loop carries on what arithmetic behind the wait, outside of branches, makes of the product that is waited for."""
    known: dict[SSAValue, set[SSAValue]] = {}
    op = wait.next_op
    while op is not None:
        _trace(op, known)
        if (
            isinstance(op, (ops.Apply, Function))
            and _elements(made := op.results[0])
            and not known[made].isdisjoint(wait.results)
            and any(isinstance(use.operation, ops.Yield) for use in made.uses)
        ):
            return True
        op = op.next_op
    return False


def _elements(value: SSAValue) -> bool:
    return isinstance(value.type, TileT) and value.type.layout.data == "full"


def _since(wait: ops.Perform) -> list[Operation]:
    """The operations of the wait's block since the issue of what it waits for; all, if that is not in this block."""
    since: list[Operation] = []
    op = wait.prev_op
    while op is not None and not (any(r in wait.arguments for r in op.results) and isinstance(op, ops.Perform)):
        since.append(op)
        op = op.prev_op
    return since[::-1]


def _special(op: Operation) -> list[SSAValue]:
    """Tiles made with the unit of exponentials and reciprocals."""
    if isinstance(op, WarpIf):
        return []
    if isinstance(op, Function) and op.SPECIAL:
        return [op.results[0]]
    if isinstance(op, ops.Apply) and isinstance(op.result.type, TileT) and op.entry.traits.special:
        return [op.result]
    return []


def _number_a_row(value: SSAValue) -> bool:
    t = value.type
    return isinstance(t, TileT) and t.layout.data in ("rows", "partial") and t.element.is_float


def _guard(wait: ops.Perform) -> ops.If | None:
    """A branch right before the wait whose only effect is a wait for a barrier."""
    op = wait.prev_op
    while isinstance(op, (ops.At, ops.Constant)):
        op = op.prev_op
    if not isinstance(op, ops.If) or op.results or len(op.orelse.block.ops) != 1:
        return None
    effects = [i for i in op.then.block.ops if not isinstance(i, (ops.At, ops.Apply, ops.Constant, ops.Yield))]
    if (
        len(effects) == 1
        and isinstance(effects[0], ops.Perform)
        and effects[0].entry.effects.waits
        and not effects[0].entry.effects.arrives
    ):
        return op
    return None
