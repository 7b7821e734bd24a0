"""Ways of TF32 products and of loads in the order of their operands, and of copies by threads."""

from __future__ import annotations

from xdsl.ir import Operation

from ....syntax.types import F32, I32, PANEL_BYTES
from ...analyses.alignment import find_first_column, is_multiple, varies_by_column
from ...analyses.memory import array_of
from ...analyses.stores import is_panelled
from ...ir import ops
from ...ir.ir_types import ElementT, SharedT, TensorT, TileT
from ...layouts.layouts import LANES
from ...layouts.tile_layouts import EIGHTS, WARP_ROWS
from ...select.move_ways import NO_PANELS, Move
from ...select.product_ways import Product
from ...select.role_facts import RoleFacts
from ...select.ways import Verdict, Ways, fits, misfits

WAYS = Ways()
CHUNK = 16  # bytes that a lane copies at a time
GATHERED = "rows by lanes"
IN_TURNS, EIGHTS_AS_TF32, DEALT_SINGLES = "in turns", "eights as TF32", "mma.sync of TF32, eights"
WHOLE_STEPS, LOADED_AHEAD = "mma.sync m16n8k16", "mma.sync m16n8k16, loaded ahead"
ELEMENT_SIZE = "this element size in cp.async"
LEFT_ALONE = "the tile is the left operand of TF32 products alone, whose right operands lie column by column"
MAX_UNROLLED_TURNS, UNROLLED = 16, 4  # turns that are all written out, at most; of more turns


@WAYS.way("load", EIGHTS_AS_TF32)
def load_rounded_eights(move: Move) -> Verdict | None:
    """Load eight neighbours of each 32 columns, 16 bytes at a time, and round them once for all products."""
    if move.tile.layout != EIGHTS:
        return None
    parts = max((_count_parts(u.operation) for u in move.op.results[0].uses), default=1)
    return misfits(f"a product takes {parts} TF32 parts of each number") if parts > 1 else fits(f"{LEFT_ALONE}, and all take one TF32 part")


@WAYS.way("load", "eights")
def load_eights(move: Move) -> Verdict | None:
    """Load eight neighbours of each 32 columns, 16 bytes at a time."""
    return fits(LEFT_ALONE) if move.tile.layout == EIGHTS else None


def _count_parts(op: Operation) -> int:
    """Return the TF32 parts of each number that a product takes."""
    assert isinstance(op, ops.Perform)
    return int(op.const("parts"))


# ---- products
@WAYS.way("multiply", LOADED_AHEAD)
def multiply_loaded_ahead(product: Product) -> Verdict | None:
    """Load the next blocks while the tensor core multiplies those before."""
    if not product.of_one_size(2):
        return None
    if product.role.limits.has("wgmma"):
        return misfits("kernels with wgmma leave only small products to single warps")
    if product.columns % 16:
        return misfits(f"{product.columns} columns are no multiple of 16")
    return product.judge_operands(in_blocks=True)


@WAYS.way("multiply", WHOLE_STEPS)
def multiply_whole_steps(product: Product) -> Verdict | None:
    """Multiply halves, whose blocks ldmatrix loads, by one instruction a step."""
    return product.judge_operands(in_blocks=True) if product.of_one_size(2) else None


@WAYS.way("multiply", DEALT_SINGLES)
def multiply_dealt_singles(product: Product) -> Verdict | None:
    """Multiply f32 as TF32, reading 16 bytes of a row at a time: each lane has eight neighbours of 32 columns of both."""
    if product.elements != (F32, F32):
        return None
    if not product.by_columns:
        return misfits("the right operand lies row by row")
    if isinstance(product.left, TileT):
        if product.left.layout != EIGHTS:
            return misfits("the left operand was not loaded in eights")
    elif product.inner % EIGHTS.width:
        return misfits(f"{product.inner} columns are no multiple of {EIGHTS.width}")
    return product.judge_operands()


@WAYS.way("multiply", "mma.sync of TF32")
def multiply_singles(product: Product) -> Verdict | None:
    """Multiply f32 as TF32."""
    return product.judge_operands() if product.elements == (F32, F32) else None


# ---- copies by threads
@WAYS.way("copy by threads", GATHERED)
def copy_gathered_rows(op: ops.Perform, role: RoleFacts) -> Verdict | None:
    """Copy each row by the four lanes that hold its indices, chunk by chunk in turn."""
    box, view = op.arg("box"), op.arg("shared").type
    if not isinstance(box.type, ElementT):
        return None
    assert isinstance(box.owner, ops.At) and isinstance(view, SharedT)
    *outer, column = box.owner.starts
    rows, slab = int(view.sizes[-2]), role.threads // LANES * WARP_ROWS
    counted = find_first_column(column)
    unit = CHUNK // view.element.itemsize
    if not _has_element_size(op):
        return misfits(ELEMENT_SIZE)
    if rows % slab:
        return misfits(f"{rows} rows are no multiple of the {slab} whose indices the worker's lanes hold", hint=f"gather {slab} rows")
    if counted is None or any(map(varies_by_column, outer)):
        return misfits("the columns of gathered rows are no neighbours", hint="X[i, c + cols(n)], with i of shape [R, 1]")
    if counted[0] is not None and not is_multiple(counted[0], unit):
        return misfits(f"the first column is not known to be a multiple of {unit}", hint=f"c * {unit} + cols(n)")
    return fits(f"four lanes hold the indices of a row, and copy its chunks of {CHUNK} bytes in turn")


@WAYS.way("copy by threads", IN_TURNS)
def copy_in_turns(op: ops.Perform, role: RoleFacts) -> Verdict | None:
    """Copy the same columns of all its rows by each lane: addresses are computed once, and advance by constants."""
    view, box = op.arg("shared"), op.arg("box")
    if isinstance(box.type, ElementT):
        return None
    array = array_of(view)
    assert isinstance(view.type, SharedT) and isinstance(array, ops.Shared)
    rows, columns = (int(n) for n in (1, *view.type.sizes)[-2:])
    chunks = columns * view.type.element.itemsize // CHUNK
    if not _has_element_size(op):
        return misfits(ELEMENT_SIZE)
    if not is_panelled(array):
        return misfits(NO_PANELS)
    if role.threads % chunks:
        return misfits(f"{role.threads} lanes do not divide into rows of {chunks} chunks")
    turn = role.threads // chunks
    if rows % turn:
        return misfits(f"{rows} rows are no multiple of the {turn} that the lanes copy in a turn")
    if turn & (turn - 1):
        return misfits(f"the lanes copy {turn} rows in a turn, no power of two")
    if _count_outer_dims(box.type, box.owner) > 1:
        return misfits("rows of the box lie along several dims")
    turns = rows // turn
    return fits(f"{turns} turns of {turn} rows in panels of {PANEL_BYTES} bytes, of which {count_unrolled_turns(turns)} are written out")


@WAYS.way("copy by threads", "chunk by chunk")
def copy_chunks(op: ops.Perform, role: RoleFacts) -> Verdict | None:
    """Compute the place of each chunk."""
    if isinstance(op.arg("box").type, ElementT):
        return None
    if not _has_element_size(op):
        return misfits(ELEMENT_SIZE)
    return fits(f"{role.threads} lanes take chunks of {CHUNK} bytes in turn, {UNROLLED} turns written out")


def _has_element_size(op: ops.Perform) -> bool:
    """Return whether i32 are copied to elements of their size."""
    view, tensor = op.arg("shared").type, array_of(op.arg("box")).result.type
    assert isinstance(view, SharedT) and isinstance(tensor, TensorT)
    return tensor.element != I32 or view.element.itemsize == I32.itemsize


def count_unrolled_turns(turns: int) -> int:
    """Return how many turns of a copy are written out."""
    return turns if turns <= MAX_UNROLLED_TURNS else UNROLLED


def _count_outer_dims(t: object, place: object) -> int:
    """Return the number of dims before the last along which a box has more than one element."""
    assert isinstance(t, TensorT)
    sizes = [size for _, size in place.parts] if isinstance(place, ops.At) else list(t.sizes)
    return sum(size not in (-1, 1) for size in sizes[:-1])
