"""cp.async."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....syntax.types import I32
from ...cuda.places import unsupported
from ...cuda.registry import Printers
from ...ir import ops

if TYPE_CHECKING:
    from ...cuda.role import RolePrinter

PRINTERS = Printers()


@PRINTERS.prints("copy_async.cp")
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


@PRINTERS.prints("copy_commit")
def copy_commit(role: RolePrinter, op: ops.Perform) -> None:
    role.out.line("cute::cp_async_fence();")


@PRINTERS.prints("copy_wait")
def copy_wait(role: RolePrinter, op: ops.Perform) -> None:
    role.out.line(f"cute::cp_async_wait<{int(op.const('n'))}>();")
    role.join()
