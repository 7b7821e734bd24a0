"""Operations on register tiles that the machine has and the language does not.

A method `evaluate(context, operands)` returns the results for the evaluator. They are pure, except that
`tile.read_columns` reads a tensor that the kernel does not write.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Self

from xdsl.dialects.builtin import StringAttr, UnitAttr
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import (
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    var_operand_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from ...ops import entries
from ...ops.base import Op
from ...ops.meaning import Value
from ...syntax.types import F32, I32
from ..layouts.conversions import Conversion, plan_conversion
from ..layouts.tile_layouts import BY_LANE, CONVERSIONS, TileLayout
from .ir_types import ScalarT, TensorT, TileT, dtype_of, is_scalar, tile
from .operand_access import Function, parse_operand

if TYPE_CHECKING:
    import torch

# ---- numbers a row
LOGARITHM, ONE_OVER = FUNCTIONS = entries.LOG2.name, "one_over"


@irdl_op_definition
class ByRows(Function):
    """log2(x) or 1 / x of a number per row, of all rows of a warp at once.

    The rare case takes one branch for all of them.
    """

    name = "tile.by_rows"
    function = prop_def(StringAttr)
    x = operand_def(TileT)
    result = result_def(TileT)

    def evaluate(self, context: object, operands: Sequence[Value]) -> list[Value]:
        (x,) = operands
        return [_evaluate(entries.LOG2, x) if self.function.data == LOGARITHM else _evaluate(entries.DIVIDE, 1.0, x)]

    def check(self) -> None:
        if self.function.data not in FUNCTIONS or self.x.type != self.result.type or not self.result.type.layout.is_per_row:
            raise VerifyException(f"tile.by_rows has the functions {', '.join(FUNCTIONS)} of a number a row")

    def print(self, printer: Printer) -> None:
        printer.print_string(f' "{self.function.data}"')
        super().print(printer)

    @classmethod
    def parse(cls, parser: Parser) -> ByRows:
        function = parser.parse_str_literal("a function")
        operation = super().parse(parser)
        operation.properties["function"] = StringAttr(function)
        return operation


def by_rows(function: str, x: SSAValue) -> ByRows:
    """Make log2(x) or 1 / x of a number per row; `function` is one of FUNCTIONS."""
    return ByRows(operands=[x], properties={"function": StringAttr(function)}, result_types=[x.type])


# ---- lines
@irdl_op_definition
class Line(Function):
    """rows[r] + slope * column, the column counted from the tile's first; no rows: 0.

    An f32 tile takes one multiply-add an element, rounded once. i32 wraps; `near`: it stays within 32 bits.
    """

    name = "tile.line"
    slope = operand_def(ScalarT)
    rows = opt_operand_def()
    near = opt_prop_def(UnitAttr)
    result = result_def(TileT)
    ELEMENTWISE: ClassVar[bool] = True
    FREE: ClassVar[bool] = True

    def evaluate(self, context: object, operands: Sequence[Value]) -> list[Value]:
        import torch

        rows, cols = self.result.type.shape
        if dtype_of(self.result) == I32:
            steps = torch.arange(cols, dtype=torch.int32).reshape(1, cols) * operands[0]
            return [(steps + operands[1] if len(operands) > 1 else steps).expand(rows, cols).clone()]
        line = torch.arange(cols, dtype=torch.float64).reshape(1, cols) * float(operands[0])
        if len(operands) > 1:
            base = operands[1]
            line = line + (base.to(torch.float64) if isinstance(base, torch.Tensor) else float(base))
        return [line.to(torch.float32).expand(rows, cols).clone()]

    def check(self) -> None:
        t, rows = self.result.type, self.rows
        if t.element not in (F32, I32) or not t.layout.has_accumulator_columns or self.slope.type != ScalarT(t.dtype):
            raise VerifyException("a line is an f32 or i32 tile with columns, its slope a number of that dtype")
        if rows is not None and (dtype_of(rows) != t.element or not is_constant_along_rows(rows)):
            raise VerifyException("a line starts at a number, or at a number a row")

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.slope)
        if self.rows is not None:
            printer.print_string(" from ")
            printer.print_ssa_value(self.rows)
        printer.print_string(" near : " if self.near is not None else " : ")
        printer.print_attribute(self.result.type)

    @classmethod
    def parse(cls, parser: Parser) -> Line:
        slope = parse_operand(parser)
        rows = parse_operand(parser) if parser.parse_optional_keyword("from") else None
        near = parser.parse_optional_keyword("near") is not None
        parser.parse_punctuation(":")
        return line(slope, rows, parser.parse_type(), near)


def line(slope: SSAValue, rows: SSAValue | None, result: Attribute, near: bool = False) -> Line:
    """Make the line rows + slope * column."""
    properties: dict[str, Attribute] = {"near": UnitAttr()} if near else {}
    return Line(operands=[slope, [] if rows is None else [rows]], properties=properties, result_types=[result])


def is_constant_along_rows(value: SSAValue) -> bool:
    """Return whether a value is one number, or one per row."""
    return is_scalar(value) or (isinstance(value.type, TileT) and value.type.layout.is_constant_along_rows)


# ---- placement of values
@irdl_op_definition
class Pin(Function):
    """The tile itself, computed here and kept in registers: the compiler neither moves nor recomputes it."""

    name = "tile.pin"
    x = operand_def(TileT)
    result = result_def(TileT)
    ELEMENTWISE: ClassVar[bool] = True
    IN_REGISTERS: ClassVar[bool] = True

    def evaluate(self, context: object, operands: Sequence[Value]) -> list[Value]:
        return list(operands)


def pin(x: SSAValue) -> Pin:
    """Make a tile that is computed here and kept in registers."""
    return Pin(operands=[x], result_types=[x.type])


@irdl_op_definition
class After(Function):
    """The f32 number itself, which the compiler does not know before a tile is there.

    Values that depend on it, computed early, would take registers meanwhile.
    """

    name = "tile.after"
    value = operand_def(ScalarT)
    tile = operand_def(TileT)
    result = result_def(ScalarT)

    def evaluate(self, context: object, operands: Sequence[Value]) -> list[Value]:
        return [operands[0]]


def after(value: SSAValue, tile: SSAValue) -> After:
    """Make a number that the compiler does not know before a tile is there."""
    return After(operands=[value, tile], result_types=[value.type])


# ---- divisions and tanh of a reciprocal
LARGEST = 31.0  # base-2 logarithm of a divisor, less 1


@irdl_op_definition
class ByReciprocal(Function):
    """x times the reciprocal of y, a tile of numbers from 1 to 2^31 + 1; of y alone: its reciprocal.

    NaNs stay in their elements unless `spreads` says otherwise. `shared`: of a full tile, four neighbours in a row take
    one reciprocal of their product. `spreads`: a NaN among them makes NaNs of all four.
    """

    name = "tile.by_reciprocal"
    factors = var_operand_def()  # y, or x and y
    shared = opt_prop_def(UnitAttr)
    spreads = opt_prop_def(UnitAttr)
    result = result_def(TileT)
    WORDS: ClassVar = ("shared", "spreads")
    ELEMENTWISE: ClassVar[bool] = True
    SPECIAL: ClassVar[bool] = True

    @classmethod
    def from_operands(cls, operands: Sequence[SSAValue], properties: dict[str, Attribute], result: Attribute) -> Self:
        return cls(operands=[list(operands)], properties=properties, result_types=[result])

    @property
    def x(self) -> SSAValue | None:
        """The dividend, None for 1."""
        return self.factors[0] if len(self.factors) > 1 else None

    @property
    def y(self) -> SSAValue:
        """The divisor."""
        return self.factors[-1]

    def evaluate(self, context: object, operands: Sequence[Value]) -> list[Value]:
        y = operands[-1]
        if self.spreads is not None:
            y = y + 0.0 * self._spread_nans(y)
        inverse = _evaluate(entries.DIVIDE, 1.0, y)
        return [(inverse if self.x is None else _evaluate(entries.MULTIPLY, operands[0], inverse)).expand(self.result.type.shape).clone()]

    def _spread_nans(self, y: torch.Tensor) -> torch.Tensor:
        """Return 0, but NaN for all of the four that share if one of them is NaN.

        These are columns 2q, 2q + 1, 2q + 8 and 2q + 9 of 16, q < 4.
        """
        import torch

        rows, cols = self.result.type.shape
        four = y.isnan().expand(rows, cols).reshape(rows, cols // 16, 2, 4, 2).any(dim=4, keepdim=True).any(dim=2, keepdim=True)
        spread = four.expand(rows, cols // 16, 2, 4, 2).reshape(rows, cols)
        return torch.zeros((rows, cols)).masked_fill_(spread, float("nan"))

    def check(self) -> None:
        t = self.result.type
        if len(self.factors) not in (1, 2) or any(dtype_of(v) != F32 for v in (*self.factors, self.result)):
            raise VerifyException("tile.by_reciprocal is of one or two f32 values")
        if self.shared is not None and not can_share(t):
            raise VerifyException("four neighbours share in full f32 tiles of pairs of 8 columns")
        if self.spreads is not None and self.shared is None:
            raise VerifyException("a NaN spreads among those that share alone")


def by_reciprocal(x: SSAValue | None, y: SSAValue, result: Attribute, shared: bool = False, spreads: bool = False) -> ByReciprocal:
    """Make x / y by the reciprocal of y, or that alone."""
    properties: dict[str, Attribute] = {word: UnitAttr() for word, present in (("shared", shared), ("spreads", spreads)) if present}
    return ByReciprocal(operands=[[y] if x is None else [x, y]], properties=properties, result_types=[result])


@irdl_op_definition
class SharedTanh(Function):
    """tanh(x), or tanh(x * factor) with a scalar factor, of a full tile.

    Four neighbours in a row take one reciprocal, small arguments a polynomial.
    """

    name = "tile.shared_tanh"
    x = operand_def(TileT)
    factor = opt_operand_def(ScalarT)
    result = result_def(TileT)
    ELEMENTWISE: ClassVar[bool] = True
    SPECIAL: ClassVar[bool] = True
    RATE: ClassVar = entries.TANH.traits.logistic

    @classmethod
    def from_operands(cls, operands: Sequence[SSAValue], properties: dict[str, Attribute], result: Attribute) -> Self:
        return cls(operands=[operands[0], list(operands[1:])], result_types=[result])

    def evaluate(self, context: object, operands: Sequence[Value]) -> list[Value]:
        return [_evaluate(entries.TANH, operands[0] if self.factor is None else _evaluate(entries.MULTIPLY, *operands))]

    def check(self) -> None:
        if self.x.type != self.result.type or not can_share(self.result.type):
            raise VerifyException("four neighbours share in full f32 tiles of pairs of 8 columns")


def shared_tanh(x: SSAValue, factor: SSAValue | None) -> SharedTanh:
    """Make tanh(x), or tanh(x * factor)."""
    return SharedTanh(operands=[x, [] if factor is None else [factor]], result_types=[x.type])


def can_share(t: Attribute) -> bool:
    """Return whether a thread's elements of a row come in fours."""
    return isinstance(t, TileT) and t.element == F32 and t.layout.is_accumulator and t.shape[1] % 16 == 0


# ---- by lanes
@irdl_op_definition
class ReadColumns(Function):
    """Consecutive elements of a tensor that the kernel does not write, one per column.

    They are 0 outside of the tensor. Each lane of a warp reads every 32nd column.
    """

    name = "tile.read_columns"
    box = operand_def(TensorT)
    result = result_def(TileT)

    def evaluate(self, context: object, operands: Sequence[Value]) -> list[Value]:
        return [operands[0].read()]

    def check(self) -> None:
        if self.box.type.sizes != self.result.type.shape[1:] or self.result.type.layout != BY_LANE:  # type: ignore[attr-defined]
            raise VerifyException("tile.read_columns gives the elements of a box of one dim, a column each, to lanes")


def read_columns(box: SSAValue) -> ReadColumns:
    """Make a read of the elements of a box by lanes."""
    (cols,) = box.type.sizes  # type: ignore[attr-defined]
    return ReadColumns(operands=[box], result_types=[tile(dtype_of(box), 1, int(cols), BY_LANE)])


@irdl_op_definition
class ConvertLayout(Function):
    """The tile itself in another layout, for which lanes exchange elements."""

    name = "tile.convert_layout"
    x = operand_def(TileT)
    result = result_def(TileT)

    def evaluate(self, context: object, operands: Sequence[Value]) -> list[Value]:
        return list(operands)

    def plan(self, threads: int) -> Conversion:
        """Return the way of the conversion in a worker, and the instructions that it takes of a thread."""
        x, t = self.x.type, self.result.type
        assert isinstance(x, TileT)
        return plan_conversion(x.layout.of(x.shape, threads), t.layout.of(t.shape, threads), t.element.itemsize)

    def check(self) -> None:
        x, t = self.x.type, self.result.type
        assert isinstance(x, TileT)
        if (x.layout, t.layout) not in CONVERSIONS or t != tile(x.element, *x.shape, t.layout):
            raise VerifyException(f"no conversion of a tile is from the layout {x.layout.name} to {t.layout.name}")


def convert_layout(x: SSAValue, layout: TileLayout | None = None) -> ConvertLayout:
    """Make the conversion of a tile to a layout, by default that of its shape."""
    t = x.type
    assert isinstance(t, TileT)
    return ConvertLayout(operands=[x], result_types=[tile(t.element, *t.shape, layout)])


def _evaluate(entry: Op, *operands: Value) -> Value:
    """Evaluate an operation of the table."""
    meaning = entry.evaluate
    assert meaning is not None
    return meaning(*operands)


OPERATIONS: list[type[Operation]] = [ByRows, Line, Pin, After, ByReciprocal, SharedTanh, ReadColumns, ConvertLayout]
