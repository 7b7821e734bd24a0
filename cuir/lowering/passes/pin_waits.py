"""Pin exponentials that the program computes during products above the wait for these.

nvcc would move exponentials below the wait for a product, so that the tensor core would idle. Before the wait, the
pass adds a branch that needs the exponentials, so nvcc keeps them there.

They are left to the compiler where arithmetic on all elements of the product follows the wait, since interleaved both
are faster. Such products are those that they meet (P * (dP - delta) of a backward pass), and those that a loop carries
times a factor (acc * alpha).
"""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.ir import Operation, SSAValue

from ...ops.base import PRODUCTS
from ..ir import ops
from ..ir.ir_types import TileT
from ..ir.ir_walk import every, operations
from ..ir.machine_ops import WarpIf, make_pinned
from ..ir.operand_access import Function
from .rewriting import before


def run(kernel: ops.Kernel) -> None:
    """Pin values before each wait for products."""
    for op in every(kernel):
        if isinstance(op, ops.Perform) and op.entry.effects.drains == PRODUCTS and op.results:
            _pin(op)


def _pin(wait: ops.Perform) -> None:
    since = _collect_since_issue(wait)
    special = [r for op in since for r in _list_special_results(op)]
    if not special:
        return
    inputs_by_value: dict[SSAValue, set[SSAValue]] = {}
    for op in since:
        _trace(op, inputs_by_value)
    special = [v for v in special if not _meets_product(v, wait, inputs_by_value)]
    if not special or _is_product_carried(wait):
        return
    best = next((v for v in reversed(list(inputs_by_value)) if _is_float_per_row(v) and set(special) <= inputs_by_value[v]), None)
    last = [v for v in special if not any(v in inputs_by_value[o] and o is not v for o in special)]
    guard = _find_guard(wait)
    condition = None
    if guard is not None:
        inner = next(op for op in guard.then.block.ops if isinstance(op, ops.Perform))
        for op in operations(guard.then.block):
            if isinstance(op, (ops.At, ops.Apply, ops.Constant)):
                op.detach()
                before(guard, op)
        condition = guard.condition, inner.arg(inner.entry.effects.waits or "bar"), inner.arg("parity")
    before(wait, make_pinned([best] if best is not None else last, condition))
    if guard is not None:
        guard.detach()
        guard.erase()


def _trace(op: Operation, inputs_by_value: dict[SSAValue, set[SSAValue]]) -> None:
    """Record the values from which an operation's results are computed."""
    operands = {o for inner in [op, *every(op)] for o in inner.operands}
    for r in op.results:
        inputs_by_value[r] = {r} | {x for o in operands for x in inputs_by_value.get(o, {o})}


def _meets_product(value: SSAValue, wait: ops.Perform, inputs_by_value: Mapping[SSAValue, set[SSAValue]]) -> bool:
    """Return whether a tile meets the product in elementwise arithmetic after the wait.

    The search ends at the next product.
    """
    if not _is_full(value):
        return False
    inputs, op = dict(inputs_by_value), wait.next_op
    while op is not None and not (isinstance(op, ops.Perform) and op.entry.traits.product):
        _trace(op, inputs)
        for r in op.results:
            if _is_full(r) and value in inputs[r] and not inputs[r].isdisjoint(wait.results):
                return True
        op = op.next_op
    return False


def _is_product_carried(wait: ops.Perform) -> bool:
    """Return whether a loop carries the result of arithmetic on the product, outside of branches."""
    inputs: dict[SSAValue, set[SSAValue]] = {}
    op = wait.next_op
    while op is not None:
        _trace(op, inputs)
        if (
            isinstance(op, (ops.Apply, Function))
            and _is_full(result := op.results[0])
            and not inputs[result].isdisjoint(wait.results)
            and any(isinstance(use.operation, ops.Yield) for use in result.uses)
        ):
            return True
        op = op.next_op
    return False


def _is_full(value: SSAValue) -> bool:
    return isinstance(value.type, TileT) and value.type.layout.is_fragment


def _collect_since_issue(wait: ops.Perform) -> list[Operation]:
    """Return the operations of the wait's block since the issue of its products.

    These are all operations before it if the issue is in another block.
    """
    since: list[Operation] = []
    op = wait.prev_op
    while op is not None and not (any(r in wait.arguments for r in op.results) and isinstance(op, ops.Perform)):
        since.append(op)
        op = op.prev_op
    return since[::-1]


def _list_special_results(op: Operation) -> list[SSAValue]:
    """Return the tiles that an operation makes with the unit of exponentials and reciprocals."""
    if isinstance(op, WarpIf):
        return []
    if isinstance(op, Function) and op.SPECIAL:
        return [op.results[0]]
    if isinstance(op, ops.Apply) and isinstance(op.result.type, TileT) and op.entry.traits.special:
        return [op.result]
    return []


def _is_float_per_row(value: SSAValue) -> bool:
    t = value.type
    return isinstance(t, TileT) and t.layout.varies_by_row and not t.layout.varies_by_column and t.element.is_float


def _find_guard(wait: ops.Perform) -> ops.If | None:
    """Return a branch right before the wait whose only effect is a wait for a barrier."""
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
