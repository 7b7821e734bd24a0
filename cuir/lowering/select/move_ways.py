"""Ways of tiles and numbers between registers and memory that every target has; the last of a step always fits."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.ir import SSAValue

from ...syntax.types import F32, PANEL_BYTES, DType
from ..analyses.alignment import GROUP, begins_panel, find_first_column, is_multiple, lies_in_panel, reads_pairs, varies_by_column
from ..analyses.memory import Array
from ..analyses.stores import is_panelled
from ..ir import ops
from ..ir.ir_types import ElementT, SharedT, TensorT, TileT
from ..ir.ir_walk import is_inlined
from ..layouts.tile_layouts import DEALT, FULL, Fragment
from .role_facts import RoleFacts
from .ways import Verdict, Ways, fits, misfits

WAYS = Ways()
NO_PANELS = f"the array's rows are no whole panels of {PANEL_BYTES} bytes"


@dataclass(frozen=True)
class Move:
    """A tile on its way between registers and a view of shared memory, or a place in a tensor."""

    op: ops.Perform
    place: SSAValue
    tile: TileT
    array: Array
    role: RoleFacts

    @property
    def element(self) -> DType:
        """The dtype in memory."""
        t = self.array.result.type
        assert isinstance(t, (SharedT, TensorT))
        return t.element

    @property
    def columns(self) -> int:
        """Number of columns of the tile."""
        return self.tile.shape[1]

    @property
    def slabs(self) -> int:
        """Number of slabs of rows that the worker's warps hold."""
        return Fragment(*self.tile.shape, self.role.threads).slabs

    @property
    def is_matrix(self) -> bool:
        """Rows and columns of the tile have numbers of their own."""
        return self.tile.layout.varies_by_row and self.tile.layout.varies_by_column

    @property
    def in_panels(self) -> bool:
        """The array lies in swizzled panels."""
        return isinstance(self.array, ops.Shared) and is_panelled(self.array)

    @property
    def begins_panel(self) -> bool:
        """The place begins at a panel of its array, or that has none."""
        return not self.in_panels or begins_panel(self.place)

    @property
    def lies_in_panel(self) -> bool:
        """The place is an aligned part of a panel."""
        return self.in_panels and lies_in_panel(self.place)

    @property
    def transposed(self) -> bool:
        """Rows of the tile are columns of the array."""
        return isinstance(self.place.type, SharedT) and bool(self.place.type.transposed.data)

    @property
    def masked(self) -> bool:
        """A mask selects the elements."""
        return "mask" in self.op.args

    @property
    def adds(self) -> bool:
        """The tile is added to memory."""
        return bool(self.op.const("add"))

    def check_rows(self) -> str:
        """Return why the tile's rows are no rows of an array with its elements, "" if they are."""
        if self.transposed:
            return "rows of the tile are columns of the array"
        if self.element != self.tile.element:
            return f"memory holds {self.element.name}, registers {self.tile.element.name}"
        return ""


def check_blocks(move: Move, of_parts: bool = False) -> str:
    """Return why a tile is not moved in blocks of 8 rows of 16 bytes, by ldmatrix and stmatrix; "" if it can be.

    Args:
        of_parts: Parts of panels can be moved, too.
    """
    if not move.tile.is_packed:
        return f"registers hold one {move.tile.element.name} each, no pairs of 16 bits"
    if not move.in_panels:
        return NO_PANELS
    if move.lies_in_panel and not move.begins_panel and not of_parts:
        return "the view may begin inside of a panel"
    return f"{move.columns} columns are no multiple of 16" if move.columns % 16 else ""


def describe_blocks(move: Move) -> str:
    """Return what lets a tile be moved in blocks."""
    return f"rows lie in whole panels of {PANEL_BYTES} bytes, pairs of 16 bits, {move.columns} columns are a multiple of 16"


def _check_pairs(move: Move) -> str:
    """Return why a tile is not moved in pairs whose lanes meet in no bank, "" if it can be."""
    if move.tile.element != F32:
        return f"elements are {move.tile.element.name}, not f32"
    if not move.in_panels:
        return NO_PANELS
    width = PANEL_BYTES // F32.itemsize
    return f"{move.columns} columns are no whole panels of {width}" if move.columns % width else ""


def _describe_pairs(move: Move) -> str:
    return f"{move.columns} columns of f32 are whole panels: odd rows begin with the other half, so that no two lanes meet in a bank"


# ---- load
@WAYS.way("load", "pairs")
def load_pairs(move: Move) -> Verdict | None:
    """Load two neighbours at a time, in an order without bank conflicts."""
    if not move.is_matrix or move.tile.layout not in (FULL, DEALT):
        return None
    reason = move.check_rows() or _check_pairs(move)
    return misfits(reason) if reason else fits(_describe_pairs(move))


@WAYS.way("load", "columns")
def load_columns(move: Move) -> Verdict | None:
    """Load the numbers of a row that a thread's columns take, two at a time."""
    if not move.tile.layout.is_per_column:
        return None
    reason = move.check_rows()
    if not reason and move.tile.element != F32:
        reason = f"elements are {move.tile.element.name}, not f32"
    if not reason and move.in_panels:
        reason = "the array is swizzled"
    if not reason and move.columns % GROUP:
        reason = f"{move.columns} columns are no multiple of {GROUP}"
    return misfits(reason) if reason else fits(f"one row of f32, not swizzled, {move.columns} columns are a multiple of {GROUP}")


@WAYS.way("load", "elements")
def load_elements(move: Move) -> Verdict:
    """Load element by element."""
    return fits(move.check_rows() or f"a thread's {move.tile.element.name} are loaded one by one")


@WAYS.way("load from a tensor", "elements")
def load_box(move: Move) -> Verdict:
    """Read the elements of a box one by one."""
    return fits("each element is read if it lies in the tensor, else it is 0")


# ---- read single elements
@WAYS.way("gather", "in its reader")
def read_in_place(op: ops.Perform) -> Verdict | None:
    """Read elements in the expression that needs them."""
    return fits("one expression reads each element, so that it takes no registers") if is_inlined(op.results[0]) else None


@WAYS.way("gather", "one number")
def read_number(op: ops.Perform) -> Verdict | None:
    """Read one element, the same for all lanes."""
    return None if isinstance(op.results[0].type, TileT) else fits("indices are scalars: all lanes read the same element")


@WAYS.way("gather", "pairs")
def read_pairs(op: ops.Perform) -> Verdict:
    """Read two neighbours at once."""
    if not reads_pairs(op):
        return misfits("the place is no scratch tensor with even rows, read from an even column on")
    return fits("neighbours of a scratch tensor, whose rows are even, from an even column on")


@WAYS.way("gather", "elements")
def read_elements(op: ops.Perform) -> Verdict:
    """Read each element at its own indices."""
    return fits("each element has indices of its own, and is 0 outside of the tensor")


# ---- store
@WAYS.way("store a number", "one lane")
def store_number(op: ops.Perform) -> Verdict:
    """Store a scalar by one lane of the worker, or add it."""
    return fits("all lanes have the same number")


@WAYS.way("store", "dealt pairs")
def store_dealt(move: Move) -> Verdict | None:
    """Store columns that were dealt by four neighbours, in their order."""
    if move.tile.layout != DEALT:
        return None
    reason = "a mask selects elements" if move.masked else _check_pairs(move)
    return misfits(reason) if reason else fits(_describe_pairs(move))


@WAYS.way("store", "pairs")
def store_pairs(move: Move) -> Verdict | None:
    """Store two neighbours at a time, in an order without bank conflicts."""
    if move.tile.layout != FULL:
        return None
    reason = "a mask selects elements" if move.masked else _check_pairs(move)
    return misfits(reason) if reason else fits(_describe_pairs(move))


@WAYS.way("store", "elements")
def store_elements(move: Move) -> Verdict:
    """Store element by element, each by one of the lanes that hold it."""
    return fits("a mask selects elements" if move.masked else f"a thread's {move.tile.element.name} are stored one by one")


# ---- store to a tensor
def count_vector(tile: TileT) -> int:
    """Return the elements that a thread stores at once: 16 bytes of halves, after exchanges, or 8 bytes."""
    return 8 if tile.is_packed else 2


def check_vectors(move: Move) -> str:
    """Return why a tile's rows are not stored in vectors, "" if they can be.

    The columns must be neighbours in the tensor, and a row must start at a multiple of a vector.
    """
    t = move.tile
    if move.masked:
        return "a mask selects elements"
    if move.adds and t.element != F32:
        return f"no vectors of {t.element.name} are added"
    if move.adds and not move.role.limits.has("wide_atomics"):
        return f"{move.role.limits.name} adds no vectors"
    if not t.layout.is_accumulator:
        return f"a thread of the layout {t.layout.name} holds no neighbours of a row"
    if t.shape[1] % GROUP:
        return f"{t.shape[1]} columns are no multiple of {GROUP}"
    if t.element.itemsize not in (2, 4):
        return f"elements take {t.element.itemsize} bytes, not 2 or 4"
    first, reason = _find_start(move)
    if reason:
        return reason
    tensor, n = move.array.result.type, count_vector(t)
    assert isinstance(tensor, TensorT)
    last = tensor.sizes[-1]
    if isinstance(last, int) and last % n:
        return f"rows of {last} elements are no whole vectors of {n}"
    return "" if first is None or is_multiple(first, n) else f"its first column is not known to be a multiple of {n}"


def _find_start(move: Move) -> tuple[SSAValue | None, str]:
    """Return the first column in the tensor (None: 0), or why the columns are no neighbours."""
    at = move.place.owner
    if isinstance(move.place.type, TensorT):
        return (at.parts[-1][0] if isinstance(at, ops.At) else None), ""
    assert isinstance(move.place.type, ElementT) and isinstance(at, ops.At)
    *outer, column = at.starts
    counted = find_first_column(column)
    if counted is None:
        return None, "the last index is not a number plus the column"
    return counted[0], "an index before the last varies by column" if any(map(varies_by_column, outer)) else ""


def is_aligned(move: Move) -> bool:
    """Return whether vectors are aligned in each launch: those of scratch tensors, whose rows have a constant length."""
    tensor = move.array
    assert isinstance(tensor, ops.Tensor) and isinstance(tensor.result.type, TensorT)
    return tensor.scratch is not None and isinstance(tensor.result.type.sizes[-1], int)


@WAYS.way("store to a tensor", "vectors")
def store_vectors(move: Move) -> Verdict | None:
    """Store many bytes of a row at once."""
    if not move.is_matrix:
        return None
    reason = check_vectors(move) or ("" if is_aligned(move) else "a launch may pass a tensor that is not aligned")
    return misfits(reason) if reason else fits(f"{_describe_vectors(move)}; scratch memory is aligned")


@WAYS.way("store to a tensor", "vectors if aligned")
def store_vectors_if_aligned(move: Move) -> Verdict | None:
    """Store many bytes of a row at once in launches whose tensor is aligned, else element by element."""
    return (
        None
        if not move.is_matrix or check_vectors(move)
        else fits(f"{_describe_vectors(move)}; each launch tests the tensor's address and strides")
    )


def _describe_vectors(move: Move) -> str:
    n = count_vector(move.tile)
    return f"{n} {move.tile.element.name} of {n * move.tile.element.itemsize} bytes are neighbours of a row and start at a multiple of {n}"


@WAYS.way("store to a tensor", "elements")
def store_elements_to_tensor(move: Move) -> Verdict:
    """Store element by element, each by one of the lanes that hold it."""
    return fits(f"each element is {'added' if move.adds else 'stored'} if it lies in the tensor")
