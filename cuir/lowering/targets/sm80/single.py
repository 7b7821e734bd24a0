"""Products of f32 operands by mma.sync in TF32: reads of swizzled panels without bank conflicts.

The eight columns of a step of the inner dim may be dealt to lanes in any order, if both operands have the same. In
*tile order* a lane has those of an accumulator: 8 k + 2 c + {0, 1} in step k, where c = lane % 4. In *operand order*,
the layout `eights`, it has 8 c .. 8 c + 7 of a panel's 32 columns in four steps, read 16 bytes at a time, where lanes of
neighbouring rows have no bank conflicts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....syntax.types import PANEL_BYTES
from ...cuda.address_sums import SharedRef
from ...cuda.registry import Printers
from ...ir import ops
from ...ir.ir_types import SharedT, TileT
from ...select.ways import is_selected, way_of
from .warp_ways import DEALT_SINGLES, EIGHTS_AS_TF32

if TYPE_CHECKING:
    from ...cuda.primitives.memory import SharedLoad
    from ...cuda.role import RolePrinter

PRINTERS = Printers()
STEP = 8  # columns of the inner dim that an instruction takes


@PRINTERS.code_of("load", "eights")
def load_eights(role: RolePrinter, load: SharedLoad) -> None:
    """Emit the load of a tile in operand order."""
    frag, out, ref, name = role.fragment(load.t), role.out, load.ref, load.target.name
    at = _emit_operand_places(role, ref, load.base, "row")
    with out.block(f"#pragma unroll\nfor (int i_ = 0; i_ < {frag.count}; i_ += 8)"):
        slab, k = (f"i_ / {4 * frag.groups}", f"i_ / 4 % {frag.groups}") if frag.slabs > 1 else ("0", "i_ / 4")
        place = _make_step_address(ref, at, k, f"{frag.slab * PANEL_BYTES} * ({slab})")
        for half in range(2):
            parts = ", ".join(f"{name}[i_ + {2 * half + i}]" for i in (0, 1, 4, 5))
            out.line(f"cuir::load_pairs({place}{f' + {8 * PANEL_BYTES}' * half}, {parts});")


@PRINTERS.code_of("load", EIGHTS_AS_TF32)
def load_rounded_eights(role: RolePrinter, load: SharedLoad) -> None:
    """Emit the load of a tile in operand order, whose numbers become TF32."""
    load_eights(role, load)
    count, name = role.fragment(load.t).count, load.target.name
    role.out.line(f"#pragma unroll\nfor (int i_ = 0; i_ < {count}; ++i_) {name}[i_] = cuir::as_tf32({name}[i_]);")


def _emit_operand_places(role: RolePrinter, ref: SharedRef, base: str, row: str) -> str:
    """Emit an array with addresses of a lane's columns, of steps 0 and 1 and of steps 2 and 3."""
    at = role.out.temp("at")
    role.out.line(f"uint32_t {at}[2];")
    role.out.line(f"cuir::operand_places<{ref.alloc.rows}>({base}, {row}, lane, {at});")
    return at


def _make_step_address(ref: SharedRef, at: str, k: str, more: str) -> str:
    """Return the address of a lane's columns in the steps k and k + 1, in operand order."""
    return f"{at}[({k}) / 2 % 2] + {ref.alloc.rows * PANEL_BYTES} * (({k}) / 4) + {more}"


@PRINTERS.code_of("multiply", "mma.sync of TF32")
@PRINTERS.code_of("multiply", DEALT_SINGLES)
def multiply(role: RolePrinter, op: ops.Perform, target: str) -> None:
    """Emit `target += a @ b`, in the number of TF32 parts of the product."""
    a, b, out, t = op.arg("a"), op.arg("b"), role.out, op.results[0].type
    assert isinstance(t, TileT) and isinstance(a.type, (TileT, SharedT)) and isinstance(b.type, SharedT)
    frag = role.fragment(t)
    left_view = None if isinstance(a.type, TileT) else role.places.shared(a)
    right_view = role.places.shared(b)
    inner = a.type.shape[1] if isinstance(a.type, TileT) else int(a.type.sizes[1])
    ordered = way_of(op) == DEALT_SINGLES
    steps = 2 if ordered else 1  # read at a time
    base_b, size_b = out.temp("base"), right_view.alloc.rows * PANEL_BYTES
    out.line(f"const uint32_t {base_b} = {right_view.address};")
    if ordered:
        at_b = _emit_operand_places(role, right_view, base_b, "lane / 4")
        read_b = [f"cuir::load_pairs({_make_step_address(right_view, at_b, 'k_', f'{8 * PANEL_BYTES} * j_')}, x_[0], x_[1], x_[2], x_[3]);"]
    elif right_view.transposed:
        read_b = [
            f"cuir::load_pair(cuir::at<{right_view.alloc.rows}>({base_b}, 8 * j_ + lane / 4, 32 * k_ + 8 * (lane % 4)), x_[0], x_[1]);"
        ]
    else:
        at_b = out.temp("at")
        out.line(f"uint32_t {at_b}[4][2];")
        out.line(f"cuir::row_places<{right_view.alloc.rows}>({base_b}, lane, {at_b});")
        read_b = [f"x_[{e}] = cuir::load_one({at_b}[j_ % 4][{e}] + {size_b} * (j_ / 4) + {8 * PANEL_BYTES} * k_);" for e in range(2)]
    if left_view is None:
        register = role.elements.array(a)
        read_a = [f"#pragma unroll\n    for (int i_ = 0; i_ < {4 * steps}; ++i_) x_[i_] = {register}[{inner // 2} * s_ + 4 * k_ + i_];"]
    else:
        base_a = out.temp("base")
        out.line(f"const uint32_t {base_a} = {left_view.address};")
        if ordered:
            place = _make_step_address(
                left_view, _emit_operand_places(role, left_view, base_a, "row"), "k_", f"{frag.slab * PANEL_BYTES} * s_"
            )
            read_a = [
                f"cuir::load_pairs({place}{f' + {8 * PANEL_BYTES}' * h}, x_[{2 * h}], x_[{2 * h + 1}], x_[{2 * h + 4}], x_[{2 * h + 5}]);"
                for h in range(2)
            ]
        else:
            places = [
                f"cuir::at<{left_view.alloc.rows}>({base_a}, {frag.slab} * s_ + row{' + 8' * h}, 32 * k_ + 8 * (lane % 4))"
                for h in range(2)
            ]
            read_a = [f"cuir::load_pair({place}, x_[{2 * h}], x_[{2 * h + 1}]);" for h, place in enumerate(places)]
    parts, ready = int(op.const("parts")), isinstance(a.owner, ops.Perform) and is_selected(a.owner, EIGHTS_AS_TF32)
    out.line(f"cuir::multiply<{parts}, {'true' if ready else 'false'}, {steps}, {frag.slabs}, {frag.groups}, {inner // STEP}>({target},")
    # names that no value of a program has in C++: x would hide a tile of that name
    for head, lines in ((f"int s_, int k_, float (&x_)[{4 * steps}]", read_a), (f"int k_, int j_, float (&x_)[{2 * steps}]", read_b)):
        out.line(f"  [&]({head}) {{")
        for line in lines:
            out.line(f"    {line}")
        out.line("  }," if lines is read_a else "  });")
