"""Places that no card can address: boxes and views of shared memory that an operation cannot take as they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from xdsl.ir import Operation, SSAValue

from ...syntax.types import TENSOR_MEMORY
from ..analyses.memory import array_of
from ..ir import ops
from ..ir.ir_types import ElementT, SharedT, TensorT

SWIZZLE_ROWS = 8  # period of the swizzle


class Misplaced(NamedTuple):
    """A place that cannot be addressed: the operation that declares or computes it, why, and what to do."""

    op: Operation
    because: str
    hint: str = ""


def find_misplaced(op: Operation) -> Misplaced | None:
    """Return the first operand of an operation that cannot be addressed, None if all can be."""
    return next(_iterate_misplaced(op), None) if isinstance(op, ops.Perform) else None


def _iterate_misplaced(op: ops.Perform) -> Iterator[Misplaced]:
    for place in op.arguments:
        if isinstance(place.type, SharedT):
            yield from _check_view(place)
        elif isinstance(place.type, TensorT):
            yield from _check_box(place)
        elif isinstance(place.type, ElementT) and op.gathers and isinstance(array_of(place), ops.Shared):
            yield Misplaced(op, "a gather from shared memory", "load the view")


def _check_view(view: SSAValue) -> Iterator[Misplaced]:
    array, place = array_of(view), view.owner
    assert isinstance(array, ops.Shared)
    layout = array.layout
    if layout.offset >= TENSOR_MEMORY:
        return
    if layout.panelled and layout.rows % SWIZZLE_ROWS:
        yield Misplaced(array, f"`{layout.name}` has stages of {layout.rows} rows; swizzled panels hold multiples of {SWIZZLE_ROWS}")
    if isinstance(place, ops.At) and place.parts[-1][1] == -1:
        yield Misplaced(place, "a view of shared memory without columns")


def _check_box(box: SSAValue) -> Iterator[Misplaced]:
    place, tensor = box.owner, array_of(box)
    assert isinstance(tensor, ops.Tensor)
    sizes = [size for _, size in place.parts] if isinstance(place, ops.At) else [d if isinstance(d, int) else 0 for d in tensor.dims]
    for size, dim in zip(sizes, tensor.dims, strict=True):
        if size == 0:
            yield Misplaced(_find_computed(box), f"a box as long as the run-time dim `{dim}`", "slice it: x : x + c")
    if sizes[-1] == -1:
        yield Misplaced(_find_computed(box), "a box whose columns are no slice of the innermost dim", "slice the last dim")


def _find_computed(value: SSAValue) -> Operation:
    assert isinstance(value.owner, Operation)
    return value.owner
