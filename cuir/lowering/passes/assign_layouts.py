"""Give operands and sums of products the layouts in which lanes load operands from shared memory.

Lanes load left operands many bytes at a time. mma.sync takes one column of an 8-bit right operand from a lane, but a
load gives two: sums keep permuted columns until after the loop.

The columns of the inner dim may be dealt to lanes in any order that both operands of a product have: a left operand
whose right operands lie column by column has the layout `eights`, or of halves by 8-bit floats `fours`. Interleaved
8-bit floats have the layout `words`.

The layout `dealt` has columns of even numbers first. Exchanges cost more than the products. A sum that a loop carries
has it if all values that flow into it are such products, constants, or elementwise functions of the sum and numbers
per row. Readers within the loop get the columns in order, if that takes fewer instructions than the products save.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from typing import TypeGuard

from xdsl.ir import Attribute, Operation, SSAValue, Use

from ...syntax.types import F32, PANEL_BYTES
from ..analyses.memory import array_of, iterate_accesses
from ..analyses.stores import is_panelled
from ..analyses.value_flow import find_sources, find_targets
from ..ir import ops
from ..ir.ir_types import SharedT, TileT, dtype_of, is_scalar, tile
from ..ir.ir_walk import every, find_innermost_loop
from ..ir.machine_tiles import convert_layout
from ..ir.ops import number
from ..layouts.conversions import Conversion, plan_conversion
from ..layouts.layouts import LANES
from ..layouts.tile_layouts import DEALT, EIGHTS, FOURS, HALVES, WORDS, TileLayout
from .rewriting import insert
from .webs import Web, find_webs

WORD, SHUFFLES_OF_A_WORD = 4, 2  # bytes of a register; of the 8-bit numbers in it
ROWS_OF_A_WARP = 16  # of a tile that has as many rows as its warps hold


def run(kernel: ops.Kernel) -> None:
    """Assign layouts to left operands, and to the webs of sums that allow it."""
    for role in kernel.roles:
        _assign_words(role)
        for op in every(role):
            if (layout := _find_operand_layout(op)) is not None:
                _assign(op.results[0], layout)
        products = [op for op in every(role) if _widens_rows(op)]
        for web in find_webs(role, _find_summands) if products else ():
            dealt = [op for op in products if op.results[0] in web]
            if dealt and all(v in web.joined or number(v) is not None or _is_dealt_result(v) for v in (*web.joined, *web.definitions)):
                _deal(role, web, dealt)


def _deal(role: ops.Role, web: Web, products: list[ops.Perform]) -> None:
    """Deal a web, unless readers in a loop around its products make its conversions too costly."""
    values = [v for op in every(role) for v in (*(a for region in op.regions for a in region.block.args), *op.results) if v in web]
    outer_uses = [(v, use) for v in values for use in v.uses if _leaves_web(use, web)]
    saved, spent = Counter[ops.Loop](), Counter[ops.Loop]()  # instructions of a thread in a turn, by the innermost loop
    for product in products:
        if (loop := find_innermost_loop(product)) is not None:
            saved[loop] += _count_exchanges(product)
    for value, use in outer_uses:
        if number(value) is None and _is_within(use.operation, saved.keys()):
            around = find_innermost_loop(use.operation)
            assert around is not None
            spent[around] += _plan_conversion(value, role.threads.data).instructions
    if any(saved[loop] <= cost for loop, cost in spent.items()):
        return
    for value, use in outer_uses:
        if number(value) is not None:
            use.operation.operands[use.index] = _copy_number(value)
        elif not _restores_order(use.operation, role.threads.data // LANES):
            use.operation.operands[use.index] = insert(use.operation, convert_layout(value))
    for value in values:
        _assign(value, DEALT)


def _count_exchanges(product: ops.Perform) -> int:
    """Return the shuffles that a product takes of a thread to give lanes the columns of its right operand in order.

    A lane loads words of 4 bytes, and gets the bytes that it needs of two other lanes' words.
    """
    b = product.arg("b").type
    assert isinstance(b, SharedT)
    inner, columns = (int(n) for n in b.sizes)
    return SHUFFLES_OF_A_WORD * inner * columns // (WORD * LANES)


def _plan_conversion(value: SSAValue, threads: int) -> Conversion:
    """Return the conversion of a dealt tile into its natural layout."""
    t = value.type
    assert isinstance(t, TileT)
    return plan_conversion(DEALT.of(t.shape, threads), t.layout.of(t.shape, threads), t.element.itemsize)


def _copy_number(value: SSAValue) -> SSAValue:
    """Make a tile of one number again, for readers outside of the web."""
    op = value.owner
    assert isinstance(op, Operation)
    copy = insert(op, op.clone())
    copy.name_hint = value.name_hint
    return copy


def _assign(value: SSAValue, layout: TileLayout) -> None:
    """Give a tile a layout."""
    assert isinstance(value.type, TileT)
    value._type = tile(value.type.element, *value.type.shape, layout)


# ---- left operands
def _assign_words(role: ops.Role) -> None:
    """Give interleaved tiles, and the variables that hold them, the layout `words` if products alone read them."""
    for op in list(every(role)):
        if not isinstance(op, ops.Apply) or not op.kind.interleaves:
            continue
        if op.result.type.layout != WORDS:  # type: ignore[attr-defined]
            for value in _collect_variable(op.result):
                _assign(value, WORDS)
        if op.result.type.layout == WORDS:  # type: ignore[attr-defined]
            _skip_rounding(op)


def _skip_rounding(op: ops.Apply) -> None:
    """Let an operation that packs words take numbers as they are before a conversion, as it rounds them."""
    cast = op.arguments[0].owner
    if isinstance(cast, ops.Apply) and cast.kind.converts and dtype_of(cast.arguments[0]) == F32:
        op.operands[0] = cast.arguments[0]
        if not list(cast.result.uses):
            cast.detach()
            cast.erase()


def _collect_variable(value: SSAValue) -> list[SSAValue]:
    """Return the values that are one variable with an interleaved tile; none if they are more than left operands."""
    found: dict[SSAValue, None] = {value: None}
    pending = [value]
    while pending:
        v = pending.pop()
        sources = find_sources(v)
        if sources is None and not ops.kind_of(v).interleaves:
            return []
        flows = list(sources or ())
        for use in v.uses:
            into = find_targets(use)
            if not into and _find_right_operand(use.operation, v) is None:
                return []
            flows += into
        pending += [f for f in flows if f not in found]
        found |= dict.fromkeys(flows)
    return list(found)


def _find_operand_layout(load: Operation) -> TileLayout | None:
    """Return the layout of a tile that is loaded from panels to be the left operand of products only.

    Their right operands must lie column by column.
    """
    reads = list(iterate_accesses(load)) if len(load.results) == 1 else []
    t = load.results[0].type if reads else None
    if len(reads) != 1 or reads[0].writes or not isinstance(t, TileT) or not t.layout.is_accumulator:
        return None
    view, array = reads[0].place.type, reads[0].array
    if not isinstance(view, SharedT) or view.transposed.data or view.element != t.element:
        return None
    if not isinstance(array, ops.Shared) or not is_panelled(array):
        return None
    right = [_find_right_operand(u.operation, load.results[0]) for u in load.results[0].uses]
    if not right or not all(isinstance(b, SharedT) and b.transposed.data for b in right):
        return None
    of_bytes = all(isinstance(b, SharedT) and b.element.itemsize == 1 for b in right)
    layout = EIGHTS if t.element == F32 else FOURS if t.element in HALVES and of_bytes else None
    return layout if layout is not None and t.shape[1] % layout.width == 0 else None


def _find_right_operand(user: Operation, tile: SSAValue) -> Attribute | None:
    """Return the type of the right operand of a product that reads a tile as its left operand only."""
    if not isinstance(user, ops.Perform) or not user.entry.traits.product:
        return None
    return user.arg("b").type if user.arg("a") is tile and user.args.get("c") is not tile else None


# ---- sums
def _restores_order(op: Operation, warps: int) -> bool:
    """Return whether an operation stores a tile to panels of shared memory, and so restores the order.

    Each warp must have whole rows of its own.
    """
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
    """Return whether an operation is a product of halves by 8-bit floats that lie row by row."""
    if not isinstance(op, ops.Perform) or not op.entry.traits.product or op.entry.effects.group is not None:
        return False
    a, b = op.arg("a").type, op.arg("b").type
    assert isinstance(a, (TileT, SharedT))
    return isinstance(b, SharedT) and not b.transposed.data and b.element != a.element


def _is_full(value: SSAValue) -> bool:
    t = value.type
    return isinstance(t, TileT) and t.layout.is_accumulator and dtype_of(value) == F32 and t.shape[1] % 16 == 0


def _find_summands(value: SSAValue) -> list[SSAValue]:
    """Return the operands of a value's definition that have its columns."""
    op = value.owner
    if isinstance(op, ops.Perform):
        return [op.args["c"]] if _widens_rows(op) and "c" in op.args else []
    return [a for a in op.arguments if _is_full(a)] if isinstance(op, ops.Apply) and _is_full(value) else []


def _is_dealt_result(value: SSAValue) -> bool:
    """Return whether an operation computes a dealt value from dealt ones."""
    op = value.owner
    if not isinstance(op, ops.Apply):
        return _is_full(value) and _widens_rows(op)
    return (
        _is_full(value)
        and op.kind.elementwise
        and op.exact is None
        and all(_is_constant_along_rows(a) or _is_full(a) for a in op.arguments)
    )


def _is_constant_along_rows(value: SSAValue) -> bool:
    return is_scalar(value) or (isinstance(value.type, TileT) and value.type.layout.is_constant_along_rows)


def _leaves_web(use: Use, web: Web) -> bool:
    """Return whether a use of a dealt value gives no dealt one."""
    op = use.operation
    if into := find_targets(use):
        return not all(v in web for v in into)
    if _widens_rows(op) and op.results[0] in web:
        return op.args.get("c") is not op.operands[use.index] or op.args["a"] is op.operands[use.index]
    return not (isinstance(op, ops.Apply) and op.result in web)


def _is_within(op: Operation, loops: Container[ops.Loop]) -> bool:
    loop = find_innermost_loop(op)
    while loop is not None and loop not in loops:
        loop = find_innermost_loop(loop)
    return loop is not None
