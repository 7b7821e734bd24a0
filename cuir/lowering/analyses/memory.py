"""Memory accesses of operations, by whole array or tensor; which operations may be moved, dropped or repeated.

An operation without a memory effect may be computed again, or elsewhere in its block. One that only reads may be
dropped. A speculatable one may also be computed where the program does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from xdsl.ir import Operation, SSAValue
from xdsl.traits import Pure

from ...ops.base import Access, MemoryEffect
from ..ir import ops
from ..ir.ir_types import ElementT, SharedT, TensorT, TileT
from ..ir.ir_walk import every, is_inlined
from ..ir.row_parts import Nothing

Array = ops.Tensor | ops.Shared


@dataclass(frozen=True)
class Accessed:
    """An access of an operation, and its place."""

    access: Access
    place: SSAValue

    @property
    def array(self) -> Array:
        """The array or tensor of the place."""
        return array_of(self.place)

    @property
    def writes(self) -> bool:
        """The access writes to memory."""
        return self.access.mode != "read"


def array_of(place: SSAValue) -> Array:
    """Return the array or tensor that a place lies in."""
    owner = place.owner
    while isinstance(owner, ops.At):
        owner = owner.array.owner
    assert isinstance(owner, Array), place
    return owner


def iterate_accesses(op: Operation) -> Iterator[Accessed]:
    """Yield the memory accesses of an operation, without those of its operands."""
    if isinstance(op, ops.Perform):
        for access in op.entry.effects.accesses:
            place = op.args.get(access.arg)
            if place is not None and isinstance(place.type, (SharedT, TensorT, ElementT)):
                yield Accessed(access, place)


def iterate_evaluated(op: Operation) -> Iterator[Operation]:
    """Yield an operation and all operations that are inlined into it."""
    yield op
    for operand in op.operands:
        if is_inlined(operand) and isinstance(operand.owner, Operation):
            yield from iterate_evaluated(operand.owner)


def find_narrow_load(cast: ops.Apply) -> ops.Perform | None:
    """Return the load of 8-bit floats of shared memory, without other readers, whose elements a cast converts."""
    load, t = cast.arguments[0].owner, cast.arguments[0].type
    if not isinstance(load, ops.Perform) or not isinstance(t, TileT) or not t.layout.is_accumulator or not t.element.narrow:
        return None
    reads = list(iterate_accesses(load))
    is_shared_read = len(reads) == 1 and not reads[0].writes and isinstance(reads[0].place.type, SharedT)
    return load if is_shared_read and len(list(load.results[0].uses)) == 1 else None


class Memory:
    """Declarations of a kernel that share bytes of shared memory, and how the kernel accesses arrays.

    It stays valid as long as nobody adds accesses.
    """

    def __init__(self, kernel: ops.Kernel):
        self.kernel = kernel
        self._first: dict[Array, Array] = {}
        arrays = sorted((op for op in kernel.body.block.ops if isinstance(op, ops.Shared)), key=lambda a: a.offset.data)
        first, end = None, 0
        for array in arrays:
            if first is None or array.offset.data >= end:
                first, end = array, array.offset.data
            self._first[array] = first
            end = max(end, array.offset.data + _count_bytes(array))

    def of(self, place: SSAValue) -> Array:
        """Return the array of a place; arrays that share bytes are represented by the first one declared."""
        array = array_of(place)
        return self._first.get(array, array)

    @cached_property
    def modes(self) -> dict[Array, frozenset[str]]:
        """The access modes of each array and tensor, out of "read", "write" and "add"."""
        modes: dict[Array, set[str]] = {}
        for op in every(self.kernel):
            for a in iterate_accesses(op):
                assert isinstance(op, ops.Perform)
                modes.setdefault(a.array, set()).add("add" if a.writes and op.const("add") else a.access.mode)
        return {array: frozenset(m) for array, m in modes.items()}

    @cached_property
    def refilled(self) -> frozenset[Array]:
        """The shared arrays that an engine writes."""
        accesses = (a for op in every(self.kernel) for a in iterate_accesses(op))
        return frozenset(self.of(a.place) for a in accesses if isinstance(a.array, ops.Shared) and a.writes and a.access.proxy == "async")


def _count_bytes(array: ops.Shared) -> int:
    """Compute the bytes of an array whose rows are padded to 16."""
    t = array.result.type
    assert isinstance(t, SharedT)
    *outer, cols = (int(d) for d in t.sizes)
    total = -(-cols * t.element.itemsize // 16) * 16
    for d in outer:
        total *= d
    return total


def find_memory_effect(op: Operation) -> MemoryEffect:
    """Return what an operation and those inside it do to memory.

    A read of tensors that the kernel never writes counts as "none": it gives the same at any time.
    """
    if isinstance(op, (ops.Apply, ops.Constant, ops.At)) or op.has_trait(Pure):  # most are
        return "none"
    if isinstance(op, ops.Perform):
        effect = op.entry.memory_effect
        is_constant = effect == "read" and all(_is_never_written(op.arg(a.arg)) for a in op.entry.effects.accesses)
        return "none" if is_constant else effect
    if isinstance(op, Nothing):
        return "read"  # of registers: each is one of its own
    if not isinstance(op, ops.Branch):
        return "write"  # a declaration is the launch's, a loop may not end, a yield or a note stays where it is
    effects = [find_memory_effect(inner) for r in op.regions for inner in r.block.ops if not isinstance(inner, ops.Yield)]
    return max(effects, key=("none", "read", "write").index, default="none")


def is_memory_effect_free(op: Operation) -> bool:
    """Return whether the results of an operation depend on its operands alone, and nothing else does on it."""
    return find_memory_effect(op) == "none"


def is_speculatable(op: Operation) -> bool:
    """Return whether an operation may be computed where the program does not compute it."""
    if isinstance(op, ops.Apply):
        return op.entry.speculatable or (op.kind.divides_integers and bool(ops.constant_value(op.arguments[1])))
    return not op.regions and not isinstance(op, ops.Perform) and is_memory_effect_free(op)


def _is_never_written(place: SSAValue) -> bool:
    tensor = array_of(place) if isinstance(place.type, ElementT | TensorT | SharedT) else None
    return isinstance(tensor, ops.Tensor) and tensor.written is None and isinstance(tensor.result.type, TensorT)


__all__ = [
    "Accessed",
    "Array",
    "Memory",
    "array_of",
    "find_memory_effect",
    "find_narrow_load",
    "is_memory_effect_free",
    "is_speculatable",
    "iterate_accesses",
    "iterate_evaluated",
]
