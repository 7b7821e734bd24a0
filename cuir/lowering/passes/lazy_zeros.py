"""Accumulators that begin as zeros are not written: the product that takes them over starts anew.

Where on some paths an accumulator is still zeros and on others it holds a sum, a truth value beside it says which, and the product starts from zeros or adds
by it. That is done for zeros that nothing but products reads, through waits and where paths meet.
"""

from __future__ import annotations

from xdsl.ir import SSAValue

from ...syntax.types import BOOL, F32
from ..ir import ops
from ..ir.rows import Nothing
from ..ir.types import TileT, dtype_of
from ..ir.walk import every, last
from .rewriting import before, insert, replace
from .simplify import number
from .webs import Companions, Web, webs


def run(kernel: ops.Kernel) -> None:
    for role in kernel.roles:
        for op in every(role):
            if _product(op) and "c" in op.args and number(op.args["c"]) == 0:  # type: ignore[attr-defined]
                _with_accumulator(op, None)  # type: ignore[arg-type]
        for web in webs(role, _passed):
            _web(role, web)


def _product(op: object) -> bool:
    return isinstance(op, ops.Perform) and bool(op.entry.effects.group) and bool(op.results)


def _passed(value: SSAValue) -> list[SSAValue]:
    """What an accumulating product, or a wait, gives on."""
    op = value.owner
    if not isinstance(op, ops.Perform):
        return []
    if op.entry.effects.drains and op.results:
        return [op.arguments[op.results.index(value)]]
    return [op.args["c"]] if _product(op) and "c" in op.args else []


def _zero(value: SSAValue) -> bool:
    t = value.type
    return isinstance(t, TileT) and t.layout.data == "full" and dtype_of(value) == F32 and number(value) == 0


def _web(role: ops.Role, web: Web) -> None:
    zeros = [v for v in web.made if _zero(v)]
    if not zeros or not web.joined:
        return
    flowing = _flowing(role, web)
    if not all(_reads_none(v, web) for v in flowing if v not in zeros):
        return
    if not any(_product(u.operation) for v in flowing for u in v.uses):
        return
    beside = Companions(role, web, _make)
    for op in every(role):
        if _product(op) and "c" in op.args and (taken := _before_waits(op.args["c"])) in beside.known:  # type: ignore[attr-defined]
            holds = beside.known[taken][0]
            if ops.known(holds) is not True:
                _with_accumulator(op, holds)  # type: ignore[arg-type]
    for zero in zeros:
        _forget(zero, web)


def _before_waits(value: SSAValue) -> SSAValue:
    """A tile before the waits that it passed through."""
    while isinstance(op := value.owner, ops.Perform) and op.entry.effects.drains:
        value = op.arguments[op.results.index(value)]
    return value


def _flowing(role: ops.Role, web: Web) -> set[SSAValue]:
    """The web's values that may be zeros which nobody wrote."""
    found = {v for v in web.made if _zero(v)}
    left = list(found)
    while left:
        value = left.pop()
        for use in value.uses:
            op = use.operation
            targets: list[SSAValue] = []
            if isinstance(op, ops.Yield):
                parent = op.parent_op()
                assert parent is not None
                targets = [parent.results[use.index]]
                if isinstance(parent, (ops.For, ops.ForUnits)):
                    targets.append(parent.body.block.args[len(parent.body.block.args) - len(parent.carried) + use.index])
            elif isinstance(op, (ops.For, ops.ForUnits)) and value in op.carried:
                i = use.index - (len(op.operands) - len(op.carried))
                targets = [op.body.block.args[len(op.body.block.args) - len(op.carried) + i]]
                targets.append(op.results[i])
            elif isinstance(op, ops.Perform) and op.entry.effects.drains:
                targets = [op.results[use.index]]
                if targets[0] not in found and targets[0] not in web:  # behind the last wait: it joins nothing, and is read
                    found.add(targets[0])
                    left.append(targets[0])
            for target in targets:
                if target in web and target not in found:
                    found.add(target)
                    left.append(target)
        owner = value.block.parent_op() if hasattr(value, "block") else None
        if isinstance(owner, (ops.For, ops.ForUnits)):  # after no turn a loop gives what it was given
            i = value.index - (len(owner.body.block.args) - len(owner.carried))  # type: ignore[attr-defined]
            if i >= 0 and owner.results[i] not in found:
                found.add(owner.results[i])
                left.append(owner.results[i])
    return found


def _reads_none(value: SSAValue, web: Web) -> bool:
    """Whether a value only flows on, or is taken over by products."""
    for use in value.uses:
        op = use.operation
        if isinstance(op, (ops.Yield, ops.For, ops.ForUnits)):
            continue
        if isinstance(op, ops.Perform) and (
            op.entry.effects.drains or (_product(op) and op.args.get("c") is value and op.args["a"] is not value)
        ):
            continue
        return False
    return True


def _make(beside: Companions, value: SSAValue) -> list[SSAValue]:
    """Whether an accumulator holds a sum."""
    op = value.owner
    if isinstance(op, ops.Perform) and op.entry.effects.drains:
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
        if isinstance(op, ops.Yield):
            parent = op.parent_op()
            assert parent is not None
            target = parent.results[use.index]
        elif isinstance(op, (ops.For, ops.ForUnits)):
            target = op.results[use.index - (len(op.operands) - len(op.carried))]
        else:
            continue
        if target in web:
            op.operands[use.index] = insert(op, Nothing(result_types=[zero.type]))


_ = last
