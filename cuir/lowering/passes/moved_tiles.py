"""Tiles of 8-bit floats that go from one array of shared memory to another as halves, and are needed for nothing else, travel in chunks: each thread converts 16 neighbours of a
row, which it loads at once, where an accumulator's layout would give it two."""

from __future__ import annotations

from xdsl.ir import Operation

from ...ops.limits import TARGETS
from ..facts.memory import Accessed, accesses
from ..facts.multiples import multiple
from ..facts.stores import panelled
from ..ir import ops
from ..ir.layouts import HALVES
from ..ir.types import SharedT, TileT, dtype_of, tile
from ..ir.walk import every
from .rewriting import before

WARP, ROWS, COLUMNS = 32, 8, 64  # what a warp takes at a time: a chunk of 16 numbers a lane
PANEL = 128  # bytes of a row that lie together in shared memory


def run(kernel: ops.Kernel) -> None:
    if not TARGETS[kernel.arch.data].has("narrow_floats"):
        return
    for role in kernel.roles:
        for op in list(every(role)):
            if isinstance(op, ops.Perform) and "tile" in op.args and op.args.get("mask") is None and not op.const("add"):
                _move(op, role.threads.data)


def _move(store: ops.Perform, threads: int) -> None:
    value = store.args["tile"]
    t, cast = value.type, value.owner
    if (
        not isinstance(t, TileT)
        or not isinstance(cast, Operation)
        or t.element not in HALVES
        or t.layout.data != "full"
        or len(list(value.uses)) != 1
    ):
        return
    load = cast.arguments[0].owner if isinstance(cast, ops.Apply) and cast.kind.converts is not None else cast
    if not isinstance(load, ops.Perform) or len(list(load.results[0].uses)) != 1 or load.parent is not store.parent:
        return
    rows, columns = t.shape
    if rows % ROWS or columns % COLUMNS or rows // ROWS * (columns // COLUMNS) % (threads // WARP):
        return
    touched = [*accesses(load), *accesses(store)]
    if (
        [a.writes for a in touched] != [False, True]
        or not all(_in_panels(a, rows) for a in touched)
        or not dtype_of(touched[0].place).narrow
    ):
        return
    moved = ops.Perform(
        operands=[list(load.operands)], properties=dict(load.properties), result_types=[[tile(t.element, rows, columns, "chunks")]]
    )
    before(load, moved)
    moved.results[0].name_hint = value.name_hint
    value.replace_all_uses_with(moved.results[0])
    for old in (cast, load) if cast is not load else (load,):
        old.detach()
        old.erase()


def _in_panels(accessed: Accessed, rows: int) -> bool:
    """Whether a place is of all rows of an array that lies in panels, and begins with one."""
    t, view, array = accessed.place.type, accessed.place.owner, accessed.array
    if not isinstance(t, SharedT) or not isinstance(array, ops.Shared) or not panelled(array):
        return False
    whole = array.result.type
    if t.transposed.data or not isinstance(whole, SharedT) or int(whole.sizes[-2]) != rows:
        return False
    while isinstance(view, ops.At):
        start, _ = view.parts[-1]
        if start is not None and not multiple(start, PANEL // t.element.itemsize):
            return False
        view = view.array.owner
    return True
