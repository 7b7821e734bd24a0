"""Ways of reductions of rows and of columns: how many threads, and warps, hold what is folded."""

from __future__ import annotations

from xdsl.ir import Operation

from ..ir import ops
from ..ir.ir_types import TileT
from .role_facts import RoleFacts
from .ways import Verdict, Ways, fits

WAYS = Ways()
FOUR_WARPS = "four warps"


def get_shape(op: Operation) -> tuple[int, int]:
    """Return rows and columns of the tile that an operation reduces."""
    t = op.operands[0].type
    assert isinstance(t, TileT)
    return t.shape


# ---- along rows
@WAYS.way("reduce rows", "copied")
def copy_column(op: ops.Apply, role: RoleFacts) -> Verdict | None:
    """Copy rows of one element."""
    return fits("rows have one element") if get_shape(op)[1] == 1 else None


@WAYS.way("reduce rows", "one row")
def fold_line(op: ops.Apply, role: RoleFacts) -> Verdict | None:
    """Fold the columns of a thread, then those of the four that hold a single row."""
    return fits("the tile is a single row, which each four threads hold") if get_shape(op)[0] == 1 else None


@WAYS.way("reduce rows", "sums of four threads")
def add_rows(op: ops.Apply, role: RoleFacts) -> Verdict | None:
    """Add the elements that a thread has of each row, then those of the four that share the row."""
    return fits("four threads share a row") if op.kind.reduction == "sum" else None


@WAYS.way("reduce rows", "maxima of four threads, NaNs of either sign")
def find_any_maxima(op: ops.Apply, role: RoleFacts) -> Verdict | None:
    """Fold maxima by a comparison that keeps NaNs of either sign."""
    if not role.values.negative_nan(op.arguments[0]):
        return None
    return fits("four threads share a row, and an element may be a NaN with its sign bit set")


@WAYS.way("reduce rows", "maxima of four threads")
def find_maxima(op: ops.Apply, role: RoleFacts) -> Verdict:
    """Fold maxima as integers, above all of which lie NaNs without a sign."""
    return fits("four threads share a row, and no element is a NaN with its sign bit set")


# ---- along columns
@WAYS.way("reduce columns", "copied")
def copy_row(op: Operation, role: RoleFacts) -> Verdict | None:
    """Copy columns of one element."""
    return fits("columns have one element") if get_shape(op)[0] == 1 else None


@WAYS.way("reduce columns", "one warp")
def fold_warp(op: Operation, role: RoleFacts) -> Verdict | None:
    """Fold the rows of a thread, then those of the eight that share a column."""
    return fits("eight threads of one warp share a column") if role.threads == 32 else None


@WAYS.way("reduce columns", FOUR_WARPS)
def fold_warps(op: Operation, role: RoleFacts) -> Verdict:
    """Fold the rows of each warp, and exchange the results through shared memory."""
    return fits("four warps hold rows of a column, and exchange their results through shared memory")
