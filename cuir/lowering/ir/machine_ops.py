"""Operations that the machine has and the language does not: queues, division by an inverse, notes.

A method `evaluate(context, operands)` returns the results for the evaluator.

Operations of warps: branches taken per warp, votes, and pins of arithmetic above a wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

from xdsl.dialects.builtin import IntAttr, StringAttr, UnitAttr
from xdsl.ir import Attribute, Operation, Region, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
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

from ...ops import entries
from ...ops.base import Op
from ...ops.meaning import Value
from ...ops.traits import Traits
from ...syntax.types import I32
from . import ops
from .ir_types import ScalarT, TileT, UnitsT, scalar
from .operand_access import Function, parse_operand, parse_operands
from .tile_operation import TileOperation


# ---- work items by a queue
@irdl_op_definition
class HandOut(TileOperation):
    """The producer's code for each work item of a queue: it takes the index and yields the slot's words.

    It runs for work items alone, not for the index behind the last one.
    """

    name = "tile.hand_out"
    body = region_def("single_block")
    traits = traits_def(IsTerminator())

    @property
    def unit(self) -> SSAValue:
        """The work item's index, inside."""
        return self.body.block.args[0]

    @property
    def words(self) -> Sequence[SSAValue]:
        """Words 1, 2, ... of a slot."""
        last = self.body.block.last_op
        assert isinstance(last, ops.Yield)
        return last.values

    def check(self) -> None:
        if not isinstance(self.body.block.last_op, ops.Yield) or [a.type for a in self.body.block.args] != [scalar(I32)]:
            raise VerifyException("tile.hand_out takes the number of a unit and ends with tile.yield")

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.unit)
        printer.print_string(" ")
        printer.print_region(self.body, print_entry_block_args=False, print_block_terminators=True)

    @classmethod
    def parse(cls, parser: Parser) -> HandOut:
        unit = parser.parse_argument(expect_type=False).resolve(scalar(I32))
        return cls(regions=[parser.parse_region([unit])])


@irdl_op_definition
class Queue(TileOperation):
    """Work items handed out through a ring of slots in shared memory.

    A slot has `words` words of 4 bytes: the index of a work item and values that depend on it alone. The body is the
    code of the warp that hands out: values that are the same for all work items once, then `tile.hand_out` for each.

    Attributes:
        slots: Slots of the ring.
        words: Words of a slot.
        spare: The warp of the CTA that hands out, on one lane; -1: the first role that reads does it, and no values are
            broadcast.
        readers: Warps that take each work item.
        ctas: CTAs of a cluster, whose first one draws dynamic work items for all.
        ahead: Workers on one lane that run ahead of the others; a dynamic work item is drawn when they have taken the
            one before (0: when all have).
    """

    name = "tile.queue"
    units = operand_def(UnitsT)
    slots = prop_def(IntAttr)
    words = prop_def(IntAttr)
    spare = prop_def(IntAttr)
    readers = prop_def(IntAttr)
    ctas = prop_def(IntAttr)
    ahead = prop_def(IntAttr)
    dynamic = opt_prop_def(UnitAttr)
    body = region_def("single_block")
    result = result_def(UnitsT)

    NUMBERS: ClassVar = ("slots", "words", "spare", "readers", "ctas", "ahead")

    @property
    def hand_out(self) -> HandOut:
        """The end of the body, which is run for each work item."""
        last = self.body.block.last_op
        assert isinstance(last, HandOut)
        return last

    @property
    def loops(self) -> list[ops.ForUnits]:
        """The loops that read it, in the order of the text, which uses do not have after a file was read."""
        readers = {use.operation for use in self.result.uses}
        root = self.get_toplevel_object()
        assert isinstance(root, Operation)
        return [op for op in root.walk() if op in readers and isinstance(op, ops.ForUnits)]

    @property
    def drawn_for_others(self) -> bool:
        """True if the first CTA of a cluster draws dynamic work items and sends them to the other CTAs."""
        return self.dynamic is not None and self.ctas.data > 1

    @property
    def nbytes(self) -> int:
        """Bytes of shared memory, 16-aligned: the slots with their barriers, and the mail of a cluster."""
        return self.slots.data * (16 + 4 * self.words.data) + 16 + 24 * self.drawn_for_others

    def check(self) -> None:
        if not isinstance(self.body.block.last_op, HandOut):
            raise VerifyException("the body of a queue ends with tile.hand_out")
        values = self.hand_out.words
        if 1 + len(values) > self.words.data or (values and self.spare.data < 0):
            raise VerifyException(f"{len(values)} values travel in slots of {self.words.data} words, handed out by warp {self.spare.data}")
        for loop in self.loops:
            for word, argument in loop.reads:
                types = [v.type for v in values[word.index - 1 : word.index - 1 + word.copies]]
                if types != [argument.type] * word.copies:
                    raise VerifyException(f"words {word.index} to {word.index + word.copies - 1} of a slot are no {argument.type}")

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.units)
        for name in self.NUMBERS:
            printer.print_string(f" {name}={self.properties[name].data}")  # type: ignore[attr-defined]
        printer.print_string(" dynamic " if self.dynamic is not None else " ")
        printer.print_region(self.body, print_block_terminators=True)

    @classmethod
    def parse(cls, parser: Parser) -> Queue:
        units, numbers = parse_operand(parser), {}
        for name in cls.NUMBERS:
            parser.parse_keyword(name)
            parser.parse_punctuation("=")
            numbers[name] = parser.parse_integer()
        dynamic = parser.parse_optional_keyword("dynamic") is not None
        return queue(units, parser.parse_region(), dynamic=dynamic, **numbers)


def queue(units: SSAValue, body: Region, *, dynamic: bool, **numbers: int) -> Queue:
    """Make a queue. `numbers`: Queue.NUMBERS."""
    properties: dict[str, Attribute] = {name: IntAttr(numbers[name]) for name in Queue.NUMBERS}
    if dynamic:
        properties["dynamic"] = UnitAttr()
    return Queue(operands=[units], properties=properties, regions=[body], result_types=[UnitsT()])


def queue_of(loop: ops.ForUnits) -> Queue | None:
    """Return the queue that a loop reads, None if each worker counts work items."""
    return loop.units.owner if isinstance(loop.units.owner, Queue) else None


# ---- division of numbers that are not negative
@irdl_op_definition
class Inverse(Function):
    """(2^32 - 1) // y as the 32 bits of an unsigned number, for division by y by a product.

    Total: of 0 it is 2^32 - 1.
    """

    name = "tile.inverse"
    divisor = operand_def(ScalarT)
    result = result_def(ScalarT)
    ONE_LANE: ClassVar = True

    def evaluate(self, context: object, operands: Sequence[Value]) -> list[Value]:
        y = int(operands[0])
        bits = 0xFFFFFFFF // y if y else 0xFFFFFFFF
        return [bits - (bits >> 31 << 32)]


def inverse(divisor: SSAValue) -> Inverse:
    """Make the inverse of a divisor."""
    return Inverse(operands=[divisor], result_types=[scalar(I32)])


class _Division(Function):
    """x by y of nonnegative i32 numbers or tiles: unsigned division, or a product with y's inverse.

    Total: by 0 it is some number. `signed`: x is any number that is far from the ends of 32 bits, y any number, and the
    inverse that of its magnitude.
    """

    x = operand_def()
    y = operand_def()
    inverse = opt_operand_def(ScalarT)
    signed = opt_prop_def(UnitAttr)
    result = result_def()
    WORDS: ClassVar[tuple[str, ...]] = ("signed",)
    ELEMENTWISE: ClassVar = True
    ONE_LANE: ClassVar = True

    @classmethod
    def from_operands(cls, operands: Sequence[SSAValue], properties: dict[str, Attribute], result: Attribute) -> Self:
        return cls(operands=[*operands[:2], operands[2:]], properties=properties, result_types=[result])

    @staticmethod
    def _evaluate(entry: Op, operands: Sequence[Value]) -> list[Value]:
        x, y, *_ = operands
        assert entry.evaluate is not None
        return [-1 if isinstance(y, int) and y == 0 else entry.evaluate(x, y)]


@irdl_op_definition
class Quotient(_Division):
    """x // y, or (`up`) cdiv(x, y): then the dividend is x + y - 1, which fits 32 unsigned bits."""

    name = "tile.quotient"
    up = opt_prop_def(UnitAttr)
    WORDS: ClassVar = ("signed", "up")

    @property
    def entry(self) -> Op:
        """The operation of the table that it is, of any numbers."""
        return entries.FLOOR_DIVIDE if self.up is None else entries.CEIL_DIVIDE

    def evaluate(self, context: object, operands: Sequence[Value]) -> list[Value]:
        return self._evaluate(self.entry, operands)


@irdl_op_definition
class Remainder(_Division):
    """x % y."""

    name = "tile.remainder"

    @property
    def entry(self) -> Op:
        """The operation of the table that it is, of any numbers."""
        return entries.REMAINDER

    def evaluate(self, context: object, operands: Sequence[Value]) -> list[Value]:
        return self._evaluate(self.entry, operands)


def division(
    kind: Traits, x: SSAValue, y: SSAValue, result: Attribute, inverse: SSAValue | None = None, signed: bool = False
) -> Quotient | Remainder:
    """Make the quotient or remainder with these traits, of nonnegative numbers, or `signed`."""
    operation = Remainder if kind.remainder else Quotient
    properties: dict[str, Attribute] = {"up": UnitAttr()} if kind.rounds == "up" else {}
    if signed:
        properties["signed"] = UnitAttr()
    return operation.from_operands([x, y, *([inverse] if inverse else [])], properties, result)


# ---- for the reader of the lowering's report
@irdl_op_definition
class Note(TileOperation):
    """A choice of a pass that is reported to the program's author; it has no effect.

    Its location is the place in the program.
    """

    name = "tile.note"
    text = prop_def(StringAttr)

    def evaluate(self, context: object, operands: Sequence[Value]) -> list[Value]:
        return []

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_attribute(self.text)

    @classmethod
    def parse(cls, parser: Parser) -> Note:
        return note(parser.parse_str_literal("a text"))


def note(text: str) -> Note:
    """Make a note for the program's author."""
    return Note(properties={"text": StringAttr(text)})


OPERATIONS: list[type[Operation]] = [HandOut, Queue, Inverse, Quotient, Remainder, Note]


@irdl_op_definition
class RowBound(Function):
    """An upper bound, at least 0, of a thread's elements of each row.

    It is enough for a vote on whether any element of a warp is greater. (The evaluator takes the row's maximum.)
    """

    name = "tile.row_bound"
    x = operand_def(TileT)
    result = result_def(TileT)

    def evaluate(self, context: object, operands: Sequence[Value]) -> list[Value]:
        return [operands[0].amax(-1, keepdim=True).clamp(min=0)]


@irdl_op_definition
class WarpIf(ops.Branch):
    """A branch of each warp, which runs `then` if `vote` holds in one of its rows or their threads' parts.

    Else it runs `orelse`. A vote that holds where it need not must change only the time it takes.
    """

    name = "tile.warp_if"
    vote = operand_def(TileT)
    then = region_def("single_block")
    orelse = region_def("single_block")
    outputs = var_result_def()


@irdl_op_definition
class Pinned(TileOperation):
    """A point in the program before which these values must be computed.

    Compilers sink arithmetic below a wait unless a branch before it needs the result. With a barrier, the operation
    waits for it where the condition holds, and is a branch that needs the numbers at the same time.
    """

    name = "tile.pinned"
    values = var_operand_def(TileT)
    condition = opt_operand_def()
    barrier = opt_operand_def()
    parity = opt_operand_def()
    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    def print(self, printer: Printer) -> None:
        printer.print_string("(")
        printer.print_list(self.values, printer.print_ssa_value)
        printer.print_string(")")
        if self.condition is not None and self.barrier is not None and self.parity is not None:
            for word, value in (("if", self.condition), ("wait", self.barrier), ("parity", self.parity)):
                printer.print_string(f" {word} ")
                printer.print_ssa_value(value)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        values = parse_operands(parser)
        guard: list[list[SSAValue]] = [[], [], []]
        if parser.parse_optional_keyword("if"):
            condition = parse_operand(parser)
            parser.parse_keyword("wait")
            barrier = parse_operand(parser)
            parser.parse_keyword("parity")
            guard = [[condition], [barrier], [parse_operand(parser)]]
        return cls(operands=[values, *guard])


def make_pinned(values: Sequence[SSAValue], guard: tuple[SSAValue, SSAValue, SSAValue] | None) -> Pinned:
    """Make the point before which values are computed.

    `guard`: condition, barrier and parity of a wait that is the branch that needs them.
    """
    return Pinned(operands=[list(values), *([[g] for g in guard] if guard else [[], [], []])])


WARP_OPERATIONS = [RowBound, WarpIf, Pinned]
