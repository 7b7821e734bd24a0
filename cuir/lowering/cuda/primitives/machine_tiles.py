"""Printers of tile operations that the machine has and the language lacks (ir/machine_tiles.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....syntax.types import F32
from ...ir import ops
from ...ir.ir_types import TileT, dtype_of
from ...ir.machine_tiles import After, ByReciprocal, ByRows, ConvertLayout, Line, Pin, ReadColumns, SharedTanh
from ...layouts.layouts import LANES
from .. import quad_loops
from ..loops import Position
from ..operator_text import strip, summand, wrapping
from ..registry import element_of, prints

if TYPE_CHECKING:
    from ..elements import Elements
    from ..role import RolePrinter


@prints("tile.by_rows")
def by_rows(role: RolePrinter, op: ByRows) -> None:
    """Emit log2(x) or 1 / x of one number a row; rare cases take one branch for all rows of a warp."""
    target = role.storage(op.result)
    into, function = target.name, op.function.data
    argument = role.elements.array(op.x)
    if argument == into:  # the function reads its argument again where a row needs more care
        into = role.out.temp("y")
        role.out.line(f"float {into}[{target.count}];")
    role.out.line(f"cuir::{function}({argument}, {into});")
    if into != target.name:
        role.out.line(f"#pragma unroll\nfor (int r_ = 0; r_ < {target.count}; ++r_) {target.name}[r_] = {into}[r_];")


@prints("tile.pin")
def pin(role: RolePrinter, op: Pin) -> None:
    """Emit a tile that the compiler must compute at this point, and may not compute again."""
    target = role.storage(op.result)
    role.elements.assign(target, op.x)
    role.out.line(f"cuir::pin({target.name});")


@prints("tile.after")
def after(role: RolePrinter, op: After) -> None:
    """Emit a scalar that the compiler does not know before a tile is computed."""
    target, value = role.storage(op.result), strip(role.elements.scalar(op.value))
    head = f"const {target.ctype} " if target.constant else ""
    role.out.line(f"{head}{target.name} = cuir::after({value}, {role.storage(op.tile).name}[0]);")


@prints("tile.read_columns")
def read_columns(role: RolePrinter, op: ReadColumns) -> None:
    """Emit a read of columns spread over the lanes, 0 outside of the tensor."""
    place, target, kernel, t = op.box.owner, role.storage(op.result), role.kernel, op.result.type
    assert isinstance(place, ops.At) and isinstance(place.array.owner, ops.Tensor) and isinstance(t, TileT)
    tensor = place.array.owner.symbol.data
    texts, scalars = list[str](), list[bool]()
    for start, size in place.parts:
        first = "0" if start is None else role.elements.scalar(start)
        texts.append(first if size == -1 else f"({summand(first)} + ({LANES} * c_ + lane))")
        scalars.append(size == -1)
    read = kernel.make_tensor_read(tensor, kernel.make_offset(tensor, texts, scalars))
    role.elements.emit_loop(t, lambda at: f"{target.name}[c_] = {kernel.make_bounds_test(tensor, texts)} ? {strip(read)} : 0;")


@prints("tile.convert_layout")
def convert_layout(role: RolePrinter, op: ConvertLayout) -> None:
    """Emit shuffles that give each thread its columns: of a tile spread over the lanes, or of one with dealt columns.

    All lanes of the warp are here: only tiles differ between them.
    """
    source, target, t = role.elements.array(op.x), role.storage(op.result).name, op.result.type
    assert isinstance(t, TileT)
    if t.layout.is_accumulator:
        role.out.line(f"cuir::in_order({source}, {target}, lane);")
        return
    role.elements.emit_loop(t, lambda at: f"{target}[c_] = __shfl_sync(~0u, {source}[k_ / {LANES}], k_ % {LANES} + col);")


# ---- elements
@element_of("tile.line")
def line(elements: Elements, op: Line, at: Position) -> str:
    """Return an element of an affine function of the column, one operation for each element.

    The part that is uniform in a row, with the thread's first column, is computed before the loop.
    """
    floats, near = dtype_of(op.result) == F32, op.near is not None
    slope, constant = elements.scalar(op.slope), ops.constant_value(op.slope)

    def times(column: str) -> str:
        return column if constant == 1 and not floats else f"{slope} * {f'float({column})' if floats else column}"

    bases: tuple[str, ...] = (times("col"),)
    if op.rows is not None:
        places, t = [at], op.rows.type
        if isinstance(t, TileT) and t.layout.is_per_row:
            places = [Position("", str(r), "", "") for r in range(elements.scope.fragment(t).row_values)]
        texts = [elements.element(op.rows, p) for p in places]
        bases = tuple(f"{summand(x)} + {times('col')}" if floats or near else wrapping("+", x, times("col")) for x in texts)
    base = elements.hoist("float" if floats else "int", bases, at)
    if floats:  # a call: the compiler would hoist the invariant products out of loops and run out of registers
        return f"fmaf({slope}, float({at.k}), {base})"
    return f"({base} + {times(at.k)})" if near or op.rows is None else wrapping("+", base, times(at.k))


element_of("tile.by_reciprocal")(quad_loops.quotient)
element_of("tile.shared_tanh")(quad_loops.tanh)


__all__ = ["ByReciprocal", "SharedTanh"]
