"""Ways that Hopper's instructions allow: stmatrix, and conversions of 8-bit floats between memory and registers."""

from __future__ import annotations

from xdsl.ir import Operation, SSAValue

from ....syntax.types import F8E4M3, F8E5M2, PANEL_BYTES
from ...analyses.alignment import begins_panel
from ...analyses.memory import array_of
from ...analyses.stores import is_panelled
from ...ir import ops
from ...ir.ir_types import SharedT, TileT
from ...ir.ir_walk import find_innermost_loop
from ...layouts.tile_layouts import CHUNKS, FOURS, WORDS
from ...select.move_ways import NO_PANELS, Move, check_blocks, describe_blocks
from ...select.product_ways import Product, check_panels
from ...select.role_facts import RoleFacts
from ...select.ways import Verdict, Ways, fits, misfits

WAYS = Ways()
BYTES = (F8E4M3, F8E5M2)
BY_WARPS, DEALT_WIDENED = "by warps", "mma.sync, widened in fours"


def _check_byte_pairs(move: Move) -> str:
    """Return why two neighbouring 8-bit columns are not read at once, "" if they can be."""
    if move.transposed:
        return move.check_rows()
    if not move.in_panels:
        return NO_PANELS
    return f"the tile has {move.slabs} slabs of rows" if move.slabs != 1 else ""


@WAYS.way("load", "chunks")
def load_chunks(move: Move) -> Verdict | None:
    """Load 16 neighbouring 8-bit numbers at once, as halves."""
    return fits("the tile is widened and stored again alone, so that lanes may hold whole chunks") if move.tile.layout == CHUNKS else None


@WAYS.way("load", "widened pairs")
def load_widened(move: Move) -> Verdict | None:
    """Load two neighbouring 8-bit numbers at once, as f16."""
    if move.element == move.tile.element:
        return None
    reason = _check_byte_pairs(move)
    return (
        misfits(reason) if reason else fits(f"memory holds {move.element.name}, registers {move.tile.element.name}, rows in whole panels")
    )


@WAYS.way("load", "fours")
def load_fours(move: Move) -> Verdict | None:
    """Load four neighbours of each 16 columns."""
    if move.tile.layout != FOURS:
        return None
    return fits("the tile is the left operand of products by 8-bit floats alone, which lie column by column")


@WAYS.way("load", "byte pairs")
def load_byte_pairs(move: Move) -> Verdict | None:
    """Load two neighbouring 8-bit numbers at once."""
    if move.tile.element not in BYTES or not move.tile.layout.is_accumulator:
        return None
    reason = move.check_rows() or _check_byte_pairs(move)
    return misfits(reason) if reason else fits(f"8-bit numbers of whole panels, one slab of {move.tile.shape[0]} rows")


@WAYS.way("store", "chunks")
def store_chunks(move: Move) -> Verdict | None:
    """Store 16 neighbouring halves at once."""
    return fits("the tile was loaded in chunks, and widened") if move.tile.layout == CHUNKS else None


@WAYS.way("store", "stmatrix")
def store_blocks(move: Move) -> Verdict | None:
    """Store four blocks of 8 x 8 halves at a time."""
    if not move.is_matrix:
        return None
    reason = "a mask selects elements" if move.masked else check_blocks(move)
    return misfits(reason) if reason else fits(describe_blocks(move))


# ---- the copy engine
def _judge_box(op: ops.Perform, role: RoleFacts) -> Verdict | None:
    """Return the verdict on a copy that no tensor map describes, None if one does, or if the operation copies nothing."""
    if "box" not in op.args:
        return None
    array, tensor, rank = array_of(op.arg("shared")), array_of(op.arg("box")), role.limits.tensor_rank
    assert isinstance(array, ops.Shared) and isinstance(tensor, ops.Tensor)
    if not is_panelled(array) and array.layout.rows > 1:
        return misfits(f"a bulk copy to rows that are no whole panels of {PANEL_BYTES} bytes")
    if is_panelled(array) and not begins_panel(op.arg("shared")):
        return misfits("a bulk copy whose shared part begins inside of a panel")
    if len(tensor.dims) > rank:
        text = f"a bulk copy takes tensors of up to {rank} dims, `{tensor.symbol.data}` has {len(tensor.dims)}"
        return misfits(text, "L003", "merge dims of the tensor that are contiguous")
    return None


@WAYS.way("copy by the engine", "one lane")
def copy_bulk(op: ops.Perform, role: RoleFacts) -> Verdict:
    """Start a bulk copy by one lane."""
    if refused := _judge_box(op, role):
        return refused
    view = op.arg("shared").type
    assert isinstance(view, SharedT)
    panels = int(view.sizes[-1]) * view.element.itemsize // PANEL_BYTES
    return fits(f"one lane starts {panels} copies, one for each panel of {PANEL_BYTES} bytes" if panels > 1 else "one lane starts one copy")


@WAYS.way("store by the engine", BY_WARPS)
def store_by_warps(op: ops.Perform, role: RoleFacts) -> Verdict:
    """Start a bulk store, or wait for it, by each warp for its rows."""
    if refused := _judge_box(op, role):
        return refused
    if op.const("by_warps"):
        return fits("each warp stores the 16 rows that it wrote, without waiting for the others")
    return misfits("the warps do not write just the rows that they would store")


@WAYS.way("store by the engine", "one lane")
def store_bulk(op: ops.Perform, role: RoleFacts) -> Verdict:
    """Start a bulk store, or wait for it, by one lane for all warps."""
    return _judge_box(op, role) or fits("one lane stores what all lanes wrote")


# ---- products
@WAYS.way("multiply", DEALT_WIDENED)
def multiply_dealt_bytes(product: Product) -> Verdict | None:
    """Multiply halves by 8-bit floats: each lane has four neighbours of 16 columns of both."""
    if not _widens(product):
        return None
    if not product.by_columns:
        return misfits("the right operand lies row by row")
    if isinstance(product.left, TileT) and product.left.layout != FOURS:
        return misfits("the left operand was not loaded in fours")
    return product.judge_operands()


@WAYS.way("multiply", "mma.sync, widened")
def multiply_bytes(product: Product) -> Verdict | None:
    """Multiply halves by 8-bit floats, which lanes exchange."""
    return product.judge_operands() if _widens(product) else None


def _widens(product: Product) -> bool:
    a, b = product.elements
    return a != b


@WAYS.way("multiply asynchronously", "wgmma SS")
def multiply_shared(op: ops.Perform) -> Verdict | None:
    """Multiply two operands in shared memory."""
    a = op.arg("a").type
    if not isinstance(a, SharedT):
        return None
    if reason := check_panels(op, inside=True):
        return misfits(reason)
    return fits(f"the left operand lies in shared memory, {_name_major(a, 'K', 'M')}; {_describe_right(op)}")


@WAYS.way("multiply asynchronously", "wgmma RS, renewed")
def multiply_renewed(op: ops.Perform) -> Verdict | None:
    """Multiply a left operand in registers that does not change in the loop.

    Its registers are written again in each turn: nvcc would move the products' reads of them out of the loop.
    """
    if not isinstance(op.arg("a").type, TileT) or not _is_loop_invariant(op.arg("a"), op):
        return None
    if refused := _judge_left(op):
        return refused
    return fits(f"the left operand in registers is the same in each turn of the loop; {_describe_right(op)}")


@WAYS.way("multiply asynchronously", "wgmma RS")
def multiply_registers(op: ops.Perform) -> Verdict | None:
    """Multiply a left operand in registers."""
    if not isinstance(op.arg("a").type, TileT):
        return None
    return _judge_left(op) or fits(f"the left operand is computed in registers; {_describe_right(op)}")


def _judge_left(op: ops.Perform) -> Verdict | None:
    """Return the verdict on a product whose left operand no instruction takes from registers, None if one does."""
    if reason := check_panels(op, inside=True):
        return misfits(reason)
    t = op.arg("a").type
    if isinstance(t, TileT) and t.element in BYTES and t.layout != WORDS:
        hint = "interleave(x), and rows of the right operand in this order: transpose_interleaved"
        return misfits("a left operand of 8 bits in registers whose columns are in order", hint=hint)
    return None


@WAYS.way("interleave", "blocks")
def transpose_blocks(op: ops.Apply | ops.Perform) -> Verdict | None:
    """Transpose 16 x 32 numbers in shared memory at a time, by ldmatrix and stmatrix."""
    return fits("rows of 8-bit numbers in panels, in multiples of 16 and 32") if isinstance(op, ops.Perform) else None


@WAYS.way("interleave", "words")
def interleave(op: ops.Apply | ops.Perform) -> Verdict:
    """Pack four numbers that a thread has of 16 columns into a register, the left operand of wgmma."""
    t = op.results[0].type
    assert isinstance(t, TileT)
    if t.layout != WORDS:
        return misfits("an interleaved tile that is more than the left operand of products", hint="interleave it for products alone")
    return fits("four numbers of 8 bits are a register of the left operand")


def _describe_right(op: ops.Perform) -> str:
    b = op.arg("b").type
    assert isinstance(b, SharedT)
    return f"the right one lies {_name_major(b, 'N', 'K')}"


def _name_major(view: SharedT, plain: str, transposed: str) -> str:
    """Return along which dim of the product a view's rows lie."""
    return f"{transposed if view.transposed.data else plain}-major"


def _is_loop_invariant(value: SSAValue, op: Operation) -> bool:
    """Return whether a value is the same in all iterations of the innermost loop around an operation.

    A value that the loop computes from such values alone counts: compilers hoist it.
    """
    loop = find_innermost_loop(op)
    pending, seen = [value], set[SSAValue]()
    while loop is not None and pending:
        v = pending.pop()
        if v in seen or not loop.is_ancestor(v.owner):
            continue
        if not isinstance(v.owner, Operation) or v.owner.regions:
            return False
        seen.add(v)
        pending += v.owner.operands
    return loop is not None
