"""8-bit floats of shared memory that a program loads to widen them to f16 are loaded as f16: the conversion that every load of them takes gives two of these, exactly, and floats only after that."""

from __future__ import annotations

from ...syntax.types import F16
from ..facts.memory import accesses
from ..ir import ops
from ..ir.types import SharedT, TileT, dtype_of
from ..ir.walk import every
from .rewriting import insert, replace


def run(kernel: ops.Kernel) -> None:
    for op in list(every(kernel)):
        if not isinstance(op, ops.Apply) or op.kind.converts is None or dtype_of(op.result) != F16:
            continue
        load = narrow_load(op)
        if load is not None:
            wide = ops.Perform(operands=[list(load.operands)], properties=dict(load.properties), result_types=[[op.result.type]])
            replace(op, [insert(load, wide)])
            load.detach()
            load.erase()


def narrow_load(cast: ops.Apply) -> ops.Perform | None:
    """The load of 8-bit floats, needed nowhere else, whose elements this cast converts."""
    load, t = cast.arguments[0].owner, cast.arguments[0].type
    if not isinstance(load, ops.Perform) or not isinstance(t, TileT) or t.layout.data != "full" or not t.element.narrow:
        return None
    read = list(accesses(load))
    whole = len(read) == 1 and not read[0].writes and isinstance(read[0].place.type, SharedT)
    return load if whole and len(list(load.results[0].uses)) == 1 else None
