"""Printers of copies by threads: cp.async."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ...analyses.alignment import find_first_column
from ...cuda.operator_text import strip, summand
from ...cuda.primitives.memory import AT
from ...cuda.registry import Printers
from ...ir import ops
from ...ir.ir_types import is_scalar
from ...layouts.tile_layouts import Fragment
from ...select.ways import way_of
from .warp_ways import CHUNK, GATHERED, IN_TURNS, count_unrolled_turns

if TYPE_CHECKING:
    from ...cuda.role import RolePrinter

PRINTERS = Printers()
LANES_OF_A_ROW = 4  # lanes that hold the indices of a row


def copy_gathered_rows(role: RolePrinter, op: ops.Perform) -> None:
    """Emit the copy of each row by the four lanes that hold its indices; rows outside of the tensor become zeros."""
    out, kernel, view = role.out, role.kernel, role.places.shared(op.arg("shared"))
    tensor, values = role.places.elements(op.arg("box"))
    size = view.alloc.dtype.itemsize
    width, chunks = CHUNK // size, view.cols * size // CHUNK
    counted = find_first_column(values[-1])
    assert counted is not None
    first = "0" if counted[0] is None else strip(role.elements.scalar(counted[0]))
    dim = kernel.tensors[tensor].dims[-1]
    whole = first.isdigit() and isinstance(dim, int) and int(first) + view.cols <= dim
    kernel.aligned[tensor] = None
    base, of_lane = out.temp("to"), out.temp("of_lane")
    place = replace(view, address=base)
    out.line(f"const uint32_t {base} = {view.address};")
    out.line(f"const int {of_lane} = lane % {LANES_OF_A_ROW};")
    row_values = Fragment(view.rows, 1, role.threads).row_values
    with out.block(f"#pragma unroll\nfor (int r_ = 0; r_ < {row_values}; ++r_)"):
        indices = []
        for d, value in enumerate(values[:-1]):
            if is_scalar(value):
                indices.append(strip(role.elements.scalar(value)))
            else:
                out.line(f"const int i{d}_ = {strip(role.elements.element(value, AT))};")
                indices.append(f"i{d}_")
        uniform = [*map(is_scalar, values[:-1]), False]
        column = f"{of_lane} * {width}" if first == "0" else f"({summand(first)} + {of_lane} * {width})"
        tests = kernel.make_bounds_tests(tensor, [*indices, "0"])[:-1]
        out.line(f"const bool in_ = {' && '.join(tests) or 'true'};")
        out.line(f"const auto from_ = {tensor} + (in_ ? {kernel.make_offset(tensor, [*indices, column], uniform)} : 0);")
        out.line(f"const int row_ = {strip(role.elements.row(Fragment(view.rows, 1, role.threads), 'r_'))};")
        with out.block(f"#pragma unroll\nfor (int c_ = 0; c_ < {-(-chunks // LANES_OF_A_ROW)}; ++c_)"):
            if chunks % LANES_OF_A_ROW:
                out.line(f"if ({LANES_OF_A_ROW} * c_ + {of_lane} >= {chunks}) break;")
            at = f"{column} + {LANES_OF_A_ROW * width} * c_"
            inside = "in_" if first.isdigit() else f"in_ && {at} >= 0"
            left = str(width) if whole else f"max(0, min({width}, {dim} - ({at})))"
            to = place.at("row_", f"{LANES_OF_A_ROW * CHUNK} * c_ + {CHUNK} * {of_lane}")
            # 0 bytes read no memory
            out.line(f"cuir::cp_async({to}, from_ + {LANES_OF_A_ROW * width} * c_, {inside} ? {left} * {size} : 0);")


@PRINTERS.prints("copy_async.cp")
def copy_cp(role: RolePrinter, op: ops.Perform) -> None:
    """Emit 16-byte chunks, spread over the worker's lanes; bytes outside of the tensor become zeros."""
    if way_of(op) == GATHERED:
        copy_gathered_rows(role, op)
        return
    out, kernel = role.out, role.kernel
    box, view = role.places.box(op.arg("box")), role.places.shared(op.arg("shared"))
    size = view.alloc.dtype.itemsize
    chunks = view.cols * size // 16
    tensor = kernel.tensors[box.tensor]
    base = out.temp("to")
    out.line(f"const uint32_t {base} = {view.address};")
    thread = "lane" if role.threads == 32 else "int(threadIdx.x) % 128"
    width, turn = 16 // size, role.threads // chunks  # columns of a chunk; rows that the worker's lanes copy at a time
    dim = tensor.dims[-1]
    first_column = int(box.starts[-1]) if box.starts[-1].isdigit() else None
    whole = first_column is not None and isinstance(dim, int) and first_column + view.cols <= dim
    outer = [i for i, n in enumerate(box.sizes[:-1]) if n > 1]
    kernel.aligned[box.tensor] = None

    def bytes_left(indices: list[str]) -> str:
        """Return the number of a chunk's bytes that lie in the tensor."""
        tests = kernel.make_bounds_tests(box.tensor, indices)[:-1]
        if first_column is None:  # chunks before the first column are outside of the tensor, too
            tests.append(f"{indices[-1]} >= 0")
        inside = str(width) if whole else f"max(0, min({width}, {dim} - {indices[-1]}))"
        return f"{' && '.join(tests)} ? {inside} : 0" if tests else inside

    if way_of(op) == IN_TURNS:
        # a lane copies the same columns of all its rows: addresses are computed once and advance by constants
        first, chunk, place, source = (out.temp(name) for name in ("first", "chunk", "place", "from"))
        turns = view.rows // turn
        out.line(f"const int {first} = {thread} / {chunks}, {chunk} = {thread} % {chunks};")
        out.line(f"const uint32_t {place} = cuir::at<{view.alloc.rows}>({base}, {first}, 16 * {chunk}{view.inside});")
        column = f"{chunk} * {width}"
        out.line(f"auto {source} = {box.tensor} + {kernel.make_offset(box.tensor, role.places.box_indices(box, first, column))};")
        with out.block(f"#pragma unroll {count_unrolled_turns(turns)}\nfor (int n_ = 0; n_ < {turns}; ++n_)"):
            indices = role.places.box_indices(box, f"({first} + n_ * {turn})", column)
            out.line(f"const int left_ = {bytes_left(indices)};")
            to = f"({place} ^ ((n_ * {turn} & 7) << 4)) + n_ * {turn * 128}"
            out.line(f"cuir::cp_async({to}, {source}, left_ * {size});")  # 0 bytes read no memory
            if outer:
                out.line(f"{source} += {turn} * {box.tensor}_stride{outer[0]};")
        return
    with out.block(f"#pragma unroll 4\nfor (int i_ = {thread}; i_ < {view.rows * chunks}; i_ += {role.threads})"):
        out.line(f"const int r_ = i_ / {chunks}, c_ = i_ % {chunks};")
        indices = role.places.box_indices(box, "r_", f"c_ * {width}")
        out.line(f"const int left_ = {bytes_left(indices)};")
        to = (
            f"cuir::at<{view.alloc.rows}>({base}, r_, 16 * c_{view.inside})"
            if view.alloc.panelled
            else f"{base} + r_ * {view.alloc.row_bytes} + 16 * c_"
        )
        out.line(
            f"cuir::cp_async({to}, left_ > 0 ? {box.tensor} + {kernel.make_offset(box.tensor, indices)} : {box.tensor}, left_ * {size});"
        )


@PRINTERS.prints("copy_commit")
def copy_commit(role: RolePrinter, op: ops.Perform) -> None:
    """Emit the end of an async group."""
    role.out.line("cute::cp_async_fence();")


@PRINTERS.prints("copy_wait")
def copy_wait(role: RolePrinter, op: ops.Perform) -> None:
    """Emit a wait for all but the last `n` async groups."""
    role.out.line(f"cute::cp_async_wait<{int(op.const('n'))}>();")
