"""Bulk copies and stores of the copy engine, cp.async."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...syntax.nodes import Call, Expr, Literal, Str
from ...syntax.types import I32, PANEL_BYTES
from ..registry import emits
from ..values import unsupported
from .sync import barrier

if TYPE_CHECKING:
    from ..role import RoleEmitter

HINTS = {"evict_first": "EVICT_FIRST", "evict_last": "EVICT_LAST", "evict_normal": "EVICT_NORMAL"}


def _flag(args: Mapping[str, Expr], name: str) -> bool:
    found = args.get(name)
    return isinstance(found, Literal) and bool(found.value)


def _panel_boxes(role: RoleEmitter, call: Call, parts: int = 1) -> tuple[str, str, list[tuple[str, str]]]:
    """The tensor map, its rank, and for each panel the shared address (a pointer) and the coordinates, innermost first.

    parts: 4 if each warp takes its quarter of the rows.
    """
    args = role.call(call).args
    box, view = role.views.box(args["box"]), role.views.shared(args["shared"])
    if not view.alloc.panelled:
        raise unsupported("a bulk copy to rows that are no whole panels of 128 bytes", call.span)
    width = PANEL_BYTES // view.alloc.dtype.itemsize
    sizes = (*box.sizes[:-2], box.sizes[-2] // parts, width) if parts > 1 else (*box.sizes[:-1], width)
    name = role.kernel.tensor_map(box.tensor, sizes, call.span)
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


@emits("copy_async.bulk", "statement")
def copy_bulk(role: RoleEmitter, call: Call) -> None:
    args = role.call(call).args
    name, rank, pieces = _panel_boxes(role, call)
    bar = barrier(role, args["bar"])
    hinted = args.get("hint")
    word = hinted.value if isinstance(hinted, Str) else "evict_normal"
    hint = f"uint64_t(cute::TMA::CacheHintSm90::{HINTS[word]})"
    cluster = _flag(args, "cluster") and role.kernel.checked.cluster > 1
    mask = f"uint16_t({(1 << role.kernel.checked.cluster) - 1}), " if cluster else ""
    function = f"cute::SM90_TMA_LOAD_{'MULTICAST_' if cluster else ''}{rank}::copy"
    lines = [f"{function}(&{name}, {bar}, {mask}{hint}, {address}, {where});" for address, where in pieces]
    role.join()
    _by_one(role, lines)


def _by_one(role: RoleEmitter, lines: list[str]) -> None:
    if role.single:
        for line in lines:
            role.out.line(line)
        return
    with role.out.block(role.first_lane.rstrip()):
        for line in lines:
            role.out.line(line)


@emits("store_async", "statement")
def store_async(role: RoleEmitter, call: Call) -> None:
    args = role.call(call).args
    split = role.stores_by_warps
    name, rank, pieces = _panel_boxes(role, call, 4 if split else 1)
    function = f"cute::SM90_TMA_{'REDUCE_ADD' if _flag(args, 'add') else 'STORE'}_{rank}::copy"
    lines = [f"{function}(&{name}, {address}, {where});" for address, where in pieces] + ["cute::tma_store_arrive();"]
    if split:
        role.kernel.choice("each warp stores the 16 rows that it wrote, without waiting for the others", call.span)
        with role.out.block("__syncwarp();\nif (lane == 0)"):
            for line in lines:
                role.out.line(line)
        return
    role.join()  # what all lanes wrote and fenced
    _by_one(role, lines)


@emits("store_wait", "statement")
def store_wait(role: RoleEmitter, call: Call) -> None:
    role.out.line(f"{role.storing_lane}cute::tma_store_wait<0>();")
    if role.stores_by_warps:
        role.out.line("__syncwarp();")
    else:
        role.join()


@emits("copy_async.cp", "statement")
def copy_cp(role: RoleEmitter, call: Call) -> None:
    """16-byte chunks, spread over the worker's lanes; what lies outside of the tensor is filled with zeros."""
    args, out, kernel = role.call(call).args, role.out, role.kernel
    box, view = role.views.box(args["box"]), role.views.shared(args["shared"])
    size = view.alloc.dtype.itemsize
    chunks = view.cols * size // 16
    tensor = kernel.tensors[box.tensor]
    if tensor.dtype == I32 and size != 4:
        raise unsupported("this element size in cp.async", call.span)
    base = out.temp("to")
    out.line(f"const uint32_t {base} = {view.address};")
    thread = "lane" if role.threads == 32 else "int(threadIdx.x) % 128"
    if not role.single:
        role.join()  # the lanes that read the place before have done so
    with out.block(f"#pragma unroll 4\nfor (int i_ = {thread}; i_ < {view.rows * chunks}; i_ += {role.threads})"):
        out.line(f"const int r_ = i_ / {chunks}, c_ = i_ % {chunks};")
        indices = role.views.box_indices(box, "r_", f"c_ * {16 // size}")
        rows_inside = " && ".join(kernel.inside(box.tensor, indices).split(" && ")[:-1]) or "true"
        if box.starts[-1] != "0":  # chunks left of the tensor are outside of it, too
            rows_inside += f" && {indices[-1]} >= 0"
        last = tensor.dims[-1]
        out.line(f"const int left_ = {rows_inside} ? max(0, min({16 // size}, {last} - {indices[-1]})) : 0;")
        to = (
            f"cuir::at<{view.alloc.rows}>({base}, r_, 16 * c_)"
            if view.alloc.panelled
            else f"{base} + r_ * {view.alloc.row_bytes} + 16 * c_"
        )
        name = kernel.index(box.tensor, indices)
        kernel.aligned[box.tensor] = None
        pointer = box.tensor
        out.line(f"cuir::cp_async({to}, left_ > 0 ? {pointer} + {name} : {pointer}, left_ * {size});")


@emits("copy_commit", "statement")
def copy_commit(role: RoleEmitter, call: Call) -> None:
    role.out.line("cute::cp_async_fence();")


@emits("copy_wait", "statement")
def copy_wait(role: RoleEmitter, call: Call) -> None:
    n = role.call(call).args["n"]
    assert isinstance(n, Literal)
    role.out.line(f"cute::cp_async_wait<{int(n.value)}>();")
    role.join()
