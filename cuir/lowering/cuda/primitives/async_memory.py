"""Bulk copies and stores of the copy engine, cp.async."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....syntax.types import I32, PANEL_BYTES
from ...ir import ops
from ..places import unsupported
from ..registry import prints
from .sync import barrier

if TYPE_CHECKING:
    from ..role import RolePrinter

HINTS = {"evict_first": "EVICT_FIRST", "evict_last": "EVICT_LAST", "evict_normal": "EVICT_NORMAL"}


def _panel_boxes(role: RolePrinter, op: ops.Perform, parts: int = 1) -> tuple[str, str, list[tuple[str, str]]]:
    """The tensor map, its rank, and for each panel the shared address (a pointer) and the coordinates, innermost first.

    parts: 4 if each warp takes its quarter of the rows.
    """
    box, view, span = role.places.box(op.arg("box")), role.places.shared(op.arg("shared")), role.span(op)
    if not view.alloc.panelled:
        raise unsupported("a bulk copy to rows that are no whole panels of 128 bytes", span)
    width = PANEL_BYTES // view.alloc.dtype.itemsize
    sizes = (*box.sizes[:-2], box.sizes[-2] // parts, width) if parts > 1 else (*box.sizes[:-1], width)
    name = role.kernel.tensor_map(box.tensor, sizes, span)
    starts, offset = list(box.starts), view.offset
    if parts > 1:
        starts[-2] += f" + warp * {sizes[-2]}"
        offset += f" + warp * {sizes[-2] * PANEL_BYTES}"
    pieces = []
    for p in range(view.panels):
        panel = f" + {p * view.alloc.rows * PANEL_BYTES}" if p else ""
        first = starts[-1]
        column = str(p * width) if first == "0" else f"{first} + {p * width}" if p else first
        pieces.append((f"smem + {offset}{panel}", ", ".join([column, *starts[-2::-1]] if len(starts) > 1 else [column])))
    return name, f"{len(starts)}D", pieces


@prints("copy_async.bulk")
def copy_bulk(role: RolePrinter, op: ops.Perform) -> None:
    name, rank, pieces = _panel_boxes(role, op)
    bar = barrier(role, op.arg("bar"))
    hint = f"uint64_t(cute::TMA::CacheHintSm90::{HINTS[op.const('hint', 'evict_normal')]})"
    cluster = bool(op.const("cluster")) and role.kernel.checked.cluster > 1
    mask = f"uint16_t({(1 << role.kernel.checked.cluster) - 1}), " if cluster else ""
    function = f"cute::SM90_TMA_LOAD_{'MULTICAST_' if cluster else ''}{rank}::copy"
    lines = [f"{function}(&{name}, {bar}, {mask}{hint}, {address}, {where});" for address, where in pieces]
    role.join()
    _by_one(role, lines)


def _by_one(role: RolePrinter, lines: list[str]) -> None:
    if role.single:
        for line in lines:
            role.out.line(line)
        return
    with role.out.block(role.first_lane.rstrip()):
        for line in lines:
            role.out.line(line)


@prints("store_async")
def store_async(role: RolePrinter, op: ops.Perform) -> None:
    split = role.stores_by_warps
    name, rank, pieces = _panel_boxes(role, op, 4 if split else 1)
    function = f"cute::SM90_TMA_{'REDUCE_ADD' if op.const('add') else 'STORE'}_{rank}::copy"
    lines = [f"{function}(&{name}, {address}, {where});" for address, where in pieces] + ["cute::tma_store_arrive();"]
    if split:
        role.kernel.choice("each warp stores the 16 rows that it wrote, without waiting for the others", role.span(op))
        with role.out.block("__syncwarp();\nif (lane == 0)"):
            for line in lines:
                role.out.line(line)
        return
    role.join()  # what all lanes wrote and fenced
    _by_one(role, lines)


@prints("store_wait")
def store_wait(role: RolePrinter, op: ops.Perform) -> None:
    role.out.line(f"{role.storing_lane}cute::tma_store_wait<0>();")
    if role.stores_by_warps:
        role.out.line("__syncwarp();")
    else:
        role.join()


@prints("copy_async.cp")
def copy_cp(role: RolePrinter, op: ops.Perform) -> None:
    """16-byte chunks, spread over the worker's lanes; what lies outside of the tensor is filled with zeros."""
    out, kernel = role.out, role.kernel
    box, view = role.places.box(op.arg("box")), role.places.shared(op.arg("shared"))
    size = view.alloc.dtype.itemsize
    chunks = view.cols * size // 16
    tensor = kernel.tensors[box.tensor]
    if tensor.dtype == I32 and size != 4:
        raise unsupported("this element size in cp.async", role.span(op))
    base = out.temp("to")
    out.line(f"const uint32_t {base} = {view.address};")
    thread = "lane" if role.threads == 32 else "int(threadIdx.x) % 128"
    if not role.single:
        role.join()  # the lanes that read the place before have done so
    with out.block(f"#pragma unroll 4\nfor (int i_ = {thread}; i_ < {view.rows * chunks}; i_ += {role.threads})"):
        out.line(f"const int r_ = i_ / {chunks}, c_ = i_ % {chunks};")
        indices = role.places.box_indices(box, "r_", f"c_ * {16 // size}")
        tests = kernel.tests_inside(box.tensor, indices)[:-1]
        if box.starts[-1] != "0":  # chunks left of the tensor are outside of it, too
            tests.append(f"{indices[-1]} >= 0")
        left = f"max(0, min({16 // size}, {tensor.dims[-1]} - {indices[-1]}))"
        out.line(f"const int left_ = {' && '.join(tests)} ? {left} : 0;" if tests else f"const int left_ = {left};")
        to = (
            f"cuir::at<{view.alloc.rows}>({base}, r_, 16 * c_)"
            if view.alloc.panelled
            else f"{base} + r_ * {view.alloc.row_bytes} + 16 * c_"
        )
        name = kernel.index(box.tensor, indices)
        kernel.aligned[box.tensor] = None
        pointer = box.tensor
        out.line(f"cuir::cp_async({to}, left_ > 0 ? {pointer} + {name} : {pointer}, left_ * {size});")


@prints("copy_commit")
def copy_commit(role: RolePrinter, op: ops.Perform) -> None:
    role.out.line("cute::cp_async_fence();")


@prints("copy_wait")
def copy_wait(role: RolePrinter, op: ops.Perform) -> None:
    role.out.line(f"cute::cp_async_wait<{int(op.const('n'))}>();")
    role.join()
