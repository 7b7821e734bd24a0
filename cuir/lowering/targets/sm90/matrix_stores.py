"""Moves of tiles between registers and shared memory: stmatrix, and loads and stores of 8-bit floats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....syntax.types import BF16
from ...cuda.address_sums import SharedRef
from ...cuda.registry import Printers
from ...ir import ops
from ...ir.ir_types import TileT

if TYPE_CHECKING:
    from ...cuda.role import RolePrinter
    from ...cuda.variable_storage import Storage

PRINTERS = Printers()


@PRINTERS.choice("store blocks")
def store_blocks(role: RolePrinter, op: ops.Perform, ref: SharedRef, base: str, value: str, t: TileT) -> None:
    """Emit the store of a packed tile whose columns are a multiple of 16.

    `base` is the address of its first element.
    """
    frag = role.fragment(t)
    row = "16 * warp" if role.threads == 128 else "0"
    if frag.slabs > 1:
        role.out.line(f"cuir::store_slabs<{ref.alloc.rows}, {frag.slab}, {frag.slabs}>({value}, {base}, {row}, lane);")
        return
    role.out.line(f"cuir::store_matrix<{ref.alloc.rows}>({value}, {base}, {row}, lane, {t.shape[1]});")


@PRINTERS.choice("load pairs")
def load_pairs(role: RolePrinter, ref: SharedRef, base: str, target: Storage, t: TileT) -> bool:
    """Emit loads of an accumulator's 8-bit columns in pairs, and return whether the tile is one."""
    if t.dtype.data not in ("f8e4m3", "f8e5m2") or not t.layout.is_accumulator or not ref.alloc.panelled or role.fragment(t).slabs != 1:
        return False
    role.out.line(f"cuir::load_pairs_{t.dtype.data}<{ref.alloc.rows}, {t.shape[1]}>({target.name}, {base}, row, col);")
    return True


@PRINTERS.choice("load widened")
def load_widened(role: RolePrinter, ref: SharedRef, base: str, target: Storage, t: TileT) -> bool:
    """Emit loads of an accumulator's 8-bit columns as f16, and return whether the tile is one."""
    if not ref.alloc.panelled or role.fragment(t).slabs != 1:
        return False
    role.out.line(f"cuir::load_halves_{ref.alloc.dtype.name}<{ref.alloc.rows}, {t.shape[1]}>({target.name}, {base}, row, col);")
    return True


@PRINTERS.choice("load chunks")
def load_chunks(role: RolePrinter, ref: SharedRef, base: str, target: str, t: TileT) -> None:
    """Emit loads of a tile of 8-bit numbers as halves, 16 neighbours at a time."""
    role.out.line(
        f"cuir::load_chunks_{ref.alloc.dtype.name}<{ref.alloc.rows}, {t.shape[1]}, {_warps(role)}, {_is_bf16(t)}>({target}, {base}, {_warp(role)}, lane);"
    )


@PRINTERS.choice("store chunks")
def store_chunks(role: RolePrinter, ref: SharedRef, base: str, value: str, t: TileT) -> None:
    """Emit stores of a tile of halves, 16 neighbours at a time."""
    role.out.line(f"cuir::store_chunks<{ref.alloc.rows}, {t.shape[1]}, {_warps(role)}>({value}, {base}, {_warp(role)}, lane);")


def _warps(role: RolePrinter) -> int:
    return role.threads // 32


def _warp(role: RolePrinter) -> str:
    return "warp" if role.threads == 128 else "0"


def _is_bf16(t: TileT) -> str:
    return "true" if t.element == BF16 else "false"
