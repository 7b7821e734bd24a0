"""Operations of the tile IR, their text and its rules.

What a primitive computes, its effects and traits stand in `cuir/ops`; `apply` (no effect, nothing read from memory) and `perform` (the rest) refer to it by
name, so that a new primitive needs no operation here. Control flow is structured: loops and branches hold regions, and give the values that they carry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from xdsl.dialects.builtin import ArrayAttr, BoolAttr, DictionaryAttr, IntAttr, StringAttr, UnitAttr
from xdsl.ir import Attribute, Block, Operation, OpResult, Region, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import IsTerminator
from xdsl.utils.exceptions import VerifyException

from ...ops import OPERATORS, TABLE
from ...ops.base import Op
from ...syntax.types import BOOL, I32, DType
from .types import BarrierT, ScalarT, SharedT, TensorT, UnitsT, scalar

Const = int | str | bool


def entry(name: str) -> Op:
    """What the table of primitives and operators says of a name."""
    return OPERATORS[name] if name in OPERATORS else TABLE[name]


def _known(name: str) -> None:
    if name not in OPERATORS and name not in TABLE:
        raise VerifyException(f"there is no primitive `{name}`")


# ---- values that stand at the head of a kernel
class _Declaration(IRDLOperation):
    """A value of the kernel's frame under its name in the program. `WORDS`: its numbers and flags, in the order of its text."""

    if TYPE_CHECKING:
        symbol: StringAttr
        result: OpResult
    WORDS: ClassVar[Any] = ()

    def print(self, printer: Printer) -> None:
        printer.print_string(f' "{self.symbol.data}"')
        for name in self.WORDS:
            found = self.properties.get(name)
            if isinstance(found, IntAttr):
                printer.print_string(f" {name}={found.data}")
            elif found is not None:
                printer.print_string(f" {name}")
        if self.operands:
            _print_operands(printer, self.operands)
        printer.print_string(" : ")
        printer.print_attribute(self.result.type)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        properties: dict[str, Attribute] = {"symbol": StringAttr(parser.parse_str_literal("a name"))}
        for name in cls.WORDS:
            if parser.parse_optional_keyword(name):
                given = parser.parse_optional_punctuation("=")
                properties[name] = IntAttr(parser.parse_integer()) if given else UnitAttr()
        operands = parser.parse_optional_comma_separated_list(parser.Delimiter.PAREN, parser.parse_operand) or []
        parser.parse_punctuation(":")
        return cls(operands=operands, properties=properties, result_types=[parser.parse_type()])


@irdl_op_definition
class Tensor(_Declaration):
    """A tensor parameter. `written`: the kernel stores to it."""

    name = "tile.tensor"
    symbol = prop_def(StringAttr)
    written = opt_prop_def(UnitAttr)
    result = result_def(TensorT)
    WORDS: ClassVar = ("written",)


@irdl_op_definition
class Parameter(_Declaration):
    """A scalar parameter, or (`dim`) a dim of a tensor that is known at run time: an i32 that is not negative.

    `judged`: indices follow from it, so that a launch for which arithmetic with it would leave 32 bits is refused.
    """

    name = "tile.parameter"
    symbol = prop_def(StringAttr)
    dim = opt_prop_def(UnitAttr)
    judged = opt_prop_def(UnitAttr)
    result = result_def(ScalarT)
    WORDS: ClassVar = ("dim", "judged")


@irdl_op_definition
class Shared(_Declaration):
    """An array in shared memory, `offset` bytes from the start of the CTA's arrays."""

    name = "tile.shared"
    symbol = prop_def(StringAttr)
    offset = prop_def(IntAttr)
    result = result_def(SharedT)
    WORDS: ClassVar = ("offset",)


@irdl_op_definition
class Barrier(_Declaration):
    """A barrier, or a ring of them: `count` workers arrive (mbarrier) or take part (named_barrier)."""

    name = "tile.barrier"
    symbol = prop_def(StringAttr)
    count = prop_def(IntAttr)
    result = result_def(BarrierT)
    WORDS: ClassVar = ("count",)


@irdl_op_definition
class Units(_Declaration):
    """The units of work 0 .. count-1. `dynamic`: a CTA takes the next when it has finished one."""

    name = "tile.units"
    symbol = prop_def(StringAttr)
    dynamic = opt_prop_def(UnitAttr)
    count = operand_def(ScalarT)
    result = result_def(UnitsT)
    WORDS: ClassVar = ("dynamic",)


# ---- values
@irdl_op_definition
class Constant(IRDLOperation):
    """A number or truth value that is known."""

    name = "tile.constant"
    text = prop_def(StringAttr)
    result = result_def(ScalarT)

    @property
    def value(self) -> int | float | bool:
        return value_of(self.text.data, self.result.type.element)

    def print(self, printer: Printer) -> None:
        text = self.text.data
        if self.result.type.element.is_float and "e" in text and "." not in text:  # 1e+30 is no number to the parser, 1.0e+30 is
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
    return text == "True" if dtype == BOOL else int(text) if dtype == I32 else float(text)


def constant(value: int | float | bool, dtype: DType) -> Constant:
    text = repr(bool(value)) if dtype == BOOL else repr(int(value)) if dtype == I32 else repr(float(value))
    return Constant(properties={"text": StringAttr(text)}, result_types=[scalar(dtype)])


def known(value: SSAValue) -> int | float | bool | None:
    """The value of a constant; None of anything else."""
    return value.owner.value if isinstance(value.owner, Constant) else None


@irdl_op_definition
class Apply(IRDLOperation):
    """A pure operation of the table on scalars and tiles. `exact`: a comparison follows from it, so it is computed as written, nothing fused."""

    name = "tile.apply"
    primitive = prop_def(StringAttr)
    exact = opt_prop_def(UnitAttr)
    arguments = var_operand_def()
    result = result_def()

    @property
    def op(self) -> str:
        return self.primitive.data

    @property
    def entry(self) -> Op:
        return entry(self.primitive.data)

    def verify_(self) -> None:
        _known(self.op)

    def print(self, printer: Printer) -> None:
        printer.print_string(f' "{self.op}"')
        _print_operands(printer, self.arguments)
        if self.exact is not None:
            printer.print_string(" exact")
        printer.print_string(" : ")
        printer.print_attribute(self.result.type)

    @classmethod
    def parse(cls, parser: Parser) -> Apply:
        name = parser.parse_str_literal("the name of a primitive")
        operands = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_operand)
        exact = parser.parse_optional_keyword("exact") is not None
        parser.parse_punctuation(":")
        return apply(name, operands, parser.parse_type(), exact)


def apply(primitive: str, arguments: Sequence[SSAValue], result: Attribute, exact: bool = False) -> Apply:
    properties: dict[str, Attribute] = {"primitive": StringAttr(primitive)}
    if exact:
        properties["exact"] = UnitAttr()
    return Apply(operands=[list(arguments)], properties=properties, result_types=[result])


@irdl_op_definition
class At(IRDLOperation):
    """A place in an array: a view of shared memory, a box of a tensor, elements, a stage of a ring of barriers.

    `sizes` says for each dim how much of it is meant: n elements from its operand on, -1 for the one element there, 0 for the whole dim, which has no operand.
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
        array = parser.parse_operand()
        parts: list[tuple[SSAValue | None, int]] = []

        def part() -> None:
            start = parser.parse_optional_operand()
            size = -1
            if parser.parse_optional_punctuation(":"):
                size = parser.parse_optional_integer() or 0
            parts.append((start, size))

        parser.parse_comma_separated_list(parser.Delimiter.SQUARE, part)
        parser.parse_punctuation(":")
        return at(array, parts, parser.parse_type())


def at(array: SSAValue, parts: Sequence[tuple[SSAValue | None, int]], result: Attribute) -> At:
    return At(
        operands=[array, [s for s, _ in parts if s is not None]],
        properties={
            "sizes": ArrayAttr([IntAttr(size) for _, size in parts]),
            "given": ArrayAttr([IntAttr(int(s is not None)) for s, _ in parts]),
        },
        result_types=[result],
    )


@irdl_op_definition
class Perform(IRDLOperation):
    """A primitive with an effect, or whose result depends on memory. `params` names its operands, `consts` what is known.

    A wait for products takes the tiles that are finished with it, and gives them anew: what reads them comes after it.
    """

    name = "tile.perform"
    primitive = prop_def(StringAttr)
    params = prop_def(ArrayAttr)
    consts = prop_def(DictionaryAttr)
    arguments = var_operand_def()
    outputs = var_result_def()

    @property
    def op(self) -> str:
        return self.primitive.data

    @property
    def entry(self) -> Op:
        return entry(self.primitive.data)

    @property
    def args(self) -> dict[str, SSAValue]:
        """Operands by the parameters' names."""
        return {p.data: a for p, a in zip(self.params.data, self.arguments, strict=True)}

    def arg(self, name: str) -> SSAValue:
        return self.args[name]

    def const(self, name: str, default: Any = None) -> Any:
        found = self.consts.data.get(name)
        if found is None:
            return default
        return bool(found.value.data) if not hasattr(found, "data") else found.data  # type: ignore[attr-defined]

    def verify_(self) -> None:
        _known(self.op)
        if len(self.params.data) != len(self.arguments):
            raise VerifyException(f"{len(self.params.data)} names for {len(self.arguments)} operands")

    def print(self, printer: Printer) -> None:
        printer.print_string(f' "{self.op}"(')
        for i, (name, value) in enumerate(zip(self.params.data, self.arguments, strict=True)):
            printer.print_string(f"{', ' if i else ''}{name.data}: ")
            printer.print_ssa_value(value)
        printer.print_string(")")
        if self.consts.data:
            shown = {k: f'"{c.data}"' if isinstance(c, StringAttr) else str(self.const(k)).lower() for k, c in self.consts.data.items()}
            printer.print_string(f" {{{', '.join(f'{k}={v}' for k, v in shown.items())}}}")
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
            operands.append(parser.parse_operand())

        parser.parse_comma_separated_list(parser.Delimiter.PAREN, argument)
        consts: dict[str, Const] = {}

        def known() -> None:
            word = parser.parse_identifier("a parameter")
            parser.parse_punctuation("=")
            text = parser.parse_optional_str_literal()
            truth = parser.parse_optional_boolean() if text is None else None
            consts[word] = text if text is not None else truth if truth is not None else parser.parse_integer()

        parser.parse_optional_comma_separated_list(parser.Delimiter.BRACES, known)
        types: list[Attribute] = []
        if parser.parse_optional_punctuation(":"):
            types = list(parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type))
        return perform(name, dict(zip(names, operands, strict=True)), types, consts)


def perform(
    primitive: str, args: dict[str, SSAValue], results: Sequence[Attribute] = (), consts: dict[str, Const] | None = None
) -> Perform:
    return Perform(
        operands=[list(args.values())],
        properties={
            "primitive": StringAttr(primitive),
            "params": ArrayAttr([StringAttr(p) for p in args]),
            "consts": DictionaryAttr({k: _attribute(v) for k, v in (consts or {}).items()}),
        },
        result_types=[list(results)],
    )


def _attribute(value: Const) -> Attribute:
    if isinstance(value, bool):
        return BoolAttr.from_bool(value)
    return IntAttr(value) if isinstance(value, int) else StringAttr(value)


# ---- control flow
@irdl_op_definition
class Yield(IRDLOperation):
    """The end of a region: the values that a loop carries into its next turn, or that a branch gives."""

    name = "tile.yield"
    values = var_operand_def()
    traits = traits_def(IsTerminator())

    def print(self, printer: Printer) -> None:
        _print_operands(printer, self.values)

    @classmethod
    def parse(cls, parser: Parser) -> Yield:
        return Yield(operands=[parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_operand)])


def end(values: Sequence[SSAValue] = ()) -> Yield:
    return Yield(operands=[list(values)])


class _Loop(IRDLOperation):
    """A loop: its block takes the number of the turn and the values carried, its results are those values after the last turn."""

    if TYPE_CHECKING:
        carried: Sequence[SSAValue]
        body: Region
        outputs: Sequence[SSAValue]

    @property
    def turn(self) -> SSAValue:
        """The number of the turn, inside."""
        return self.body.block.args[0]

    @property
    def inner(self) -> Sequence[SSAValue]:
        """The values carried, inside: one for each of `carried` and `outputs`."""
        return self.body.block.args[1:]

    def verify_(self) -> None:
        last = self.body.block.last_op
        if not isinstance(last, Yield):
            raise VerifyException("the body of a loop ends with tile.yield")
        given = [v.type for v in self.carried]
        for what, found in (("arguments", self.inner), ("yielded values", last.values), ("results", self.outputs)):
            if [v.type for v in found] != given:
                raise VerifyException(f"the {what} of a loop have the types of what it carries: {', '.join(map(str, given))}")

    def _print_carried(self, printer: Printer) -> None:
        if self.carried:
            printer.print_string(" carrying (")
            for i, (a, v) in enumerate(zip(self.inner, self.carried, strict=True)):
                printer.print_string(", " if i else "")
                printer.print_ssa_value(a)
                printer.print_string(" = ")
                printer.print_ssa_value(v)
            printer.print_string(")")
        printer.print_string(" ")
        printer.print_region(self.body, print_entry_block_args=False, print_block_terminators=True)

    @staticmethod
    def _parse_carried(parser: Parser, turn: Any, more: Sequence[Any] = ()) -> tuple[list[SSAValue], Region]:
        """`more`: arguments of the block between the turn's number and the values carried."""
        arguments, values = [turn.resolve(scalar(I32)), *more], list[SSAValue]()

        def one() -> None:
            argument = parser.parse_argument(expect_type=False)
            parser.parse_punctuation("=")
            values.append(parser.parse_operand())
            arguments.append(argument.resolve(values[-1].type))

        if parser.parse_optional_keyword("carrying"):
            parser.parse_comma_separated_list(parser.Delimiter.PAREN, one)
        return values, parser.parse_region(arguments)


@irdl_op_definition
class For(_Loop):
    """for i in range(start, stop, step), step a known number."""

    name = "tile.for"
    start = operand_def(ScalarT)
    stop = operand_def(ScalarT)
    step = prop_def(IntAttr)
    carried = var_operand_def()
    body = region_def("single_block")
    outputs = var_result_def()

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.turn)
        printer.print_string(" = ")
        printer.print_ssa_value(self.start)
        printer.print_string(" to ")
        printer.print_ssa_value(self.stop)
        printer.print_string(f" step {self.step.data}" if self.step.data != 1 else "")
        self._print_carried(printer)

    @classmethod
    def parse(cls, parser: Parser) -> For:
        turn = parser.parse_argument(expect_type=False)
        parser.parse_punctuation("=")
        start = parser.parse_operand()
        parser.parse_keyword("to")
        stop = parser.parse_operand()
        step = parser.parse_integer() if parser.parse_optional_keyword("step") else 1
        return loop(start, stop, step, *cls._parse_carried(parser, turn))


def loop(start: SSAValue, stop: SSAValue, step: int, carried: Sequence[SSAValue], body: Region) -> For:
    return For(
        operands=[start, stop, list(carried)], properties={"step": IntAttr(step)}, regions=[body], result_types=[[v.type for v in carried]]
    )


@dataclass(frozen=True)
class Word:
    """A value of a queue's slot as a role reads it. Word 0 of a slot is the unit's number.

    `copies`: more than one if each worker of the role has its own, in words that follow each other from `index` on. `uniform`: branches or descriptors
    follow from it, so the compiler is shown that all lanes have the same.
    """

    index: int
    copies: int = 1
    uniform: bool = False


@irdl_op_definition
class ForUnits(_Loop):
    """The loop of a role over the units of work that its CTA has. From a queue (ir/machine.py), `words` are values that come with each unit: its block takes
    them behind the unit's number."""

    name = "tile.for_units"
    units = operand_def(UnitsT)
    words = prop_def(ArrayAttr)  # of [index, copies, uniform]
    carried = var_operand_def()
    body = region_def("single_block")
    outputs = var_result_def()

    @property
    def reads(self) -> list[tuple[Word, SSAValue]]:
        """The words that the role reads, and what they are called inside."""
        words = [Word(index.data, copies.data, bool(uniform.data)) for index, copies, uniform in self.words.data]
        return list(zip(words, self.body.block.args[1 : 1 + len(words)], strict=True))

    @property
    def inner(self) -> Sequence[SSAValue]:
        return self.body.block.args[1 + len(self.words.data) :]

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.turn)
        printer.print_string(" in ")
        printer.print_ssa_value(self.units)
        if self.reads:
            printer.print_string(" reading (")
            for i, (word, value) in enumerate(self.reads):
                printer.print_string(", " if i else "")
                printer.print_ssa_value(value)
                printer.print_string(f" = {word.index}")
                printer.print_string(f" of {word.copies}" if word.copies > 1 else "")
                printer.print_string(" uniform : " if word.uniform else " : ")
                printer.print_attribute(value.type)
            printer.print_string(")")
        self._print_carried(printer)

    @classmethod
    def parse(cls, parser: Parser) -> ForUnits:
        turn = parser.parse_argument(expect_type=False)
        parser.parse_keyword("in")
        units = parser.parse_operand()
        words, arguments = list[Word](), list[Any]()

        def word() -> None:
            argument = parser.parse_argument(expect_type=False)
            parser.parse_punctuation("=")
            index = parser.parse_integer()
            copies = parser.parse_integer() if parser.parse_optional_keyword("of") else 1
            words.append(Word(index, copies, parser.parse_optional_keyword("uniform") is not None))
            parser.parse_punctuation(":")
            arguments.append(argument.resolve(parser.parse_type()))

        if parser.parse_optional_keyword("reading"):
            parser.parse_comma_separated_list(parser.Delimiter.PAREN, word)
        return loop_over_units(units, *cls._parse_carried(parser, turn, arguments), words)


def loop_over_units(units: SSAValue, carried: Sequence[SSAValue], body: Region, words: Sequence[Word] = ()) -> ForUnits:
    """The block of `body` takes the unit's number, the words, the values carried."""
    return ForUnits(
        operands=[units, list(carried)],
        properties={"words": words_attribute(words)},
        regions=[body],
        result_types=[[v.type for v in carried]],
    )


def words_attribute(words: Sequence[Word]) -> ArrayAttr:
    return ArrayAttr([ArrayAttr([IntAttr(w.index), IntAttr(w.copies), IntAttr(int(w.uniform))]) for w in words])


class Branch(IRDLOperation):
    """A branch with two regions, which both yield its results; `decision` is what it asks."""

    if TYPE_CHECKING:
        then: Region
        orelse: Region
        outputs: Sequence[OpResult]

    @property
    def decision(self) -> SSAValue:
        return self.operands[0]

    @classmethod
    def made(cls, decision: SSAValue, then: Region, orelse: Region) -> Self:
        last = then.block.last_op
        assert isinstance(last, Yield)
        return cls(operands=[decision], regions=[then, orelse], result_types=[[v.type for v in last.values]])

    def verify_(self) -> None:
        for region in (self.then, self.orelse):
            last = region.block.last_op
            if not isinstance(last, Yield) or [v.type for v in last.values] != [r.type for r in self.outputs]:
                raise VerifyException("both regions of a branch end with tile.yield of its results' types")

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.decision)
        printer.print_string(" ")
        printer.print_region(self.then)
        printer.print_string(" else ")
        printer.print_region(self.orelse)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        decision = parser.parse_operand()
        then = parser.parse_region()
        parser.parse_keyword("else")
        return cls.made(decision, then, parser.parse_region())


@irdl_op_definition
class If(Branch):
    """A branch on a scalar, which all threads of a worker take alike."""

    name = "tile.if"
    condition = operand_def(ScalarT)
    then = region_def("single_block")
    orelse = region_def("single_block")
    outputs = var_result_def()


def branch(condition: SSAValue, then: Region, orelse: Region) -> If:
    return If.made(condition, then, orelse)


@irdl_op_definition
class Role(IRDLOperation):
    """What `workers` workers of `threads` threads run; its block takes the worker's number."""

    name = "tile.role"
    symbol = prop_def(StringAttr)
    workers = prop_def(IntAttr)
    threads = prop_def(IntAttr)
    registers = prop_def(IntAttr)  # of a thread; 0: those of the launch
    warpgroup = prop_def(IntAttr)  # where its first warp stands
    warp = prop_def(IntAttr)
    body = region_def("single_block")


@irdl_op_definition
class Kernel(IRDLOperation):
    """A kernel: declarations, then roles."""

    name = "tile.kernel"
    symbol = prop_def(StringAttr)
    arch = prop_def(StringAttr)
    cluster = prop_def(IntAttr)  # CTAs
    threads = prop_def(IntAttr)  # of a CTA
    body = region_def("single_block")

    @property
    def roles(self) -> list[Role]:
        return [op for op in self.body.block.ops if isinstance(op, Role)]

    def declaration(self, symbol: str) -> _Declaration:
        return next(op for op in self.body.block.ops if isinstance(op, _Declaration) and op.symbol.data == symbol)


# `print`s of role and kernel: their properties as words
def _print_words(*names: str) -> Callable[[Any, Printer], None]:
    def write(self: Any, printer: Printer) -> None:
        printer.print_string(f' "{self.symbol.data}"')
        for name in names:
            data = getattr(self, name).data
            printer.print_string(f" {name}={data}" if isinstance(data, int) else f' {name}="{data}"')
        printer.print_string(" ")
        printer.print_region(self.body)

    return write


def _parse_words(cls: Any, *names: str) -> Any:
    def parse(parser: Parser) -> Any:
        properties: dict[str, Attribute] = {"symbol": StringAttr(parser.parse_str_literal())}
        for name in names:
            parser.parse_keyword(name)
            parser.parse_punctuation("=")
            text = parser.parse_optional_str_literal()
            properties[name] = StringAttr(text) if text is not None else IntAttr(parser.parse_integer())
        return cls(properties=properties, regions=[parser.parse_region()])

    return parse


for _cls, _names in ((Role, ("workers", "threads", "registers", "warpgroup", "warp")), (Kernel, ("arch", "cluster", "threads"))):
    setattr(_cls, "print", _print_words(*_names))  # noqa: B010
    setattr(_cls, "parse", _parse_words(_cls, *_names))  # noqa: B010


def _print_operands(printer: Printer, values: Sequence[SSAValue]) -> None:
    printer.print_string("(")
    printer.print_list(values, printer.print_ssa_value)
    printer.print_string(")")


OPERATIONS: list[type[Operation]] = [
    Tensor, Parameter, Shared, Barrier, Units, Constant, Apply, At, Perform, Yield, For, ForUnits, If, Role, Kernel,
]  # fmt: skip


# ---- walking
def regions_of(op: Operation) -> Iterator[Block]:
    for region in op.regions:
        yield from region.blocks
