"""Types of the tile IR: dtypes, shapes, and the layout of register tiles over threads.

The layouts of register tiles are those of `layouts/tile_layouts.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from xdsl.dialects.builtin import ArrayAttr, IntAttr, StringAttr
from xdsl.ir import Attribute, Data, ParametrizedAttribute, SSAValue, TypeAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer

from ...syntax.types import DTYPES, BarrierType, DType, GlobalView, Scalar, SharedView, TileType, Type
from ..layouts.tile_layouts import LAYOUTS, TileLayout, natural_layout
from .tile_operation import WithoutVirtualSubclasses


class _OfDType(ParametrizedAttribute, TypeAttribute, metaclass=WithoutVirtualSubclasses):
    """A type whose first parameter is a dtype."""

    dtype: StringAttr

    @property
    def element(self) -> DType:
        """The dtype."""
        return DTYPES[self.dtype.data]


@irdl_attr_definition
class ScalarT(_OfDType):
    """A number or truth value, the same in all threads of a worker."""

    name = "tile.scalar"
    dtype: StringAttr

    def print_parameters(self, printer: Printer) -> None:
        printer.print_string(f"<{self.dtype.data}>")

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            return [_parse_dtype(parser)]


@irdl_attr_definition
class LayoutAttr(Data[TileLayout]):
    """The layout of a register tile."""

    name = "tile.layout"

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(self.data.name)

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> TileLayout:
        name = parser.parse_identifier("a layout")
        if name not in LAYOUTS:
            parser.raise_error(f"expected a layout ({', '.join(LAYOUTS)}), found {name}")
        return LAYOUTS[name]


@irdl_attr_definition
class TileT(_OfDType):
    """A register tile of rows x cols elements."""

    name = "tile.reg"
    dtype: StringAttr
    rows: IntAttr
    cols: IntAttr
    layout_attr: LayoutAttr

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.rows.data, self.cols.data

    @property
    def layout(self) -> TileLayout:
        """Return the map from registers and lanes to elements."""
        return self.layout_attr.data

    @property
    def is_packed(self) -> bool:
        """Registers hold several elements each."""
        return self.layout.count_packed(self.element) > 1

    def registers(self, threads: int) -> int:
        """Return the number of 32-bit registers that the tile takes in each of a worker's threads."""
        return self.layout.count(self.shape, threads) // self.layout.count_packed(self.element)

    def print_parameters(self, printer: Printer) -> None:
        extra = "" if self.layout == natural_layout(*self.shape) else f", {self.layout.name}"
        printer.print_string(f"<{self.dtype.data}, {self.rows.data}, {self.cols.data}{extra}>")

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            dtype = _parse_dtype(parser)
            rows, cols = (_parse_next(parser) for _ in range(2))
            given = parser.parse_optional_punctuation(",")
            layout = LayoutAttr.parse_parameter(parser) if given else natural_layout(rows, cols)
            return [dtype, IntAttr(rows), IntAttr(cols), LayoutAttr(layout)]


class _Dims(_OfDType):
    """A dtype and dims: numbers, or names of dims known at run time."""

    dims: ArrayAttr

    @property
    def sizes(self) -> tuple[int | str, ...]:
        """Number, or name, of each dim."""
        return tuple(d.data for d in self.dims.data)  # type: ignore[attr-defined]

    def _format_dims(self) -> str:
        return ", ".join([self.dtype.data, *(str(d) if isinstance(d, int) else f'"{d}"' for d in self.sizes)])


def _parse_dims(parser: AttrParser) -> tuple[StringAttr, ArrayAttr, list[str]]:
    dtype, dims, words = _parse_dtype(parser), list[Attribute](), list[str]()
    while parser.parse_optional_punctuation(","):
        if (text := parser.parse_optional_str_literal()) is not None:
            dims.append(StringAttr(text))
        elif (number := parser.parse_optional_integer()) is not None:
            dims.append(IntAttr(number))
        else:
            words.append(parser.parse_identifier("a size, a name in quotes or a word"))
    return dtype, ArrayAttr(dims), words


@irdl_attr_definition
class SharedT(_Dims):
    """An array in shared memory, or a view of one. `transposed`: read with rows and columns exchanged."""

    name = "tile.shared"
    dtype: StringAttr
    dims: ArrayAttr
    transposed: IntAttr

    def print_parameters(self, printer: Printer) -> None:
        printer.print_string(f"<{self._format_dims()}{', transposed' if self.transposed.data else ''}>")

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            dtype, dims, words = _parse_dims(parser)
            return [dtype, dims, IntAttr(int("transposed" in words))]


@irdl_attr_definition
class TensorT(_Dims):
    """A tensor in device memory, or a box of one."""

    name = "tile.tensor"
    dtype: StringAttr
    dims: ArrayAttr

    def print_parameters(self, printer: Printer) -> None:
        printer.print_string(f"<{self._format_dims()}>")

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            return _parse_dims(parser)[:2]


@irdl_attr_definition
class ElementT(_OfDType):
    """Single elements of a tensor or shared array: one (0 x 0), or one per element of a tile of indices."""

    name = "tile.element"
    dtype: StringAttr
    rows: IntAttr
    cols: IntAttr

    def print_parameters(self, printer: Printer) -> None:
        printer.print_string(f"<{self.dtype.data}, {self.rows.data}, {self.cols.data}>")

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            return [_parse_dtype(parser), IntAttr(_parse_next(parser)), IntAttr(_parse_next(parser))]


@irdl_attr_definition
class BarrierT(ParametrizedAttribute, TypeAttribute):
    """A barrier of a kind of the language ("mbarrier", "named_barrier"); stages 0: a single one."""

    name = "tile.barrier"
    kind: StringAttr
    stages: IntAttr

    def print_parameters(self, printer: Printer) -> None:
        printer.print_string(f"<{self.kind.data}, {self.stages.data}>")

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            return [StringAttr(parser.parse_identifier("a kind of barrier")), IntAttr(_parse_next(parser))]


@irdl_attr_definition
class UnitsT(ParametrizedAttribute, TypeAttribute):
    """The work items of a launch, which the CTAs share."""

    name = "tile.units_of_work"


def _parse_dtype(parser: AttrParser) -> StringAttr:
    word = parser.parse_identifier("a dtype")
    if word not in DTYPES:
        parser.raise_error(f"expected a dtype ({', '.join(DTYPES)}), found {word}")
    return StringAttr(word)


def _parse_next(parser: AttrParser) -> int:
    parser.parse_punctuation(",")
    return parser.parse_integer()


# ---- to and from the types of the language
@functools.cache
def scalar(dtype: DType) -> ScalarT:
    """Return the type of a scalar."""
    return ScalarT(StringAttr(dtype.name))


@functools.cache
def tile(dtype: DType, rows: int, cols: int, layout: TileLayout | None = None) -> TileT:
    """Return the type of a register tile, by default in the layout of its shape."""
    return TileT(StringAttr(dtype.name), IntAttr(rows), IntAttr(cols), LayoutAttr(layout or natural_layout(rows, cols)))


def dims(sizes: Sequence[int | str]) -> ArrayAttr:
    """Return dims as an attribute."""
    return ArrayAttr([IntAttr(d) if isinstance(d, int) else StringAttr(d) for d in sizes])


@functools.cache
def element(dtype: DType, rows: int = 0, cols: int = 0) -> ElementT:
    """Return the type of single elements."""
    return ElementT(StringAttr(dtype.name), IntAttr(rows), IntAttr(cols))


def from_language(t: Type) -> Attribute:
    """Return the IR's type for a type of the language that values have."""
    if isinstance(t, Scalar):
        return scalar(t.dtype)
    if isinstance(t, TileType):
        return tile(t.dtype, t.rows, t.cols)
    if isinstance(t, SharedView):
        return SharedT(StringAttr(t.dtype.name), dims(t.dims), IntAttr(int(t.transposed)))
    if isinstance(t, GlobalView):
        return TensorT(StringAttr(t.dtype.name), dims(t.dims))
    assert isinstance(t, BarrierType), t
    return BarrierT(StringAttr(t.kind), IntAttr(t.stages or 0))


def dtype_of(value: SSAValue) -> DType:
    """Return the dtype of a scalar, a tile or a place."""
    assert isinstance(value.type, _OfDType), value
    return value.type.element


def broadcast(dtype: DType, *operands: SSAValue) -> TileT | ScalarT:
    """Return the type of an operation on scalars and tiles: a scalar, or a tile of the operands' joint shape."""
    shapes = [o.type.shape for o in operands if isinstance(o.type, TileT)]
    return tile(dtype, max(r for r, _ in shapes), max(c for _, c in shapes)) if shapes else scalar(dtype)


def is_tile(value: SSAValue) -> bool:
    """Return whether a value is a register tile."""
    return isinstance(value.type, TileT)


def is_scalar(value: SSAValue) -> bool:
    """Return whether a value is a scalar."""
    return isinstance(value.type, ScalarT)


TYPES: list[type[Attribute]] = [ScalarT, TileT, SharedT, TensorT, ElementT, BarrierT, UnitsT]
