"""Offsets in a CTA's shared memory of what the lowering adds behind the program's arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...syntax.types import COLUMN_BYTES, LEAST_COLUMNS, TENSOR_MEMORY
from ..ir import machine_ops as machine
from ..ir import ops

ALIGNMENT = 16  # bytes: of the first barrier, and of a queue
BARRIER_BYTES = 8


@dataclass(frozen=True)
class FrameLayout:
    """Offsets of mbarriers, of the queue of work items and of the word that tells tensor memory's address.

    `initialises`: one thread initialises barriers, for all. `columns`: of tensor memory that the kernel allocates. `nbytes`: of shared memory in all.
    """

    barriers: Mapping[str, int]
    queue: int
    tensor_address: int
    columns: int
    nbytes: int
    initialises: bool


def lay_out_frame(kernel: ops.Kernel) -> FrameLayout:
    """Return where a kernel's barriers, queue and address of tensor memory lie in shared memory."""
    offset, barriers = _align(kernel.shared_bytes), dict[str, int]()
    for name, b in kernel.collect(ops.Barrier).items():
        if not ops.entry(b.kind).traits.hardware:
            barriers[name] = offset
            offset += BARRIER_BYTES * b.stages
    queue = next((op for op in kernel.body.block.ops if isinstance(op, machine.Queue)), None)
    at_queue = offset
    if queue is not None:
        at_queue = _align(offset)
        offset = at_queue + queue.nbytes
    columns = count_tensor_columns(kernel)
    return FrameLayout(barriers, at_queue, offset, columns, offset + (ALIGNMENT if columns else 0), bool(barriers) or queue is not None)


def count_tensor_columns(kernel: ops.Kernel) -> int:
    """Return the columns of tensor memory that a kernel allocates: a power of two, or none."""
    layouts = [a.layout for a in kernel.collect(ops.Shared).values()]
    ends = [a.offset + a.nbytes - TENSOR_MEMORY for a in layouts if a.offset >= TENSOR_MEMORY]
    return max(LEAST_COLUMNS, 1 << (max(ends) // COLUMN_BYTES - 1).bit_length()) if ends else 0


def _align(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT
