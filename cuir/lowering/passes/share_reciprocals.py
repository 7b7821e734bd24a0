"""Turn divisions by numbers of a known range into products with reciprocals that neighbours share.

The reciprocal of the product of four divisors gives all four quotients, within 5 units in the last place of the exact
quotients.

The pass treats tanh in the same way. The divisors are numbers from 1 to 2^31 + 1 whose product is a float. tanh differs
by as much as the table of primitives permits. Where a NaN spoils its whole row anyway (`spoils_row`), it need not be
kept from its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable

from xdsl.ir import SSAValue

from ...syntax.types import F32
from ..analyses import float_ranges
from ..analyses.float_ranges import compute_float_range
from ..ir import ops
from ..ir.ir_types import TileT, dtype_of, is_scalar, is_tile
from ..ir.ir_walk import every
from ..ir.machine_ops import note
from ..ir.machine_tiles import LARGEST, SharedTanh, by_reciprocal, can_share, shared_tanh
from ..ir.ops import number
from .rewriting import before, insert, replace

ROUNDING = True
SHARED = "four divisions by numbers of a known range share one reciprocal"


def run(kernel: ops.Kernel, spoils_row: Callable[[SSAValue], bool] = float_ranges.spoils_row) -> None:
    """Rewrite divisions and tanh.

    `spoils_row` returns whether a NaN in a tile makes every result that follows from its row a NaN.
    """
    for op in every(kernel):
        if not isinstance(op, ops.Apply) or not is_tile(op.result) or dtype_of(op.result) != F32:
            continue
        if op.kind.logistic == SharedTanh.RATE and can_share(op.result.type):
            before(op, note(SHARED))
            replace(op, [insert(op, shared_tanh(*_split_argument(op.arguments[0])))])
        elif op.kind.divides_floats and op.exact is None and is_in_range(op.arguments[1]):
            x, y = op.arguments
            shared = can_share(op.result.type) and isinstance(y.type, TileT) and y.type.layout.is_accumulator
            spreads = shared and spoils_row(op.result)
            if shared:
                before(op, note(SHARED))
            replace(op, [insert(op, by_reciprocal(None if number(x) == 1 else x, y, op.result.type, shared, spreads))])


def is_in_range(divisor: SSAValue) -> bool:
    """Return whether the product of four such numbers, and its reciprocal, are far from overflow."""
    least, most = compute_float_range(divisor)
    return least >= 1 and most <= 2.0**LARGEST + 1


def _split_argument(x: SSAValue) -> tuple[SSAValue, SSAValue | None]:
    """Return x and f of tanh(x * f) with a scalar f.

    The factor of the exponential is multiplied with f, not with each element.
    """
    op = x.owner
    if isinstance(op, ops.Apply) and op.kind.multiplies and op.exact is None:
        for tile, factor in (op.arguments, op.arguments[::-1]):
            if is_scalar(factor) and tile.type == x.type:
                return tile, factor
    return x, None
