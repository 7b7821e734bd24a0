"""stmatrix: tiles to swizzled panels of shared memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...cuda.places import SharedRef, unsupported
from ...cuda.registry import Printers
from ...ir import ops
from ...ir.types import TileT

if TYPE_CHECKING:
    from ...cuda.role import RolePrinter
    from ...cuda.storage import Storage

PRINTERS = Printers()


@PRINTERS.choice("store blocks")
def store_blocks(role: RolePrinter, op: ops.Perform, ref: SharedRef, base: str, value: str, t: TileT) -> None:
    """A packed tile whose columns are a multiple of 16; `base` is the address of its first element."""
    frag = role.fragment(t)
    if frag.slabs > 1:
        raise unsupported(
            "a store of more than one slab of rows to shared memory at once", role.span(op), f"store {frag.slab} rows at a time"
        )
    row = "16 * warp" if role.threads == 128 else "0"
    role.out.line(f"cuir::store_matrix<{ref.alloc.rows}>({value}, {base}, {row}, lane, {t.shape[1]});")


@PRINTERS.choice("load pairs")
def load_pairs(role: RolePrinter, ref: SharedRef, base: str, target: Storage, t: TileT) -> bool:
    """An accumulator's columns of 8-bit numbers, two with one load and one conversion. Whether the tile is one."""
    if t.dtype.data not in ("f8e4m3", "f8e5m2") or t.layout.data != "full" or not ref.alloc.panelled or role.fragment(t).slabs != 1:
        return False
    role.out.line(f"cuir::load_pairs_{t.dtype.data}<{ref.alloc.rows}, {t.shape[1]}>({target.name}, {base}, row, col);")
    return True


@PRINTERS.choice("load widened")
def load_widened(role: RolePrinter, ref: SharedRef, base: str, target: Storage, t: TileT) -> bool:
    """An accumulator's columns of 8-bit numbers as f16. Whether the tile is one."""
    if not ref.alloc.panelled or role.fragment(t).slabs != 1:
        return False
    role.out.line(f"cuir::load_halves_{ref.alloc.dtype.name}<{ref.alloc.rows}, {t.shape[1]}>({target.name}, {base}, row, col);")
    return True
