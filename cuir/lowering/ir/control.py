"""Structure of a kernel's IR: declarations, roles, loops and branches.

Regions yield carried values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from xdsl.dialects.builtin import ArrayAttr, IntAttr, StringAttr, UnitAttr
from xdsl.ir import Attribute, Operation, OpResult, Region, SSAValue
from xdsl.irdl import (
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

from ...syntax.types import I32, TENSOR_MEMORY, DType, SharedLayout
from ...text.source import Span
from .ir_types import BarrierT, ScalarT, SharedT, TensorT, UnitsT, scalar
from .operand_access import all_operands, parse_operand, parse_operands, print_operands
from .program_places import Places
from .tile_operation import TileOperation


class Declaration(TileOperation):
    """A value of the kernel's frame under its name in the program.

    `WORDS`: its numbers and flags, in the order of its text.
    """

    if TYPE_CHECKING:
        symbol: StringAttr
        result: OpResult
    WORDS: ClassVar[Any] = ()

    def print(self, printer: Printer) -> None:
        printer.print_string(f' "{self.symbol.data}"')
        for name in self.WORDS:
            attribute = self.properties.get(name)
            if isinstance(attribute, IntAttr):
                printer.print_string(f" {name}={attribute.data}")
            elif attribute is not None:
                printer.print_string(f" {name}")
        if self.operands:
            print_operands(printer, self.operands)
        printer.print_string(" : ")
        printer.print_attribute(self.result.type)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        properties: dict[str, Attribute] = {"symbol": StringAttr(parser.parse_str_literal("a name"))}
        for name in cls.WORDS:
            if parser.parse_optional_keyword(name):
                has_value = parser.parse_optional_punctuation("=")
                properties[name] = IntAttr(parser.parse_integer()) if has_value else UnitAttr()
        operands = parser.parse_optional_comma_separated_list(parser.Delimiter.PAREN, lambda: parse_operand(parser)) or []
        parser.parse_punctuation(":")
        return cls(operands=operands, properties=properties, result_types=[parser.parse_type()])


D = TypeVar("D", bound=Declaration)


@irdl_op_definition
class Tensor(Declaration):
    """A tensor parameter.

    Attributes:
        written: The kernel stores to it.
        scratch: The launch allocates it, contiguous.
        exchanged: Workers may exchange data through it: it has accesses of more kinds than one.
    """

    name = "tile.tensor"
    symbol = prop_def(StringAttr)
    written = opt_prop_def(UnitAttr)
    scratch = opt_prop_def(UnitAttr)
    exchanged = opt_prop_def(UnitAttr)
    result = result_def(TensorT)
    WORDS: ClassVar = ("written", "scratch", "exchanged")

    @property
    def dtype(self) -> DType:
        """The dtype of its elements."""
        return self._type.element

    @property
    def dims(self) -> tuple[int | str, ...]:
        """Number, or name, of each dim."""
        return self._type.sizes

    @property
    def _type(self) -> TensorT:
        assert isinstance(self.result.type, TensorT)
        return self.result.type


@irdl_op_definition
class Parameter(Declaration):
    """A scalar parameter, or (`dim`) a dim of a tensor that is known at run time: a nonnegative i32.

    `judged`: indices depend on it, so that a launch for which arithmetic with it would leave 32 bits is refused.
    """

    name = "tile.parameter"
    symbol = prop_def(StringAttr)
    dim = opt_prop_def(UnitAttr)
    judged = opt_prop_def(UnitAttr)
    result = result_def(ScalarT)
    WORDS: ClassVar = ("dim", "judged")


@irdl_op_definition
class Shared(Declaration):
    """An array in shared memory, `offset` bytes from the start of the CTA's arrays."""

    name = "tile.shared"
    symbol = prop_def(StringAttr)
    offset = prop_def(IntAttr)
    result = result_def(SharedT)
    WORDS: ClassVar = ("offset",)

    @property
    def layout(self) -> SharedLayout:
        """The place of its elements."""
        t = self.result.type
        assert isinstance(t, SharedT)
        return SharedLayout(self.symbol.data, t.element, tuple(int(d) for d in t.sizes), self.offset.data)


@irdl_op_definition
class Barrier(Declaration):
    """A barrier, or a ring of them: `count` workers arrive (mbarrier) or take part (named_barrier).

    `warps`: warps of these workers, each of which arrives once.
    """

    name = "tile.barrier"
    symbol = prop_def(StringAttr)
    count = prop_def(IntAttr)
    warps = prop_def(IntAttr)
    result = result_def(BarrierT)
    WORDS: ClassVar = ("count", "warps")

    @property
    def kind(self) -> str:
        """The name of its entry in the table."""
        assert isinstance(self.result.type, BarrierT)
        return self.result.type.kind.data

    @property
    def stages(self) -> int:
        """Barriers of the ring, or 1."""
        assert isinstance(self.result.type, BarrierT)
        return self.result.type.stages.data or 1


@irdl_op_definition
class Units(Declaration):
    """The work items 0 .. count-1. `dynamic`: a CTA takes the next when it has finished one."""

    name = "tile.units"
    symbol = prop_def(StringAttr)
    dynamic = opt_prop_def(UnitAttr)
    count = operand_def(ScalarT)
    result = result_def(UnitsT)
    WORDS: ClassVar = ("dynamic",)


@all_operands("values")
@irdl_op_definition
class Yield(TileOperation):
    """The end of a region: the values that a loop carries into its next turn, or that a branch yields."""

    name = "tile.yield"
    values = var_operand_def()
    traits = traits_def(IsTerminator())

    def print(self, printer: Printer) -> None:
        print_operands(printer, self.values)

    @classmethod
    def parse(cls, parser: Parser) -> Yield:
        return Yield(operands=[parse_operands(parser)])


def end(values: Sequence[SSAValue] = ()) -> Yield:
    """Make the end of a region."""
    return Yield.create(operands=values)


class Loop(TileOperation):
    """A loop: its block takes the turn's index and the carried values, its results are their last values."""

    if TYPE_CHECKING:
        carried: Sequence[SSAValue]
        body: Region
        outputs: Sequence[SSAValue]

    @property
    def turn(self) -> SSAValue:
        """The index of the turn, inside."""
        return self.body.block.args[0]

    @property
    def inner(self) -> Sequence[SSAValue]:
        """The carried values, inside: one for each of `carried` and `outputs`."""
        return self.body.block.args[1:]

    def check(self) -> None:
        last = self.body.block.last_op
        if not isinstance(last, Yield):
            raise VerifyException("the body of a loop ends with tile.yield")
        types = [v.type for v in self.carried]
        for kind, carried in (("arguments", self.inner), ("yielded values", last.values), ("results", self.outputs)):
            if [v.type for v in carried] != types:
                raise VerifyException(f"the {kind} of a loop have the types of what it carries: {', '.join(map(str, types))}")

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
        """Parse carried values and the body.

        `more`: arguments of the block between the turn's index and the carried values.
        """
        arguments, values = [turn.resolve(scalar(I32)), *more], list[SSAValue]()

        def parse_carried() -> None:
            argument = parser.parse_argument(expect_type=False)
            parser.parse_punctuation("=")
            values.append(parse_operand(parser))
            arguments.append(argument.resolve(values[-1].type))

        if parser.parse_optional_keyword("carrying"):
            parser.parse_comma_separated_list(parser.Delimiter.PAREN, parse_carried)
        return values, parser.parse_region(arguments)


@irdl_op_definition
class For(Loop):
    """for i in range(start, stop, step), with a constant step."""

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
        start = parse_operand(parser)
        parser.parse_keyword("to")
        stop = parse_operand(parser)
        step = parser.parse_integer() if parser.parse_optional_keyword("step") else 1
        return loop(start, stop, step, *cls._parse_carried(parser, turn))


def loop(start: SSAValue, stop: SSAValue, step: int, carried: Sequence[SSAValue], body: Region) -> For:
    """Make a loop over a range."""
    return For(
        operands=[start, stop, list(carried)], properties={"step": IntAttr(step)}, regions=[body], result_types=[[v.type for v in carried]]
    )


@dataclass(frozen=True)
class Word:
    """A 32-bit value in a queue's slot, as a role reads it. Word 0 of a slot is the work item's index.

    Attributes:
        index: The first word.
        copies: More than one if each worker of the role has its own, in consecutive words from `index` on.
        uniform: Branches or descriptors depend on it, so the generated code shows the compiler that it is uniform.
    """

    index: int
    copies: int = 1
    uniform: bool = False


@irdl_op_definition
class ForUnits(Loop):
    """The loop of a role over the work items of its CTA.

    From a queue (ir/machine.py), `words` are values that come with each work item: its block takes them after the
    index.
    """

    name = "tile.for_units"
    units = operand_def(UnitsT)
    words = prop_def(ArrayAttr)  # of [index, copies, uniform]
    carried = var_operand_def()
    body = region_def("single_block")
    outputs = var_result_def()

    @property
    def reads(self) -> list[tuple[Word, SSAValue]]:
        """The words that the role reads, and their values inside."""
        words = [Word(index.data, copies.data, bool(uniform.data)) for index, copies, uniform in self.words.data]
        return list(zip(words, self.body.block.args[1 : 1 + len(words)], strict=True))

    @property
    def inner(self) -> Sequence[SSAValue]:
        """Values that the loop carries, as arguments of its block, behind the work item's index and words."""
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
        units = parse_operand(parser)
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
    """Make a loop over work items.

    The block of `body` takes the work item's index, the words and the carried values.
    """
    return ForUnits(
        operands=[units, list(carried)],
        properties={"words": words_attribute(words)},
        regions=[body],
        result_types=[[v.type for v in carried]],
    )


def words_attribute(words: Sequence[Word]) -> ArrayAttr:
    """Encode words as an attribute."""
    return ArrayAttr([ArrayAttr([IntAttr(w.index), IntAttr(w.copies), IntAttr(int(w.uniform))]) for w in words])


class Branch(TileOperation):
    """A branch with two regions, which both yield its results; `decision` is its condition."""

    if TYPE_CHECKING:
        then: Region
        orelse: Region
        outputs: Sequence[OpResult]

    @property
    def decision(self) -> SSAValue:
        """The condition."""
        return self.operands[0]

    @classmethod
    def from_regions(cls, decision: SSAValue, then: Region, orelse: Region) -> Self:
        """Make a branch whose results have the types that its regions yield."""
        last = then.block.last_op
        assert isinstance(last, Yield)
        return cls.create(operands=[decision], regions=[then, orelse], result_types=[v.type for v in last.values])

    def check(self) -> None:
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
        decision = parse_operand(parser)
        then = parser.parse_region()
        parser.parse_keyword("else")
        return cls.from_regions(decision, then, parser.parse_region())


@irdl_op_definition
class If(Branch):
    """A branch on a scalar, which is uniform in a worker."""

    name = "tile.if"
    condition = operand_def(ScalarT)
    then = region_def("single_block")
    orelse = region_def("single_block")
    outputs = var_result_def()


def branch(condition: SSAValue, then: Region, orelse: Region) -> If:
    """Make a branch on a scalar."""
    return If.from_regions(condition, then, orelse)


class _Named(TileOperation):
    """name "symbol" word=value ... { body }.

    `WORDS`: the properties in the order of the text; those of `OPTIONAL` may be absent.
    """

    if TYPE_CHECKING:
        symbol: StringAttr
        body: Region
    WORDS: ClassVar[tuple[str, ...]] = ()
    OPTIONAL: ClassVar[tuple[str, ...]] = ()

    def print(self, printer: Printer) -> None:
        printer.print_string(f' "{self.symbol.data}"')
        for name in self.WORDS:
            if name in self.properties:
                data = self.properties[name].data  # type: ignore[attr-defined]
                printer.print_string(f" {name}={data}" if isinstance(data, int) else f' {name}="{data}"')
        printer.print_string(" ")
        printer.print_region(self.body)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        properties: dict[str, Attribute] = {"symbol": StringAttr(parser.parse_str_literal())}
        for name in cls.WORDS:
            if name not in cls.OPTIONAL:
                parser.parse_keyword(name)
            elif parser.parse_optional_keyword(name) is None:
                continue
            parser.parse_punctuation("=")
            text = parser.parse_optional_str_literal()
            properties[name] = StringAttr(text) if text is not None else IntAttr(parser.parse_integer())
        return cls(properties=properties, regions=[parser.parse_region()])


@irdl_op_definition
class Role(_Named):
    """A role: `workers` workers of `threads` threads each run its body, which takes the worker's index.

    Warps of a worker exchange values through `exchanged` bytes of shared memory, from `exchange` on for the first worker.
    """

    name = "tile.role"
    symbol = prop_def(StringAttr)
    workers = prop_def(IntAttr)
    threads = prop_def(IntAttr)
    registers = prop_def(IntAttr)  # of a thread; 0: those of the launch
    warpgroup = prop_def(IntAttr)  # of its first warp
    warp = prop_def(IntAttr)
    exchange = opt_prop_def(IntAttr)
    exchanged = opt_prop_def(IntAttr)
    body = region_def("single_block")
    WORDS: ClassVar = ("workers", "threads", "registers", "warpgroup", "warp", "exchange", "exchanged")
    OPTIONAL: ClassVar = ("exchange", "exchanged")


@irdl_op_definition
class Kernel(_Named):
    """A kernel: declarations, then roles.

    `consts`: its compile-time constants, for readers. `places`: the spans of its operations' locations.
    """

    name = "tile.kernel"
    symbol = prop_def(StringAttr)
    arch = prop_def(StringAttr)
    cluster = prop_def(IntAttr)  # CTAs
    cluster_x = prop_def(IntAttr)  # of these, side by side along x
    threads = prop_def(IntAttr)  # of a CTA
    consts = opt_prop_def(StringAttr)
    places = opt_prop_def(Places)
    body = region_def("single_block")
    WORDS: ClassVar = ("arch", "cluster", "cluster_x", "threads", "consts")
    OPTIONAL: ClassVar = ("consts",)

    @property
    def roles(self) -> list[Role]:
        """The roles, in the order of the text."""
        return [op for op in self.body.block.ops if isinstance(op, Role)]

    def collect(self, kind: type[D]) -> dict[str, D]:
        """Return the declarations of a kind by their names, in the order of the text."""
        return {op.symbol.data: op for op in self.body.block.ops if isinstance(op, kind)}

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory that arrays and the exchanges of roles take, without barriers."""
        layouts = [array.layout for array in self.collect(Shared).values()]
        ends = [a.offset + a.nbytes for a in layouts if a.offset < TENSOR_MEMORY]
        ends += [r.exchange.data + r.exchanged.data * r.workers.data for r in self.roles if r.exchange and r.exchanged]
        return max(ends, default=0)

    def find_span(self, op: Operation) -> Span | None:
        """Return the place in the program that an operation comes from, else that of the kernel, if it is known."""
        if self.places is None:
            return None
        span = self.places.find(op)
        return self.places.find(self) if span is None else span

    def declaration(self, symbol: str) -> Declaration:
        """Return the program's declaration of a tensor, shared array, barrier or number, by its name."""
        return next(op for op in self.body.block.ops if isinstance(op, Declaration) and op.symbol.data == symbol)
