"""Moves of tiles between registers and shared memory: stmatrix, and loads and stores of 8-bit floats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....syntax.types import BF16
from ...cuda.registry import Printers
from ...ir import ops
from ...ir.ir_types import TileT
from ...select.ways import way_of

if TYPE_CHECKING:
    from ...cuda.primitives.memory import SharedLoad, SharedStore
    from ...cuda.role import RolePrinter

PRINTERS = Printers()


@PRINTERS.code_of("store", "stmatrix")
def store_blocks(role: RolePrinter, store: SharedStore) -> None:
    """Emit the store of a packed tile whose columns are a multiple of 16."""
    ref, base, value, t = store.ref, store.base, store.value, store.t
    frag = role.fragment(t)
    row = "16 * warp" if role.threads == 128 else "0"
    if frag.slabs > 1:
        role.out.line(f"cuir::store_slabs<{ref.alloc.rows}, {frag.slab}, {frag.slabs}>({value}, {base}, {row}, lane);")
        return
    role.out.line(f"cuir::store_matrix<{ref.alloc.rows}>({value}, {base}, {row}, lane, {t.shape[1]});")


@PRINTERS.code_of("load", "byte pairs")
def load_byte_pairs(role: RolePrinter, load: SharedLoad) -> None:
    """Emit loads of an accumulator's 8-bit columns in pairs."""
    sizes = f"{load.ref.alloc.rows}, {load.t.shape[1]}"
    role.out.line(f"cuir::load_pairs_{load.t.dtype.data}<{sizes}>({load.target.name}, {load.base}, row, col);")


@PRINTERS.code_of("load", "widened pairs")
def load_widened(role: RolePrinter, load: SharedLoad) -> None:
    """Emit loads of an accumulator's 8-bit columns as f16."""
    sizes = f"{load.ref.alloc.rows}, {load.t.shape[1]}"
    role.out.line(f"cuir::load_halves_{load.ref.alloc.dtype.name}<{sizes}>({load.target.name}, {load.base}, row, col);")


@PRINTERS.code_of("load", "chunks")
def load_chunks(role: RolePrinter, load: SharedLoad) -> None:
    """Emit loads of a tile of 8-bit numbers as halves, 16 neighbours at a time."""
    sizes = f"{load.ref.alloc.rows}, {load.t.shape[1]}, {_warps(role)}, {_is_bf16(load.t)}"
    role.out.line(f"cuir::load_chunks_{load.ref.alloc.dtype.name}<{sizes}>({load.target.name}, {load.base}, {_warp(role)}, lane);")


@PRINTERS.code_of("store", "chunks")
def store_chunks(role: RolePrinter, store: SharedStore) -> None:
    """Emit stores of a tile of halves, 16 neighbours at a time."""
    sizes = f"{store.ref.alloc.rows}, {store.t.shape[1]}, {_warps(role)}"
    role.out.line(f"cuir::store_chunks<{sizes}>({store.value}, {store.base}, {_warp(role)}, lane);")


@PRINTERS.prints("interleave", "transpose_interleaved")
def interleave(role: RolePrinter, op: ops.Apply | ops.Perform) -> None:
    """Emit an interleaved tile, or the transposition of a view, in the way that was selected."""
    role.target.code("interleave", way_of(op))(role, op)


@PRINTERS.code_of("interleave", "blocks")
def transpose_blocks(role: RolePrinter, op: ops.Perform) -> None:
    """Emit the transposition of a view of 8-bit floats, 16 x 32 at a time by a warp."""
    source, target = role.places.shared(op.arg("source")), role.places.shared(op.arg("target"))
    sizes = f"{source.alloc.rows}, {target.alloc.rows}, {source.rows}, {source.cols}, {_warps(role)}"
    starts = ", ".join(f"{ref.address}, {ref.inside.removeprefix(' + ') or '0'}" for ref in (source, target))
    role.out.line(f"cuir::transpose_interleaved<{sizes}>({starts}, {_warp(role)}, lane);")


@PRINTERS.code_of("interleave", "words")
def pack_words(role: RolePrinter, op: ops.Apply) -> None:
    """Emit the packing of rounded numbers to words of the left operand of a product."""
    t = op.result.type
    assert isinstance(t, TileT)
    role.out.line(f"cuir::pack_words_{t.dtype.data}({role.storage(op.result).name}, {role.elements.array(op.arguments[0])});")


def _warps(role: RolePrinter) -> int:
    return role.threads // 32


def _warp(role: RolePrinter) -> str:
    return "warp" if role.threads == 128 else "0"


def _is_bf16(t: TileT) -> str:
    return "true" if t.element == BF16 else "false"
