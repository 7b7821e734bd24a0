"""Parameters of a kernel in the order of a launch: tensor maps, pointers with strides, a counter, numbers, dims."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from xdsl.ir import Operation

from ...syntax.types import BOOL, PANEL_BYTES
from ...text.diagnostics import CuirError
from ..analyses.memory import array_of
from ..ir import machine_ops as machine
from ..ir import ops
from ..ir.ir_types import ElementT, SharedT, TensorT, dtype_of
from ..ir.ir_walk import every
from ..lowered import MAP_BYTES

WARPS = 4  # of a warpgroup, each of which may store its rows by a map of its own
_WORD, _LONG = 4, 8  # bytes of a scalar or a dim; of a pointer or a stride


class MapKey(NamedTuple):
    """Key of a tensor map: its boxes' sizes, outermost first, and whether their rows are swizzled panels."""

    tensor: str
    sizes: tuple[int, ...]
    swizzled: bool


def find_map(op: Operation) -> MapKey | None:
    """Return the tensor map that a copy or store of the engine needs, None for any other operation."""
    if not isinstance(op, ops.Perform) or not {"box", "shared"} <= op.args.keys() or op.entry.effects.group == "cp_async":
        return None
    box, view = op.arg("box"), op.arg("shared")
    tensor, array, t = array_of(box), array_of(view), view.type
    assert isinstance(tensor, ops.Tensor) and isinstance(array, ops.Shared) and isinstance(t, SharedT)
    layout = array.layout
    width = PANEL_BYTES // layout.dtype.itemsize if layout.panelled else int(t.sizes[-1])
    parts = box.owner.parts if isinstance(box.owner, ops.At) else [(None, d if isinstance(d, int) else 0) for d in tensor.dims]
    sizes = [1 if size == -1 else size for _, size in parts][:-1]
    if op.const("by_warps"):
        sizes[-1] //= WARPS
    return MapKey(tensor.symbol.data, (*sizes, width), layout.panelled)


def list_operations(kernel: ops.Kernel) -> Iterator[Operation]:
    """Yield the operations of a kernel in the order of its text: the frame, then roles, and the queue, by warpgroup."""
    parts = [op for op in kernel.body.block.ops if isinstance(op, (ops.Role, machine.Queue))]
    for op in kernel.body.block.ops:
        if op not in parts:
            yield op
            yield from every(op)
    for part in sorted(parts, key=_find_place):
        yield from every(part)


def _find_place(part: ops.Role | machine.Queue) -> tuple[int, bool]:
    """Return the warpgroup of a role, or of the warp that hands out, which follows the roles there."""
    return (part.warpgroup.data, False) if isinstance(part, ops.Role) else (part.spare.data // WARPS, True)


class Parameters(NamedTuple):
    """Tensor maps, tensors with a pointer, and the end of each parameter in bytes, with what declares it."""

    maps: tuple[MapKey, ...]
    pointers: tuple[ops.Tensor, ...]
    ends: tuple[tuple[int, Operation], ...]


def list_parameters(kernel: ops.Kernel) -> Parameters:
    """List the parameters of IR that has been through the passes before selection."""
    maps, pointers = dict[MapKey, None](), dict[ops.Tensor, None]()
    for op in list_operations(kernel):
        key = find_map(op)
        if key is not None:
            maps[key] = None
        elif not isinstance(op, ops.At):
            for operand in op.operands:
                if isinstance(operand.type, (TensorT, ElementT)) and isinstance(tensor := array_of(operand), ops.Tensor):
                    pointers[tensor] = None
    ends, end = list[tuple[int, Operation]](), 0
    for size, op in _iterate_sizes(kernel, list(maps), list(pointers)):
        unit = min(size, _LONG)
        end = -(-end // unit) * unit + size
        ends.append((end, op))
    return Parameters(tuple(maps), tuple(pointers), tuple(ends))


def _iterate_sizes(kernel: ops.Kernel, maps: list[MapKey], pointers: list[ops.Tensor]) -> Iterator[tuple[int, Operation]]:
    """Yield the size of each parameter, with what declares it."""
    tensors, parameters = kernel.collect(ops.Tensor), kernel.collect(ops.Parameter).values()
    for key in maps:
        yield MAP_BYTES, tensors[key.tensor]
    for t in pointers:
        yield _LONG, t
        if t.scratch is None:
            yield from [(_LONG, t)] * (len(t.dims) - 1)
    if any(isinstance(op, machine.Queue) and op.dynamic is not None for op in kernel.body.block.ops):
        yield _LONG, kernel
    for p in parameters:
        if p.dim is None:
            yield 1 if dtype_of(p.result) == BOOL else _WORD, p
    for p in parameters:
        if p.dim is not None:
            yield _WORD, next((t for t in tensors.values() if p.symbol.data in t.dims), kernel)


def require_parameter_space(kernel: ops.Kernel, limit: int) -> None:
    """Check that the parameters fit into what a launch can pass.

    Raises: CuirError L006 where they do not fit.
    """
    maps, pointers, ends = list_parameters(kernel)
    end = ends[-1][0] if ends else 0
    if end <= limit:
        return
    takes = f"{len(maps)} tensor maps of {MAP_BYTES} bytes, " if maps else ""
    message = (
        f"the parameters of `{kernel.symbol.data}` take {end:,} bytes, and a launch passes at most {limit:,}: {takes}"
        f"{len(pointers)} tensors with a pointer and their strides, {len(kernel.collect(ops.Parameter))} numbers"
    )
    hint = "the parameter at the mark is the first that does not fit: merge tensors of one shape into one with a further dim, or split the kernel"
    raise CuirError.of("L006", message, kernel.find_span(next(op for n, op in ends if n > limit)), hint)


__all__ = ["MapKey", "Parameters", "find_map", "list_parameters", "require_parameter_space"]
