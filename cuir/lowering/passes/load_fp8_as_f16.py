"""Load 8-bit floats of shared memory as f16, where the program widens them to that.

The hardware converts 8-bit floats to f16 first. A program that needs f16 then skips the conversion from f32 back to f16.
"""

from __future__ import annotations

from ...syntax.types import F16
from ..analyses.memory import find_narrow_load
from ..ir import ops
from ..ir.ir_types import dtype_of
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
