"""Printers of tile operations that the machine has and the language lacks (ir/machine_tiles.py).

Tests of bits (ir/row_parts.py).

The words of a row, shifted by the thread's first column, are computed before the loop. In the loop the tested bit is
known once it is unrolled.

Printer of limits on columns.

Printers of unsigned division and of division by products with inverses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from xdsl.ir import SSAValue

from ....syntax.types import F32
from ...ir import machine_ops as machine
from ...ir import ops, row_parts
from ...ir.ir_types import TileT, dtype_of, is_scalar
from ...ir.machine_tiles import After, ByReciprocal, ByRows, ConvertLayout, Line, Pin, ReadColumns, SharedTanh
from ...ir.row_parts import WORD, Bits
from ...layouts.layouts import LANES
from .. import tile_printer
from ..operator_text import strip, summand, wrapping
from ..print_scope import Position, index_of
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


element_of("tile.by_reciprocal")(tile_printer.quotient)
element_of("tile.shared_tanh")(tile_printer.tanh)


@element_of("tile.bits")
def bits(elements: Elements, op: Bits, at: Position) -> str:
    """Return the test of an element's bit."""
    t = op.result.type
    assert isinstance(t, TileT)
    rows = elements.scope.fragment(t).row_values
    texts = []
    for w, word in enumerate(op.words):
        for r in range(rows):
            place = Position("", str(r), "", "")
            text = f"unsigned({strip(elements.element(word, place))})"
            if op.limit is not None:
                text = f"cuir::first_bits({text}, {strip(elements.element(op.limit, place))}, {WORD * w})"
            texts.append(f"{text} >> col")
    words = elements.hoist("unsigned", texts, at, f"({at.k}) / {WORD} * {rows} + {at.r}")
    return f"(({words} >> ({at.k}) % {WORD} & 1) != 0)"


@prints("tile.limit")
def limit(role: RolePrinter, op: row_parts.LimitOf) -> None:
    """Emit the difference of two numbers, saturated to the i32 range."""
    s, t, function = role.storage(op.result), op.result.type, f"cuir::limit<{op.plus.data}>"
    if is_scalar(op.result):
        text = f"{function}({strip(role.elements.scalar(op.y))}, {strip(role.elements.scalar(op.x))})"
        role.out.line(f"{'const int ' if s.constant else ''}{s.name} = {text};")
        return
    assert isinstance(t, TileT)
    role.elements.emit_loop(
        t,
        lambda at: (
            f"{s.name}[{index_of(t, at)}] = {function}({strip(role.elements.element(op.y, at))}, {strip(role.elements.element(op.x, at))});"
        ),
    )


Division = machine.Quotient | machine.Remainder


@prints("tile.inverse")
def inverse(role: RolePrinter, op: machine.Inverse) -> None:
    """Emit the inverse of a divisor."""
    s = role.storage(op.result)
    role.out.line(f"{'const unsigned ' if s.constant else ''}{s.name} = cuir::inverse({strip(role.elements.scalar(op.divisor))});")


@prints("tile.quotient", "tile.remainder")
def division(role: RolePrinter, op: Division) -> None:
    """Emit a quotient or a remainder."""
    s, t = role.storage(op.result), op.result.type
    if is_scalar(op.result):
        head = f"const {s.ctype} " if s.constant else ""
        role.out.line(f"{head}{s.name} = {_make_text(role.elements, op, role.elements.scalar)};")
        return
    assert isinstance(t, TileT)
    role.elements.emit_loop(t, lambda at: f"{s.name}[{index_of(t, at)}] = {element(role.elements, op, at)};")


@element_of("tile.quotient")
@element_of("tile.remainder")
def element(elements: Elements, op: Division, at: Position) -> str:
    """Return an element of a quotient or of a remainder."""
    return _make_text(elements, op, lambda value: elements.element(value, at))


def _make_text(elements: Elements, op: Division, number: Callable[[SSAValue], str]) -> str:
    """Return a quotient or a remainder; `number` returns the text of an operand."""
    sign, function = ("/", "quotient") if isinstance(op, machine.Quotient) else ("%", "remainder")
    if op.signed is not None:
        function = f"signed_{function}"
    up = isinstance(op, machine.Quotient) and op.up is not None
    x, y = strip(number(op.x)), strip(number(op.y))
    dividend = f"unsigned({x}) + (unsigned({y}) - 1u)" if up else x
    if op.inverse is not None:
        return f"cuir::{function}({dividend}, {y}, {strip(elements.scalar(op.inverse))})"
    return f"int(({dividend}) / unsigned({y}))" if up else f"int(unsigned({dividend}) {sign} unsigned({y}))"


@prints("tile.note")
def note(role: RolePrinter, op: machine.Note) -> None:
    """Record a choice of a pass for the report."""
    role.kernel.record_choice(op.text.data, role.span(op))


__all__ = ["ByReciprocal", "Division", "SharedTanh", "bits", "division", "element", "inverse", "limit", "note"]
