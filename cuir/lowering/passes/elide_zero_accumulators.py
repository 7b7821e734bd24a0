"""Leave out the zeros of accumulators: the product that takes them over starts from zeros.

If an accumulator is zero on some paths of the kernel and a sum on others, a flag tells the product whether to start
from zeros.

Only products may read the zeros. This also holds through waits and where paths meet.
"""

from __future__ import annotations

from typing import TypeGuard

from xdsl.ir import Operation, SSAValue, Use

from ...checking.fact_solver import reach
from ...ops.base import PRODUCTS
from ...syntax.types import BOOL, F32
from ..analyses.value_flow import find_targets, is_tile_wait
from ..ir import ops
from ..ir.ir_types import TileT, dtype_of
from ..ir.ir_walk import every
from ..ir.ops import number
from ..ir.row_parts import Nothing
from .rewriting import before, insert, replace
from .webs import Companions, Web, find_webs


def run(kernel: ops.Kernel) -> None:
    """Rewrite products with known zeros, then the webs of accumulators."""
    for role in kernel.roles:
        for op in every(role):
            if _is_product(op) and "c" in op.args and number(op.args["c"]) == 0:
                _replace_accumulator(op, None)
        for web in find_webs(role, _list_passed):
            _rewrite_web(role, web)


def _is_product(op: Operation) -> TypeGuard[ops.Perform]:
    return isinstance(op, ops.Perform) and op.entry.effects.group == PRODUCTS


def _list_passed(value: SSAValue) -> list[SSAValue]:
    """Return the operand that an accumulating product, or a wait, passes on."""
    op = value.owner
    if is_tile_wait(op):
        return [op.arguments[op.results.index(value)]]
    return [op.args["c"]] if isinstance(op, Operation) and _is_product(op) and "c" in op.args else []


def _is_zero(value: SSAValue) -> bool:
    t = value.type
    return isinstance(t, TileT) and t.layout.is_accumulator and dtype_of(value) == F32 and number(value) == 0


def _rewrite_web(role: ops.Role, web: Web) -> None:
    zeros = [v for v in web.definitions if _is_zero(v)]
    if not zeros or not web.joined:
        return
    possible_zeros = _collect_possible_zeros(web)
    if not all(_is_unread(v, possible_zeros) for v in possible_zeros if v not in zeros):
        return
    if not any(_is_product(u.operation) for v in possible_zeros for u in v.uses):
        return
    companions = Companions(role, web, _make_flag)
    for op in every(role):
        if _is_product(op) and "c" in op.args and (source := _skip_waits(op.args["c"])) in companions.by_value:
            holds = companions.by_value[source][0]
            if ops.constant_value(holds) is not True:
                _replace_accumulator(op, holds)
    for zero in zeros:
        _replace_zeros(zero, web)


def _skip_waits(value: SSAValue) -> SSAValue:
    """Return a tile before the waits that it passed through."""
    while is_tile_wait(op := value.owner):
        value = op.arguments[op.results.index(value)]
    return value


def _collect_possible_zeros(web: Web) -> set[SSAValue]:
    """Return the values that may be zeros which are not written.

    These are values of the web, and tiles behind the last wait, which join nothing and are read.
    """

    def follow(value: SSAValue) -> list[SSAValue]:
        return [t for use in value.uses for t in find_targets(use) if t in web or is_tile_wait(use.operation)]

    return reach(filter(_is_zero, web.definitions), follow)


def _is_unread(value: SSAValue, possible_zeros: set[SSAValue]) -> bool:
    """Return whether all uses pass a value on to `possible_zeros`, or are products that take it over."""

    def unread(use: Use) -> bool:
        if into := find_targets(use):
            return possible_zeros.issuperset(into)
        return _is_product(use.operation) and _accumulates(use.operation, value)

    return all(map(unread, value.uses))


def _accumulates(product: ops.Perform, value: SSAValue) -> bool:
    """Return whether a product reads a value as its accumulator alone."""
    return product.args.get("c") is value and product.args["a"] is not value


def _make_flag(companions: Companions, value: SSAValue) -> list[SSAValue]:
    """Return the truth value that says whether an accumulator holds a sum."""
    if is_tile_wait(op := value.owner):
        return companions.of(op.arguments[op.results.index(value)])
    holds = companions.behind(value, ops.constant(not _is_zero(value), BOOL))
    return [holds]


def _replace_accumulator(op: ops.Perform, holds: SSAValue | None) -> None:
    """Replace a product by one with `holds` for its accumulator, or without accumulator."""
    args = {k: v for k, v in op.args.items() if holds is not None or k != "c"}
    if holds is not None:
        args["holds"] = holds
    consts = {k: op.const(k) for k in op.consts.data}
    new = ops.perform(op.op, args, [r.type for r in op.results], consts)
    before(op, new)
    replace(op, new.results)


def _replace_zeros(zero: SSAValue, web: Web) -> None:
    """Replace zeros by undefined registers wherever they flow into the web; other readers keep the zeros."""
    for use in tuple(zero.uses):
        op = use.operation
        if any(target in web for target in find_targets(use)) and not is_tile_wait(op):
            op.operands[use.index] = insert(op, Nothing(result_types=[zero.type]))
