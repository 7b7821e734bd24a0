"""Load 8-bit floats of shared memory as f16, where the program widens them to that.

The hardware converts 8-bit floats to f16 first. A program that needs f16 then skips the conversion from f32 back to f16.
"""

from __future__ import annotations

from ...syntax.types import F16
from ..analyses.memory import iterate_accesses
from ..ir import ops
from ..ir.ir_types import SharedT, TileT, dtype_of
from ..ir.ir_walk import every
from .rewriting import insert, replace


def run(kernel: ops.Kernel) -> None:
    """Rewrite the loads whose only reader widens them to f16."""
    for op in list(every(kernel)):
        if not isinstance(op, ops.Apply) or op.kind.converts is None or dtype_of(op.result) != F16:
            continue
        load = find_narrow_load(op)
        if load is not None:
            wide_load = ops.Perform(operands=[list(load.operands)], properties=dict(load.properties), result_types=[[op.result.type]])
            replace(op, [insert(load, wide_load)])
            load.detach()
            load.erase()


def find_narrow_load(cast: ops.Apply) -> ops.Perform | None:
    """Return the load of 8-bit floats, without other readers, whose elements this cast converts."""
    load, t = cast.arguments[0].owner, cast.arguments[0].type
    if not isinstance(load, ops.Perform) or not isinstance(t, TileT) or not t.layout.is_accumulator or not t.element.narrow:
        return None
    reads = list(iterate_accesses(load))
    is_shared_read = len(reads) == 1 and not reads[0].writes and isinstance(reads[0].place.type, SharedT)
    return load if is_shared_read and len(list(load.results[0].uses)) == 1 else None
