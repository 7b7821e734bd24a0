"""mma.sync of halves by 8-bit floats, which a warp widens on their way from swizzled panels of shared memory to the tensor core.

ldmatrix moves blocks of 16-bit words, so that a lane gets two neighbours of a row where mma.sync takes one number. Of a right operand that lies column by column these are
neighbours along the inner dim, whose 16 numbers of a step may be dealt to lanes in any order that both operands have: in *operand order* lane c of the four that share a row has
4 c .. 4 c + 3. A tile that was loaded to be the left operand of such products alone lies so in registers; with any other one the words are exchanged among the four lanes. Of one
that lies row by row they are neighbours along its columns, and eight lanes exchange them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdsl.ir import Operation, SSAValue

from ....syntax.types import BF16
from ...cuda.places import SharedRef, unsupported
from ...cuda.registry import Printers
from ...ir import ops
from ...ir.layouts import HALVES
from ...ir.machine_tiles import DEALT
from ...ir.types import SharedT, TileT
from ..sm80 import single

if TYPE_CHECKING:
    from ...cuda.role import RolePrinter

PRINTERS = Printers()
STEP = 16  # numbers of the inner dim that an instruction takes


def in_operand_order(tile: SSAValue) -> bool:
    """Whether registers hold a tile in operand order: one that was loaded to be the left operand of products alone whose right operand is widened and lies column by column."""
    load, t = tile.owner, tile.type
    if not isinstance(load, ops.Perform) or load.op != "load" or not isinstance(t, TileT) or t.element not in HALVES:
        return False
    view = load.arg("view").type
    if not isinstance(view, SharedT) or view.transposed.data or view.element != t.element or t.layout.data != "full" or t.shape[1] % STEP:
        return False
    return all(single.takes_on_the_left(u.operation, tile) and _widens(u.operation) for u in tile.uses)


def _widens(product: Operation) -> bool:
    """Whether the right operand of a product is of 8-bit floats."""
    assert isinstance(product, ops.Perform)
    b = product.arg("b").type
    return isinstance(b, SharedT) and b.element.itemsize == 1


@PRINTERS.choice("load operand")
def load_operand(role: RolePrinter, op: ops.Perform, ref: SharedRef, base: str, name: str) -> bool:
    """Loads a tile in the order in which products want it; False if they want it as an accumulator lies."""
    tile = op.results[0]
    if not ref.alloc.panelled or not in_operand_order(tile):
        return single.load_operand(role, op, ref, base, name)
    assert isinstance(tile.type, TileT)
    frag, out = role.fragment(tile.type), role.out
    at = _place_on_the_left(role, ref, base)
    steps = frag.groups // 2
    with out.block(f"#pragma unroll\nfor (int i_ = 0; i_ < {frag.slabs * steps}; ++i_)"):
        slab, k = (f"i_ / {steps}", f"i_ % {steps}") if frag.slabs > 1 else ("0", "i_")
        parts = ", ".join(f"{name}[4 * i_ + {i}]" for i in range(4))
        out.line(f"cuir::load_left<{ref.alloc.rows}>({at}, {frag.slab} * ({slab}), {k}, {parts});")
    return True


def _place_on_the_left(role: RolePrinter, ref: SharedRef, base: str) -> str:
    at = role.out.temp("at")
    role.out.line(f"const uint32_t {at} = cuir::at<{ref.alloc.rows}>({base}, row, 8 * (lane % 4));")
    return at


@PRINTERS.choice("multiply widened")
def multiply(role: RolePrinter, op: ops.Perform, target: str) -> None:
    """target += a @ b, of halves by 8-bit floats in shared memory."""
    a, b, out, t = op.arg("a"), op.arg("b"), role.out, op.results[0].type
    assert isinstance(t, TileT) and isinstance(a.type, (TileT, SharedT)) and isinstance(b.type, SharedT)
    frag, span = role.fragment(t), role.span(op)
    left = None if isinstance(a.type, TileT) else role.places.shared(a)
    right = role.places.shared(b)
    for view in (left, right):
        if view is not None and not view.alloc.panelled:
            raise unsupported("an operand in shared memory whose rows are no whole panels", span)
    if left is not None and left.transposed:
        raise unsupported("a transposed left operand of mma", span)
    inner = a.type.shape[1] if isinstance(a.type, TileT) else int(a.type.sizes[1])
    ordered = right.transposed and (left is not None or in_operand_order(a))
    base = out.temp("base")
    out.line(f"const uint32_t {base} = {right.address};")
    if left is None:
        register = role.elements.array(a)
        read = f"#pragma unroll\n    for (int i_ = 0; i_ < 4; ++i_) x_[i_] = {register}[{inner // 4} * s_ + 4 * k_ + i_];"
    else:
        base_a, parts = out.temp("base"), "x_[0], x_[1], x_[2], x_[3]"
        out.line(f"const uint32_t {base_a} = {left.address};")
        if ordered:
            read = f"cuir::load_left<{left.alloc.rows}>({_place_on_the_left(role, left, base_a)}, {frag.slab} * s_, k_, {parts});"
        else:
            at, first = out.temp("at"), f"{'16 * warp + ' if role.threads == 128 else ''}(lane & 15)"
            out.line(f"const uint32_t {at} = cuir::at<{left.alloc.rows}>({base_a}, {first}, 16 * (lane >> 4));")
            read = f"cuir::load_matrix(cuir::beyond<{left.alloc.rows}>({at}, {frag.slab} * s_, 32 * k_), {parts});"
    which = f"multiply_{'columns' if right.transposed else 'rows'}_{b.type.element.name}"
    switches = [a.type.element == BF16, ordered if right.transposed else bool(op.const(DEALT, False))]
    sizes = f"{right.alloc.rows}, {frag.slabs}, {frag.groups}, {inner // STEP}"
    out.line(f"cuir::{which}<{', '.join('true' if s else 'false' for s in switches)}, {sizes}>({target}, {base}, lane,")
    # names that no value of a program has in C++: a tile called x would be hidden
    out.line("  [&](int s_, int k_, uint32_t (&x_)[4]) {")
    out.line(f"    {read}")
    out.line("  });")
