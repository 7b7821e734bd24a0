"""Sums of products whose right operand is widened row by row keep their columns in the order in which lanes get these, as long as nothing asks for a column.

A lane reads two neighbours of a row of 8-bit floats at once, where mma.sync takes one; to exchange them among lanes takes more instructions than to multiply them. In *dealt order* each
16 columns have those of even numbers first. A sum that a loop carries is dealt if all that flows into it is such a product, a number, or made of the sum element by element, with no more
than numbers a row; what else reads it gets it in order, and must do so behind the loop. A store to panels of shared memory puts it in order as it goes: of 16 columns a lane has four
neighbours.
"""

from __future__ import annotations

from typing import TypeGuard

from xdsl.ir import Operation, SSAValue, Use

from ...syntax.types import F32, PANEL_BYTES
from ..facts.flow import targets
from ..facts.memory import array_of
from ..facts.stores import is_panelled
from ..ir import ops
from ..ir.layouts import LANES
from ..ir.machine_tiles import DEALT, in_order
from ..ir.types import SharedT, TileT, dtype_of, is_scalar
from ..ir.walk import every
from .rewriting import before, insert, replace
from .simplify import number
from .webs import Web, webs

ROWS_OF_A_WARP = 16  # of a tile whose rows a warp has no second time


def run(kernel: ops.Kernel) -> None:
    for role in kernel.roles:
        products = [op for op in every(role) if _widens_rows(op)]
        for web in webs(role, _summands) if products else ():
            dealt = [op for op in products if op.results[0] in web]
            if dealt and all(v in web.joined or number(v) is not None or _made(v) for v in (*web.joined, *web.made)):
                _deal(role, web, dealt)


def _deal(role: ops.Role, web: Web, products: list[ops.Perform]) -> None:
    values = [v for op in every(role) for v in (*(a for region in op.regions for a in region.block.args), *op.results) if v in web]
    leaving = [(v, use) for v in values if number(v) is None for use in v.uses if _leaves(use, web)]
    loops = {loop for p in products if (loop := _loop(p)) is not None}
    if any(_within(use.operation, loops) for _, use in leaving):
        return
    for value, use in leaving:
        if _orders(use.operation, role.threads.data // LANES):
            _say_dealt(use.operation)
        else:
            use.operation.operands[use.index] = insert(use.operation, in_order(value))
    for op in products:
        _say_dealt(op)


def _say_dealt(op: Operation) -> None:
    assert isinstance(op, ops.Perform)
    new = ops.perform(op.op, op.args, [r.type for r in op.results], {**{k: op.const(k) for k in op.consts.data}, DEALT: True})
    before(op, new)
    replace(op, new.results)


def _orders(op: Operation, warps: int) -> bool:
    """Whether it stores a whole tile of rows of each warp's own to panels of shared memory, which puts dealt columns in order as it goes."""
    if (
        not isinstance(op, ops.Perform)
        or not {"place", "tile"} <= op.args.keys()
        or op.args.get("mask") is not None
        or op.const("add", False)
    ):
        return False
    place, t = op.arg("place"), op.arg("tile").type
    if not isinstance(place.type, SharedT) or place.type.transposed.data or not isinstance(t, TileT):
        return False
    array = array_of(place)
    return (
        isinstance(array, ops.Shared)
        and is_panelled(array)
        and t.shape[0] % (ROWS_OF_A_WARP * warps) == 0
        and t.shape[1] * F32.itemsize % PANEL_BYTES == 0
    )


def _widens_rows(op: object) -> TypeGuard[ops.Perform]:
    """Whether it is a product of halves by 8-bit floats that lie row by row."""
    if not isinstance(op, ops.Perform) or not op.entry.traits.product or op.entry.effects.group is not None:
        return False
    a, b = op.arg("a").type, op.arg("b").type
    assert isinstance(a, (TileT, SharedT))
    return isinstance(b, SharedT) and not b.transposed.data and b.element != a.element


def _full(value: SSAValue) -> bool:
    t = value.type
    return isinstance(t, TileT) and t.layout.data == "full" and dtype_of(value) == F32 and t.shape[1] % 16 == 0


def _summands(value: SSAValue) -> list[SSAValue]:
    """What has its columns, of a value that is made of others."""
    op = value.owner
    if isinstance(op, ops.Perform):
        return [op.args["c"]] if _widens_rows(op) and "c" in op.args else []
    return [a for a in op.arguments if _full(a)] if isinstance(op, ops.Apply) and _full(value) else []


def _made(value: SSAValue) -> bool:
    """Whether an operation makes a dealt value of dealt ones."""
    op = value.owner
    if not isinstance(op, ops.Apply):
        return _full(value) and _widens_rows(op)
    return _full(value) and op.kind.elementwise and op.exact is None and all(_of_no_column(a) or _full(a) for a in op.arguments)


def _of_no_column(value: SSAValue) -> bool:
    return is_scalar(value) or (isinstance(value.type, TileT) and value.type.layout.data in ("rows", "one"))


def _leaves(use: Use, web: Web) -> bool:
    """Whether something reads a dealt value that gives no dealt one."""
    op = use.operation
    if into := targets(use):
        return not all(v in web for v in into)
    if _widens_rows(op) and op.results[0] in web:
        return op.args.get("c") is not op.operands[use.index] or op.args["a"] is op.operands[use.index]
    return not (isinstance(op, ops.Apply) and op.result in web)


def _within(op: Operation, loops: set[ops.Loop]) -> bool:
    at = _loop(op)
    while at is not None and at not in loops:
        at = _loop(at)
    return at is not None


def _loop(op: Operation) -> ops.Loop | None:
    """The innermost loop around an operation."""
    around = op.parent_op()
    while around is not None and not isinstance(around, ops.Loop):
        around = around.parent_op()
    return around
