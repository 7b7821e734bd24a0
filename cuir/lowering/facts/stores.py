"""Rows of shared memory that belong to one warp of a warpgroup: for asynchronous stores, which each warp may do for the rows that it wrote itself, and for left operands of products, of
which the tensor core reads a warp's 16 rows for that warp. Then no warp waits for another one."""

from __future__ import annotations

from xdsl.ir import BlockArgument, Operation, SSAValue
from xdsl.traits import Pure

from ...syntax.types import BF16, F16, F32, PANEL_BYTES
from ..ir import ops
from ..ir.types import ElementT, SharedT, TileT
from ..ir.walk import every
from .memory import Accessed, Array, Memory, accesses, array_of, modes
from .multiples import multiple

ROWS = 64  # of a warpgroup's accumulator; each warp holds 16


def stores_by_warps(role: ops.Role) -> bool:
    """Whether each warp may store the 16 rows that it wrote itself."""
    return own_rows(role) is not None


def own_rows(role: ops.Role) -> ops.Shared | None:
    """The array whose rows each warp stores for itself: the worker's asynchronous stores are all of one view, and all that is written to this array's memory are
    accumulator rows, to the same view. None if they are not."""
    kernel = role.parent_op()
    assert isinstance(kernel, ops.Kernel)
    if role.threads.data != 128:
        return None
    performed = [op for op in every(role) if isinstance(op, ops.Perform)]
    sent = [op for op in performed if op.entry.effects.group == "bulk_store"]
    if not sent:
        return None
    view = sent[0].arg("shared")
    array, t = array_of(view), view.type
    assert isinstance(array, ops.Shared) and isinstance(t, SharedT)
    did, tensors = modes(kernel), {array_of(op.arg("box")) for op in sent}
    others = [a.place for op in performed if op not in sent for a in accesses(op) if a.array in tensors]
    if any(len(did[t]) > 1 for t in tensors) or not all(map(_always_by_the_same, others)):
        return None  # another warp may have read, or stored, what a warp's bulk store overwrites
    if not panelled(array) or not _steady_rows(view) or t.sizes[0] != ROWS:
        return None
    if not all(_same(op.arg("shared"), view) and _always_by_the_same(op.arg("box")) for op in sent):
        return None
    memory = Memory(kernel)
    written = [
        (op, a.place) for op in performed if op not in sent for a in accesses(op) if a.writes and memory.of(a.place) is memory.of(view)
    ]
    if not written or not all(_accumulator_rows(op) and _same(place, view) for op, place in written):
        return None
    return array


def rows_of_warps(role: ops.Role) -> frozenset[Array]:
    """The memory of which a warpgroup only writes accumulator rows and reads left operands of products, 64 rows from a multiple of 64 on: each warp its own 16 of them
    (FlashAttention-3's forward kernel relies on it, too, for the weights of head dim 64)."""
    kernel = role.parent_op()
    assert isinstance(kernel, ops.Kernel)
    if role.threads.data != 128:
        return frozenset()
    memory, own, shared = Memory(kernel), dict[Array, bool](), dict[Array, set[Array]]()
    for op in every(role):
        for a in accesses(op):
            if isinstance(a.array, ops.Shared):
                of = memory.of(a.place)
                shared.setdefault(of, set()).add(a.array)
                own[of] = own.get(of, True) and isinstance(op, ops.Perform) and _by_rows(op, a) and len(shared[of]) == 1
    return frozenset(of for of, by_rows in own.items() if by_rows)


def _by_rows(op: ops.Perform, a: Accessed) -> bool:
    """Whether an access gives each row of an array to the same warp as the others of this kind."""
    t = a.place.type
    assert isinstance(t, (SharedT, ElementT))
    if not isinstance(t, SharedT) or t.transposed.data or len(t.sizes) != 2 or int(t.sizes[0]) != ROWS:
        return False
    view = a.place.owner
    while isinstance(view, ops.At):  # of a view, too
        start, _ = view.parts[-2] if len(view.parts) > 1 else (None, 0)
        if start is not None and not multiple(start, ROWS):
            return False
        view = view.array.owner
    return _accumulator_rows(op) if a.writes else op.entry.traits.product and a.access.arg == "a"


def panelled(array: ops.Shared) -> bool:
    t = array.result.type
    assert isinstance(t, SharedT)
    return len(t.sizes) >= 2 and int(t.sizes[-2]) > 1 and int(t.sizes[-1]) * t.element.itemsize % PANEL_BYTES == 0


def _steady_rows(view: SSAValue) -> bool:
    """Whether a view is of the same rows at all times."""
    if not isinstance(view.owner, ops.At):
        return True
    if len(view.owner.parts) < 2:
        return False
    start, size = view.owner.parts[-2]
    return size != -1 and (start is None or _steady(start))


def _steady(value: SSAValue) -> bool:
    """Whether a scalar has one value in a worker: it is made of the worker's number, of parameters and of what is known."""
    op = value.owner
    if isinstance(op, Operation) and (isinstance(op, ops.Apply) or op.has_trait(Pure)):
        return all(map(_steady, op.operands))
    if isinstance(op, (ops.Constant, ops.Parameter)):
        return True
    return isinstance(value, BlockArgument) and isinstance(value.block.parent_op(), ops.Role)


def _always_by_the_same(box: SSAValue) -> bool:
    """Whether a row of the tensor is stored by the same warp each time: a box has its 64 rows along the last dim but one, from a multiple of 64 on."""
    if not isinstance(box.owner, ops.At) or len(box.owner.parts) < 2:
        return False
    *outer, (start, rows), _ = box.owner.parts
    return rows == ROWS and all(size in (-1, 1) for _, size in outer) and (start is None or multiple(start, ROWS))


def _accumulator_rows(op: ops.Perform) -> bool:
    """Whether an operation stores an accumulator, or a tile of halves like one: either gives a row to the warp that holds it."""
    tile = op.args.get("tile")
    if tile is None or not isinstance(tile.type, TileT) or "mask" in op.args:
        return False
    return tile.type.element in (F16, BF16, F32) and tile.type.layout.data == "full" and tile.type.shape[1] % 16 == 0


def _same(a: SSAValue, b: SSAValue) -> bool:
    """Whether two places or scalars are the same by how they are made."""
    if a is b:
        return True
    x, y = a.owner, b.owner
    if isinstance(x, ops.Constant) and isinstance(y, ops.Constant):
        return x.value == y.value
    if isinstance(x, ops.At) and isinstance(y, ops.At):
        alike = x.sizes == y.sizes and x.given == y.given and a.type == b.type
    elif isinstance(x, ops.Apply) and isinstance(y, ops.Apply):
        alike = x.op == y.op and a.type == b.type
    else:
        return False
    return alike and all(map(_same, x.operands, y.operands))


__all__ = ["own_rows", "rows_of_warps", "stores_by_warps"]
