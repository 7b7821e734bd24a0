"""Take one branch of the warp for functions of a number per row whose long case is rare.

1 / x and log2(x) need long code only if x is very small or very large. A warp runs the long code only if a row needs
it.

Exact.
"""

from __future__ import annotations

from ...syntax.types import F32
from ..ir import ops
from ..ir.ir_types import TileT
from ..ir.ir_walk import every
from ..ir.machine_tiles import LOGARITHM, ONE_OVER, by_rows
from ..ir.ops import number
from .rewriting import insert, replace


def run(kernel: ops.Kernel) -> None:
    """Replace these functions by `tile.by_rows`."""
    for op in every(kernel):
        if isinstance(op, ops.Apply) and (function := _match_function(op)) is not None and op.arguments[-1].type == op.result.type:
            replace(op, [insert(op, by_rows(function, op.arguments[-1]))])


def _match_function(op: ops.Apply) -> str | None:
    t = op.result.type
    if not isinstance(t, TileT) or t.element != F32 or not t.layout.is_per_row:
        return None
    if op.kind.logarithm == 2:
        return LOGARITHM
    return ONE_OVER if op.kind.divides_floats and op.exact is None and number(op.arguments[0]) == 1 else None
