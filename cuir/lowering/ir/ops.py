"""Operations of the tile IR, their text and its rules.

The computation, effects and traits of a primitive are in `cuir/ops`; `apply` (no effect, nothing read from memory) and
`perform` (the rest) refer to it by name, so that a new primitive needs no operation here. Declarations and control flow
are in files of their own, and are imported here.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from xdsl.dialects.builtin import ArrayAttr, BoolAttr, DictionaryAttr, IntAttr, StringAttr, UnitAttr
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, opt_prop_def, prop_def, result_def, var_operand_def, var_result_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from ...ops import OPERATORS, TABLE
from ...ops.base import Op
from ...ops.traits import Traits
from ...syntax.types import BOOL, I32, DType
from .control import (
    Barrier,
    Branch,
    Declaration,
    For,
    ForUnits,
    If,
    Kernel,
    Loop,
    Parameter,
    Role,
    Shared,
    Tensor,
    Units,
    Word,
    Yield,
    branch,
    end,
    loop,
    loop_over_units,
    words_attribute,
)
from .ir_types import ScalarT, TileT, is_tile, scalar
from .operand_access import all_operands, one_result, parse_operand, parse_operands, parse_optional_operand, print_operands
from .tile_operation import TileOperation

Const = int | str | bool
_NO_TRAITS = Traits()


# ---- attributes of which operations have many
_PRESENT, _NO_CONSTS = UnitAttr(), DictionaryAttr({})
_text = functools.lru_cache(maxsize=4096)(StringAttr)


@functools.lru_cache(maxsize=4096)
def _array(items: tuple[int, ...] | tuple[str, ...]) -> ArrayAttr:
    return ArrayAttr([IntAttr(n) if isinstance(n, int) else StringAttr(n) for n in items])


@functools.cache
def entry(name: str) -> Op:
    """Return the entry of a name in the table of primitives and operators."""
    return OPERATORS[name] if name in OPERATORS else TABLE[name]


# ---- values
@one_result
@irdl_op_definition
class Constant(TileOperation):
    """A constant number or truth value."""

    name = "tile.constant"
    text = prop_def(StringAttr)
    result = result_def(ScalarT)

    @property
    def value(self) -> int | float | bool:
        """The number or truth value."""
        return value_of(self.text.data, self.result.type.element)

    def print(self, printer: Printer) -> None:
        text = self.text.data
        # the parser reads 1.0e+30 and not 1e+30
        if self.result.type.element.is_float and "e" in text and "." not in text:
            text = text.replace("e", ".0e", 1)
        printer.print_string(f" {text} : ")
        printer.print_attribute(self.result.type)

    @classmethod
    def parse(cls, parser: Parser) -> Constant:
        sign = "-" if parser.parse_optional_punctuation("-") else ""
        number = parser.parse_optional_number()
        text = sign + (parser.parse_identifier("a number") if number is None else repr(number))
        parser.parse_punctuation(":")
        t = parser.parse_type()
        if isinstance(t, ScalarT) and t.element.is_float:
            text = repr(float(text))
        return cls(properties={"text": StringAttr(text)}, result_types=[t])


def value_of(text: str, dtype: DType) -> int | float | bool:
    """Return the number or truth value of a constant's text."""
    return text == "True" if dtype == BOOL else int(text) if dtype == I32 else float(text)


def constant(value: int | float | bool, dtype: DType) -> Constant:
    """Make a constant."""
    text = repr(bool(value)) if dtype == BOOL else repr(int(value)) if dtype == I32 else repr(float(value))
    return Constant.create(properties={"text": _text(text)}, result_types=[scalar(dtype)])


def constant_value(value: SSAValue) -> int | float | bool | None:
    """Return the value of a constant; None for any other value."""
    owner = value.owner  # a hot path, and `isinstance` takes ten times as long to return False
    return owner.value if type(owner) is Constant else None


class Primitive(TileOperation):
    """An operation that refers to an entry of the table."""

    if TYPE_CHECKING:
        primitive: StringAttr

    @property
    def op(self) -> str:
        """Name of the entry."""
        return self.primitive.data

    @property
    def entry(self) -> Op:
        """The entry of the table."""
        return entry(self.primitive.data)

    @property
    def kind(self) -> Traits:
        """Traits of the primitive, since xDSL has a `traits` of its own."""
        return entry(self.properties["primitive"].data).traits  # type: ignore[attr-defined]  # a hot path

    def check(self) -> None:
        if self.op not in OPERATORS and self.op not in TABLE:
            raise VerifyException(f"there is no primitive `{self.op}`")


@one_result
@all_operands("arguments")
@irdl_op_definition
class Apply(Primitive):
    """A pure operation of the table on scalars and tiles.

    `exact`: it is computed as written, without contraction.
    """

    name = "tile.apply"
    primitive = prop_def(StringAttr)
    exact = opt_prop_def(UnitAttr)
    arguments = var_operand_def()
    result = result_def()

    def check(self) -> None:
        super().check()
        t = self.result.type
        if self.kind.elementwise and isinstance(t, TileT):
            for a in self.arguments:
                if isinstance(a.type, TileT) and not a.type.layout.agrees_with(t.layout):
                    raise VerifyException(f"a thread holds other elements of {a.type} than of {t}: tile.convert_layout is missing")

    def print(self, printer: Printer) -> None:
        printer.print_string(f' "{self.op}"')
        print_operands(printer, self.arguments)
        if self.exact is not None:
            printer.print_string(" exact")
        printer.print_string(" : ")
        printer.print_attribute(self.result.type)

    @classmethod
    def parse(cls, parser: Parser) -> Apply:
        name = parser.parse_str_literal("the name of a primitive")
        operands = parse_operands(parser)
        exact = parser.parse_optional_keyword("exact") is not None
        parser.parse_punctuation(":")
        return apply(name, operands, parser.parse_type(), exact)


def apply(primitive: str, arguments: Sequence[SSAValue], result: Attribute, exact: bool = False) -> Apply:
    """Make a pure operation of the table."""
    properties: dict[str, Attribute] = {"primitive": _text(primitive)}
    if exact:
        properties["exact"] = _PRESENT
    return Apply.create(operands=arguments, properties=properties, result_types=[result])


def kind_of(value: SSAValue) -> Traits:
    """Return the traits of the pure operation that computes a value; no traits for other values."""
    owner = value.owner  # as in `constant_value`
    return owner.kind if type(owner) is Apply else _NO_TRAITS


def number(value: SSAValue) -> int | float | bool | None:
    """Return the constant that a scalar, or every element of a tile, is; None if it is no constant."""
    owner = value.owner
    if type(owner) is Apply and owner.kind.repeats:
        value = owner.arguments[0]
    return constant_value(value)


def is_same_number(a: SSAValue, b: SSAValue) -> bool:
    """Return whether both are the same constant, its sign included: 0.0 is not -0.0."""
    return number(a) is not None and repr(number(a)) == repr(number(b))


@one_result
@irdl_op_definition
class At(TileOperation):
    """A place in an array: a view of shared memory, a box of a tensor, elements, a barrier of a ring.

    `sizes` has the extent of each dim: n elements from its operand on, -1 for the one element there, 0 for the whole
    dim, which has no operand.
    """

    name = "tile.at"
    array = operand_def()
    starts = var_operand_def()
    sizes = prop_def(ArrayAttr)
    given = prop_def(ArrayAttr)  # 1 for a dim with an operand; one that starts at its first element has none
    result = result_def()

    @property
    def parts(self) -> list[tuple[SSAValue | None, int]]:
        """Start (None: the first element) and size of each dim."""
        starts = iter(self.starts)
        return [(next(starts) if g.data else None, s.data) for g, s in zip(self.given.data, self.sizes.data, strict=True)]

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.array)
        printer.print_string("[")
        for i, (start, size) in enumerate(self.parts):
            printer.print_string(", " if i else "")
            if start is not None:
                printer.print_ssa_value(start)
            if size != -1:
                printer.print_string(":" if start is None else " :")
                printer.print_string(f" {size}" if size else "")
        printer.print_string("] : ")
        printer.print_attribute(self.result.type)

    @classmethod
    def parse(cls, parser: Parser) -> At:
        array = parse_operand(parser)
        parts: list[tuple[SSAValue | None, int]] = []

        def part() -> None:
            start = parse_optional_operand(parser)
            size = -1
            if parser.parse_optional_punctuation(":"):
                size = parser.parse_optional_integer() or 0
            parts.append((start, size))

        parser.parse_comma_separated_list(parser.Delimiter.SQUARE, part)
        parser.parse_punctuation(":")
        return at(array, parts, parser.parse_type())


def at(array: SSAValue, parts: Sequence[tuple[SSAValue | None, int]], result: Attribute) -> At:
    """Make a place: for each dim its start (None: the first element) and size."""
    return At.create(
        operands=[array, *(s for s, _ in parts if s is not None)],
        properties={
            "sizes": _array(tuple(size for _, size in parts)),
            "given": _array(tuple(int(s is not None) for s, _ in parts)),
        },
        result_types=[result],
    )


@all_operands("arguments")
@irdl_op_definition
class Perform(Primitive):
    """A primitive with an effect, or whose result depends on memory.

    `params` names its operands, `consts` has its constants. A wait for products takes the tiles that are finished with
    it, and returns them as new values: their readers come after it.
    """

    name = "tile.perform"
    primitive = prop_def(StringAttr)
    params = prop_def(ArrayAttr)
    consts = prop_def(DictionaryAttr)
    arguments = var_operand_def()
    outputs = var_result_def()

    @property
    def gathers(self) -> bool:
        """It reads elements, each at its own indices, into a tile."""
        return self.kind.indexed and is_tile(self.outputs[0])

    @property
    def args(self) -> dict[str, SSAValue]:
        """Operands by the parameters' names."""
        return {p.data: a for p, a in zip(self.params.data, self.arguments, strict=True)}

    def arg(self, name: str) -> SSAValue:
        """Return the operand of a parameter."""
        return self.args[name]

    def const(self, name: str, default: Any = None) -> Any:
        """Return the constant of a parameter, or the default."""
        attribute = self.consts.data.get(name)
        if attribute is None:
            return default
        return bool(attribute.value.data) if not hasattr(attribute, "data") else attribute.data  # type: ignore[attr-defined]

    def check(self) -> None:
        super().check()
        if len(self.params.data) != len(self.arguments):
            raise VerifyException(f"{len(self.params.data)} names for {len(self.arguments)} operands")

    def print(self, printer: Printer) -> None:
        printer.print_string(f' "{self.op}"(')
        for i, (name, value) in enumerate(zip(self.params.data, self.arguments, strict=True)):
            printer.print_string(f"{', ' if i else ''}{name.data}: ")
            printer.print_ssa_value(value)
        printer.print_string(")")
        if self.consts.data:
            constants = {k: f'"{c.data}"' if isinstance(c, StringAttr) else str(self.const(k)).lower() for k, c in self.consts.data.items()}
            printer.print_string(f" {{{', '.join(f'{k}={v}' for k, v in constants.items())}}}")
        if self.outputs:
            printer.print_string(" : ")
            printer.print_list([r.type for r in self.outputs], printer.print_attribute)

    @classmethod
    def parse(cls, parser: Parser) -> Perform:
        name = parser.parse_str_literal("the name of a primitive")
        names: list[str] = []
        operands: list[SSAValue] = []

        def argument() -> None:
            names.append(parser.parse_identifier("a parameter"))
            parser.parse_punctuation(":")
            operands.append(parse_operand(parser))

        parser.parse_comma_separated_list(parser.Delimiter.PAREN, argument)
        consts: dict[str, Const] = {}

        def parse_constant() -> None:
            word = parser.parse_identifier("a parameter")
            parser.parse_punctuation("=")
            text = parser.parse_optional_str_literal()
            truth = parser.parse_optional_boolean() if text is None else None
            consts[word] = text if text is not None else truth if truth is not None else parser.parse_integer()

        parser.parse_optional_comma_separated_list(parser.Delimiter.BRACES, parse_constant)
        types: list[Attribute] = []
        if parser.parse_optional_punctuation(":"):
            types = list(parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type))
        return perform(name, dict(zip(names, operands, strict=True)), types, consts)


def perform(
    primitive: str, args: dict[str, SSAValue], results: Sequence[Attribute] = (), consts: dict[str, Const] | None = None
) -> Perform:
    """Make an operation of the table with an effect, or that depends on memory."""
    return Perform.create(
        operands=list(args.values()),
        properties={
            "primitive": _text(primitive),
            "params": _array(tuple(args)),
            "consts": DictionaryAttr({k: _make_attribute(v) for k, v in consts.items()}) if consts else _NO_CONSTS,
        },
        result_types=results,
    )


def _make_attribute(value: Const) -> Attribute:
    if isinstance(value, bool):
        return BoolAttr.from_bool(value)
    return IntAttr(value) if isinstance(value, int) else StringAttr(value)


OPERATIONS: list[type[Operation]] = [
    Tensor,
    Parameter,
    Shared,
    Barrier,
    Units,
    Constant,
    Apply,
    At,
    Perform,
    Yield,
    For,
    ForUnits,
    If,
    Role,
    Kernel,
]

__all__ = [
    "OPERATIONS",
    "Apply",
    "At",
    "Barrier",
    "Branch",
    "Constant",
    "Declaration",
    "For",
    "ForUnits",
    "If",
    "Kernel",
    "Loop",
    "Parameter",
    "Perform",
    "Role",
    "Shared",
    "Tensor",
    "Units",
    "Word",
    "Yield",
    "apply",
    "at",
    "branch",
    "constant",
    "constant_value",
    "end",
    "entry",
    "is_same_number",
    "kind_of",
    "loop",
    "loop_over_units",
    "number",
    "perform",
    "value_of",
    "words_attribute",
]
