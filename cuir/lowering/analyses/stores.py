"""Rows of shared memory that belong to one warp of a warpgroup, so that no warp waits for another.

A warp may issue asynchronous stores of the rows that it wrote itself. For left operands of products, the tensor core
reads a warp's 16 rows for that warp alone.
"""

from __future__ import annotations

from xdsl.ir import SSAValue

from ...syntax.types import BF16, F16, F32, PANEL_BYTES
from ..ir import ops
from ..ir.ir_types import ElementT, SharedT, TileT
from ..ir.ir_walk import every
from .alignment import is_multiple
from .memory import Accessed, Array, Memory, array_of, iterate_accesses
from .uniformity import is_uniform_in_worker

ROWS = 64  # of a warpgroup's accumulator; each warp holds 16


def stores_by_warps(role: ops.Role, memory: Memory | None = None) -> bool:
    """Return whether each warp may store the 16 rows that it wrote itself."""
    return find_warp_rows(role, memory) is not None


def find_warp_rows(role: ops.Role, memory: Memory | None = None) -> ops.Shared | None:
    """Return the array whose rows each warp stores for itself, None if there is none.

    All asynchronous stores of the worker are of one view, and all writes to this array's memory are accumulator rows,
    to the same view.
    """
    kernel = role.parent_op()
    assert isinstance(kernel, ops.Kernel)
    if role.threads.data != 128:
        return None
    operations = [op for op in every(role) if isinstance(op, ops.Perform)]
    bulk_stores = [op for op in operations if op.entry.effects.group == "bulk_store"]
    if not bulk_stores:
        return None
    view = bulk_stores[0].arg("shared")
    array, t = array_of(view), view.type
    assert isinstance(array, ops.Shared) and isinstance(t, SharedT)
    memory = memory or Memory(kernel)
    modes_by_array, tensors = memory.modes, {array_of(op.arg("box")) for op in bulk_stores}
    other_places = [a.place for op in operations if op not in bulk_stores for a in iterate_accesses(op) if a.array in tensors]
    if any(len(modes_by_array[t]) > 1 for t in tensors) or not all(map(_has_fixed_warps, other_places)):
        return None  # another warp may have read, or stored, what a warp's bulk store overwrites
    if not is_panelled(array) or not _has_constant_rows(view) or t.sizes[0] != ROWS:
        return None
    if not all(_is_same(op.arg("shared"), view) and _has_fixed_warps(op.arg("box")) for op in bulk_stores):
        return None
    written = [
        (op, a.place)
        for op in operations
        if op not in bulk_stores
        for a in iterate_accesses(op)
        if a.writes and memory.of(a.place) is memory.of(view)
    ]
    if not written or not all(_stores_accumulator(op) and _is_same(place, view) for op, place in written):
        return None
    return array


def arrays_by_warp(role: ops.Role, memory: Memory | None = None) -> frozenset[Array]:
    """Return the arrays of which each warp of a warpgroup accesses its own 16 of 64 rows alone.

    The warpgroup only writes accumulator rows there, and reads left operands of products, 64 rows from a multiple of 64
    on (FlashAttention-3's forward kernel relies on it, too, for the weights of head dim 64).
    """
    kernel = role.parent_op()
    assert isinstance(kernel, ops.Kernel)
    if role.threads.data != 128:
        return frozenset()
    memory, is_by_rows, shared = memory or Memory(kernel), dict[Array, bool](), dict[Array, set[Array]]()
    for op in every(role):
        for a in iterate_accesses(op):
            if isinstance(a.array, ops.Shared):
                root = memory.of(a.place)
                shared.setdefault(root, set()).add(a.array)
                is_by_rows[root] = (
                    is_by_rows.get(root, True) and isinstance(op, ops.Perform) and _is_by_rows(op, a) and len(shared[root]) == 1
                )
    return frozenset(root for root, by_rows in is_by_rows.items() if by_rows)


def _is_by_rows(op: ops.Perform, a: Accessed) -> bool:
    """Return whether an access assigns each row of an array to the same warp as others of this kind."""
    t = a.place.type
    assert isinstance(t, (SharedT, ElementT))
    if not isinstance(t, SharedT) or t.transposed.data or len(t.sizes) != 2 or int(t.sizes[0]) != ROWS:
        return False
    view = a.place.owner
    while isinstance(view, ops.At):  # views of views, too
        start, _ = view.parts[-2] if len(view.parts) > 1 else (None, 0)
        if start is not None and not is_multiple(start, ROWS):
            return False
        view = view.array.owner
    return _stores_accumulator(op) if a.writes else op.entry.traits.product and a.access.arg == "a"


def is_panelled(array: ops.Shared) -> bool:
    """Return whether an array lies in swizzled panels of PANEL_BYTES."""
    t = array.result.type
    assert isinstance(t, SharedT)
    return len(t.sizes) >= 2 and int(t.sizes[-2]) > 1 and int(t.sizes[-1]) * t.element.itemsize % PANEL_BYTES == 0


def _has_constant_rows(view: SSAValue) -> bool:
    """Return whether a view is of the same rows at all times."""
    if not isinstance(view.owner, ops.At):
        return True
    if len(view.owner.parts) < 2:
        return False
    start, size = view.owner.parts[-2]
    return size != -1 and (start is None or is_uniform_in_worker(start))


def _has_fixed_warps(box: SSAValue) -> bool:
    """Return whether a row of the tensor is stored by the same warp each time.

    It is if a box has its 64 rows along the last dim but one, from a multiple of 64 on.
    """
    if not isinstance(box.owner, ops.At) or len(box.owner.parts) < 2:
        return False
    *outer, (start, rows), _ = box.owner.parts
    return rows == ROWS and all(size in (-1, 1) for _, size in outer) and (start is None or is_multiple(start, ROWS))


def _stores_accumulator(op: ops.Perform) -> bool:
    """Return whether an operation stores an accumulator, or a tile of halves in its layout.

    Either assigns a row to the warp that holds it.
    """
    tile = op.args.get("tile")
    if tile is None or not isinstance(tile.type, TileT) or "mask" in op.args:
        return False
    return tile.type.element in (F16, BF16, F32) and tile.type.layout.is_fragment and tile.type.shape[1] % 16 == 0


def _is_same(a: SSAValue, b: SSAValue) -> bool:
    """Return whether two places or scalars are computed alike."""
    if a is b:
        return True
    x, y = a.owner, b.owner
    if isinstance(x, ops.Constant) and isinstance(y, ops.Constant):
        return x.value == y.value
    if isinstance(x, ops.At) and isinstance(y, ops.At):
        is_same_kind = x.sizes == y.sizes and x.given == y.given and a.type == b.type
    elif isinstance(x, ops.Apply) and isinstance(y, ops.Apply):
        is_same_kind = x.op == y.op and a.type == b.type
    else:
        return False
    return is_same_kind and all(map(_is_same, x.operands, y.operands))


__all__ = ["arrays_by_warp", "find_warp_rows", "stores_by_warps"]
