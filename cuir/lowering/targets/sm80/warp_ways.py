"""Ways of loads in the order of operands of TF32 products, and of copies by threads."""

from __future__ import annotations

from ....syntax.types import PANEL_BYTES
from ...analyses.memory import array_of
from ...analyses.stores import is_panelled
from ...ir import ops
from ...ir.ir_types import SharedT, TensorT
from ...layouts.tile_layouts import EIGHTS
from ...select.move_ways import NO_PANELS, Move
from ...select.role_facts import RoleFacts
from ...select.ways import Verdict, Ways, fits, misfits

WAYS = Ways()
CHUNK = 16  # bytes that a lane copies at a time
IN_TURNS = "in turns"
MAX_UNROLLED_TURNS, UNROLLED = 16, 4  # turns that are all written out, at most; of more turns


@WAYS.way("load", "eights")
def load_eights(move: Move) -> Verdict | None:
    """Load eight neighbours of each 32 columns, 16 bytes at a time."""
    if move.tile.layout != EIGHTS:
        return None
    return fits("the tile is the left operand of TF32 products alone, whose right operands lie column by column")


# ---- copies by threads
@WAYS.way("copy by threads", IN_TURNS)
def copy_in_turns(op: ops.Perform, role: RoleFacts) -> Verdict:
    """Copy the same columns of all its rows by each lane: addresses are computed once, and advance by constants."""
    view, box = op.arg("shared"), op.arg("box")
    array = array_of(view)
    assert isinstance(view.type, SharedT) and isinstance(array, ops.Shared)
    rows, columns = (int(n) for n in (1, *view.type.sizes)[-2:])
    chunks = columns * view.type.element.itemsize // CHUNK
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
def copy_chunks(op: ops.Perform, role: RoleFacts) -> Verdict:
    """Compute the place of each chunk."""
    return fits(f"{role.threads} lanes take chunks of {CHUNK} bytes in turn, {UNROLLED} turns written out")


def count_unrolled_turns(turns: int) -> int:
    """Return how many turns of a copy are written out."""
    return turns if turns <= MAX_UNROLLED_TURNS else UNROLLED


def _count_outer_dims(t: object, place: object) -> int:
    """Return the number of dims before the last along which a box has more than one element."""
    assert isinstance(t, TensorT)
    sizes = [size for _, size in place.parts] if isinstance(place, ops.At) else list(t.sizes)
    return sum(size not in (-1, 1) for size in sizes[:-1])
