"""Accumulators that begin as zeros are not written: the product that takes them over starts anew.

Where on some paths an accumulator is still zeros and on others it holds a sum, a truth value beside it says which, and the product starts from zeros or adds
by it. That is done for zeros that nothing but products reads, through waits and where paths meet.
"""

from __future__ import annotations

from typing import TypeGuard

from xdsl.ir import Operation, SSAValue, Use

from ...ops.base import PRODUCTS
from ...syntax.types import BOOL, F32
from ..facts.flow import targets, waits
from ..ir import ops
from ..ir.rows import Nothing
from ..ir.types import TileT, dtype_of
from ..ir.walk import every
from .rewriting import before, insert, replace
from .simplify import number
from .webs import Companions, Web, webs


def run(kernel: ops.Kernel) -> None:
    for role in kernel.roles:
        for op in every(role):
            if _product(op) and "c" in op.args and number(op.args["c"]) == 0:
                _with_accumulator(op, None)
        for web in webs(role, _passed):
            _web(role, web)


def _product(op: Operation) -> TypeGuard[ops.Perform]:
    return isinstance(op, ops.Perform) and op.entry.effects.group == PRODUCTS


def _passed(value: SSAValue) -> list[SSAValue]:
    """What an accumulating product, or a wait, gives on."""
    op = value.owner
    if waits(op):
        return [op.arguments[op.results.index(value)]]
    return [op.args["c"]] if isinstance(op, Operation) and _product(op) and "c" in op.args else []


def _zero(value: SSAValue) -> bool:
    t = value.type
    return isinstance(t, TileT) and t.layout.data == "full" and dtype_of(value) == F32 and number(value) == 0


def _web(role: ops.Role, web: Web) -> None:
    zeros = [v for v in web.made if _zero(v)]
    if not zeros or not web.joined:
        return
    flowing = _flowing(web)
    if not all(_reads_none(v, flowing) for v in flowing if v not in zeros):
        return
    if not any(_product(u.operation) for v in flowing for u in v.uses):
        return
    beside = Companions(role, web, _make)
    for op in every(role):
        if _product(op) and "c" in op.args and (taken := _before_waits(op.args["c"])) in beside.known:
            holds = beside.known[taken][0]
            if ops.known(holds) is not True:
                _with_accumulator(op, holds)
    for zero in zeros:
        _forget(zero, web)


def _before_waits(value: SSAValue) -> SSAValue:
    """A tile before the waits that it passed through."""
    while waits(op := value.owner):
        value = op.arguments[op.results.index(value)]
    return value


def _flowing(web: Web) -> set[SSAValue]:
    """The values that may be zeros which nobody wrote: of the web, and tiles behind the last wait, which join nothing and are read."""
    left = [v for v in web.made if _zero(v)]
    flowing = set(left)
    while left:
        value = left.pop()
        for use in value.uses:
            for target in targets(use):
                if target not in flowing and (target in web or waits(use.operation)):
                    flowing.add(target)
                    left.append(target)
    return flowing


def _reads_none(value: SSAValue, flowing: set[SSAValue]) -> bool:
    """Whether a value only flows on to values that are looked at, too, or is taken over by products."""

    def unread(use: Use) -> bool:
        if into := targets(use):
            return flowing.issuperset(into)
        return _product(use.operation) and _accumulates(use.operation, value)

    return all(map(unread, value.uses))


def _accumulates(product: ops.Perform, value: SSAValue) -> bool:
    """Whether a product reads a value as its accumulator alone."""
    return product.args.get("c") is value and product.args["a"] is not value


def _make(beside: Companions, value: SSAValue) -> list[SSAValue]:
    """Whether an accumulator holds a sum."""
    if waits(op := value.owner):
        return beside.of(op.arguments[op.results.index(value)])
    holds = beside.behind(value, ops.constant(not _zero(value), BOOL))
    return [holds]


def _with_accumulator(op: ops.Perform, holds: SSAValue | None) -> None:
    """The product with `holds` beside its accumulator, or without one."""
    args = {k: v for k, v in op.args.items() if holds is not None or k != "c"}
    if holds is not None:
        args["holds"] = holds
    consts = {k: op.const(k) for k in op.consts.data}
    new = ops.perform(op.op, args, [r.type for r in op.results], consts)
    before(op, new)
    replace(op, new.results)


def _forget(zero: SSAValue, web: Web) -> None:
    """Registers that hold nothing in the place of zeros, wherever these flow into the web; who reads the zeros otherwise still has them."""
    for use in tuple(zero.uses):
        op = use.operation
        if any(target in web for target in targets(use)) and not waits(op):
            op.operands[use.index] = insert(op, Nothing(result_types=[zero.type]))
