"""Copy tiles of 8-bit floats between arrays of shared memory, widened to halves, in chunks.

A thread loads and converts 16 neighbouring elements at once. In the fragment layout of an accumulator, a thread would
load two.

The tiles must have no other reader.
"""

from __future__ import annotations

from ...syntax.types import PANEL_BYTES
from ..analyses.alignment import is_multiple
from ..analyses.memory import Accessed, find_narrow_load, iterate_accesses
from ..analyses.stores import is_panelled
from ..ir import ops
from ..ir.ir_types import SharedT, TileT, tile
from ..ir.ir_walk import every
from ..layouts.layouts import LANES
from ..layouts.tile_layouts import CHUNKS, HALVES
from ..select.selector import find_target, list_ways
from .rewriting import insert, replace

ROWS, COLUMNS = 8, 64  # copied by a warp at a time: a chunk of 16 numbers a lane


def run(kernel: ops.Kernel) -> None:
    """Rewrite the stores of widened tiles."""
    if "chunks" not in dict(list_ways(find_target(kernel.arch.data), "load")):
        return
    for role in kernel.roles:
        for op in list(every(role)):
            if isinstance(op, ops.Perform) and "tile" in op.args and op.args.get("mask") is None and not op.const("add"):
                _move(op, role.threads.data // LANES)


def _move(store: ops.Perform, warps: int) -> None:
    """Rewrite one store with its load, if both are of whole panels."""
    cast, t = store.args["tile"].owner, store.args["tile"].type
    if not isinstance(cast, ops.Apply) or cast.kind.converts is None or not isinstance(t, TileT) or t.element not in HALVES:
        return
    load = find_narrow_load(cast)
    if load is None or load.parent is not store.parent or len(list(cast.result.uses)) != 1:
        return
    rows, columns = t.shape
    if rows % ROWS or columns % COLUMNS or rows // ROWS * (columns // COLUMNS) % warps:
        return
    if not all(_is_in_panels(a, rows) for a in (*iterate_accesses(load), *iterate_accesses(store))):
        return
    chunk_type = tile(t.element, rows, columns, CHUNKS)
    replace(
        cast, [insert(load, ops.Perform(operands=[list(load.operands)], properties=dict(load.properties), result_types=[[chunk_type]]))]
    )
    load.detach()
    load.erase()


def _is_in_panels(accessed: Accessed, rows: int) -> bool:
    """Return whether a place has all rows of an array that lies in panels, and begins with a panel."""
    t, view, array = accessed.place.type, accessed.place.owner, accessed.array
    if not isinstance(t, SharedT) or not isinstance(array, ops.Shared) or not is_panelled(array):
        return False
    array_type = array.result.type
    if t.transposed.data or not isinstance(array_type, SharedT) or int(array_type.sizes[-2]) != rows:
        return False
    while isinstance(view, ops.At):
        start, _ = view.parts[-1]
        if start is not None and not is_multiple(start, PANEL_BYTES // t.element.itemsize):
            return False
        view = view.array.owner
    return True
