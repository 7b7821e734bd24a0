"""ldmatrix: loads of tiles from swizzled panels of shared memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...cuda.address_sums import SharedRef
from ...cuda.registry import Printers
from ...cuda.variable_storage import Storage
from ...ir.ir_types import TileT

if TYPE_CHECKING:
    from ...cuda.role import RolePrinter

PRINTERS = Printers()


@PRINTERS.choice("load blocks")
def load_blocks(role: RolePrinter, ref: SharedRef, base: str, target: Storage, t: TileT) -> None:
    """Emit the load of a packed tile whose columns are a multiple of 16.

    `base` is the address of its first element.
    """
    frag = role.fragment(t)
    first, rows = role.out.temp("first"), ref.alloc.rows
    row = f"{'16 * warp + ' if role.threads == 128 else ''}(lane & 15)"
    role.out.line(f"const uint32_t {first} = cuir::at<{rows}>({base}, {row}, 16 * (lane >> 4));")
    with role.out.block(f"#pragma unroll\nfor (int p_ = 0; p_ < {frag.count // 2}; p_ += 4)"):
        per_slab = frag.groups * 2
        j = f"p_ % {per_slab} / 4" if frag.slabs > 1 else "p_ / 4"
        slab = f"{frag.slab} * (p_ / {per_slab})" if frag.slabs > 1 else "0"
        location = f"cuir::beyond<{rows}>({first}, {slab}, 32 * ({j}))"
        name = target.name
        role.out.line(f"cuir::load_matrix({location}, {name}[p_], {name}[p_ + 1], {name}[p_ + 2], {name}[p_ + 3]);")
