"""mma.sync of halves by 8-bit floats, which a warp widens between shared memory and the tensor core.

ldmatrix moves blocks of 16-bit words, so that a lane gets two neighbours of a row where mma.sync takes one number. If
the right operand lies column by column, these are neighbours along the inner dim, whose 16 numbers of a step may be
dealt to lanes in any order that both operands have: in *operand order*, the layout `fours`, lane c of the four that
share a row has 4 c .. 4 c + 3. A tile that was loaded to be the left operand of such products only lies so in registers; for any other
left operand the words are exchanged among the four lanes. If the right operand lies row by row, they are neighbours
along its columns, and eight lanes exchange them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....syntax.types import BF16
from ...cuda.address_sums import SharedRef
from ...cuda.registry import Printers
from ...ir import ops
from ...ir.ir_types import SharedT, TileT
from ...layouts.tile_layouts import DEALT
from ...select.ways import way_of
from .warpgroup_ways import DEALT_WIDENED

if TYPE_CHECKING:
    from ...cuda.primitives.memory import SharedLoad
    from ...cuda.role import RolePrinter

PRINTERS = Printers()
STEP = 16  # numbers of the inner dim that an instruction takes


@PRINTERS.code_of("load", "fours")
def load_fours(role: RolePrinter, load: SharedLoad) -> None:
    """Emit the load of a tile in operand order."""
    frag, out, ref, name = role.fragment(load.t), role.out, load.ref, load.target.name
    at = _emit_left_address(role, ref, load.base)
    steps = frag.groups // 2
    with out.block(f"#pragma unroll\nfor (int i_ = 0; i_ < {frag.slabs * steps}; ++i_)"):
        slab, k = (f"i_ / {steps}", f"i_ % {steps}") if frag.slabs > 1 else ("0", "i_")
        parts = ", ".join(f"{name}[4 * i_ + {i}]" for i in range(4))
        out.line(f"cuir::load_left<{ref.alloc.rows}>({at}, {frag.slab} * ({slab}), {k}, {parts});")


def _emit_left_address(role: RolePrinter, ref: SharedRef, base: str) -> str:
    """Emit the address of a lane's part of a left operand in operand order, and return its name."""
    at = role.out.temp("at")
    role.out.line(f"const uint32_t {at} = cuir::at<{ref.alloc.rows}>({base}, row, 8 * (lane % 4));")
    return at


@PRINTERS.code_of("multiply", "mma.sync, widened")
@PRINTERS.code_of("multiply", DEALT_WIDENED)
def multiply(role: RolePrinter, op: ops.Perform, target: str) -> None:
    """Emit `target += a @ b`, of halves by 8-bit floats in shared memory."""
    a, b, out, t = op.arg("a"), op.arg("b"), role.out, op.results[0].type
    assert isinstance(t, TileT) and isinstance(a.type, (TileT, SharedT)) and isinstance(b.type, SharedT)
    frag = role.fragment(t)
    left_view = None if isinstance(a.type, TileT) else role.places.shared(a)
    right_view = role.places.shared(b)
    inner = a.type.shape[1] if isinstance(a.type, TileT) else int(a.type.sizes[1])
    ordered = way_of(op) == DEALT_WIDENED
    base = out.temp("base")
    out.line(f"const uint32_t {base} = {right_view.address};")
    if left_view is None:
        register = role.elements.array(a)
        read = f"#pragma unroll\n    for (int i_ = 0; i_ < 4; ++i_) x_[i_] = {register}[{inner // 4} * s_ + 4 * k_ + i_];"
    else:
        base_a, parts = out.temp("base"), "x_[0], x_[1], x_[2], x_[3]"
        out.line(f"const uint32_t {base_a} = {left_view.address};")
        if ordered:
            read = f"cuir::load_left<{left_view.alloc.rows}>({_emit_left_address(role, left_view, base_a)}, {frag.slab} * s_, k_, {parts});"
        else:
            at, first = out.temp("at"), f"{'16 * warp + ' if role.threads == 128 else ''}(lane & 15)"
            out.line(f"const uint32_t {at} = cuir::at<{left_view.alloc.rows}>({base_a}, {first}, 16 * (lane >> 4));")
            read = f"cuir::load_matrix(cuir::beyond<{left_view.alloc.rows}>({at}, {frag.slab} * s_, 32 * k_), {parts});"
    function = f"multiply_{'columns' if right_view.transposed else 'rows'}_{b.type.element.name}"
    switches = [a.type.element == BF16, ordered if right_view.transposed else t.layout == DEALT]
    sizes = f"{right_view.alloc.rows}, {frag.slabs}, {frag.groups}, {inner // STEP}"
    out.line(f"cuir::{function}<{', '.join('true' if s else 'false' for s in switches)}, {sizes}>({target}, {base}, lane,")
    # names that no value of a program has in C++: x would hide a tile of that name
    out.line("  [&](int s_, int k_, uint32_t (&x_)[4]) {")
    out.line(f"    {read}")
    out.line("  });")
