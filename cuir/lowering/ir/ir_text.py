"""The text of the tile IR: written for people, and read back.

A file holds all that the rest of the lowering reads: `after` which pass it was written, before operations the place that
they come from (`loc 12:9`, of a line and a column), and at the end the lines of the program (`places`).
"""

from __future__ import annotations

import functools
import io
import re
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, FileLineColLoc, LocationAttr, UnknownLoc
from xdsl.ir import Dialect, Operation
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import ParseError, VerifyException
from xdsl.utils.lexer import Span as TextSpan

from ...text.diagnostics import CuirError
from ...text.source import Source, Span
from . import exchanges, machine_ops, machine_tiles, ops, row_parts, synchronisation
from . import machine_ops as machine
from .ir_types import TYPES
from .ops import Kernel
from .program_places import Places, make_location


@functools.cache
def dialect() -> Dialect:
    """Return all operations and types; those of the machine alone are in files of their own."""
    return Dialect(
        "tile",
        [
            *ops.OPERATIONS,
            *row_parts.COLUMN_OPERATIONS,
            *machine.OPERATIONS,
            *machine_tiles.OPERATIONS,
            *row_parts.WORD_OPERATIONS,
            *row_parts.OPERATIONS,
            *machine_ops.WARP_OPERATIONS,
            *synchronisation.OPERATIONS,
            *exchanges.OPERATIONS,
        ],
        list(TYPES),
    )


@dataclass(frozen=True)
class State:
    """The state of an IR: the last pass that ran, by its number in the pipeline and its name, and those that are left out.

    `span`: where a file says so.
    """

    number: int
    name: str
    without: tuple[str, ...] = ()
    span: Span | None = field(default=None, compare=False)


class _TextPrinter(Printer):
    """A printer that writes marks of passes (`op.attributes`) behind each operation: attributes {flag, word = "text"}."""

    def print_op(self, op: Operation) -> None:
        super().print_op(op)
        self.print_op_attributes(op.attributes, print_keyword=True)

    def print_string_literal(self, string: str) -> None:
        """Print a text as it is, but for quotes and backslashes."""
        if string.isprintable():
            self.print_string('"' + string.replace("\\", "\\\\").replace('"', '\\"') + '"')
        else:
            super().print_string_literal(string)


class _FilePrinter(_TextPrinter):
    """A printer that also writes the place of an operation, if it is another one than that of the operation before."""

    location: LocationAttr = UnknownLoc()
    file = ""  # of places without a name

    def print_op(self, op: Operation) -> None:
        if op.location is not self.location and op.location != self.location:
            self.location = op.location
            self._print_location(op.location)
            self._print_new_line()
        super().print_op(op)

    def _print_location(self, location: LocationAttr) -> None:
        self.print_string("loc ")
        if not isinstance(location, FileLineColLoc):
            self.print_string("unknown")
            return
        if location.filename.data != self.file:
            self.print_string_literal(location.filename.data)
            self.print_string(":")
        self.print_string(f"{location.line.data}:{location.column.data}")


class _TextParser(Parser):
    """A parser of what these printers write.

    Attributes:
        location: The place of the operations that follow.
        begins: Where operations begin in the text.
        file: The file of places without a name.
    """

    location: LocationAttr = UnknownLoc()
    file = ""

    def __init__(self, context: Context, text: str, name: str = "<unknown>"):
        super().__init__(context, text, name)
        self.text, self.name = text, name
        self.begins: dict[Operation, TextSpan[str]] = {}

    def parse_operation(self) -> Operation:
        if self.parse_optional_keyword("loc"):
            self.location = self._parse_place()
        location, begin = self.location, self._current_token.span
        op = super().parse_operation()
        op.location, self.begins[op] = location, begin
        marks = self.parse_optional_attr_dict_with_keyword()
        if marks is not None:
            op.attributes.update(marks.data)
        return op

    def parse_optional_location(self) -> None:
        """Parse nothing: the places of operations stand on lines of their own."""

    def _parse_place(self) -> LocationAttr:
        if self.parse_optional_keyword("unknown"):
            return UnknownLoc()
        file = self.parse_optional_str_literal()
        if file is not None:
            self.parse_punctuation(":")
        line = self.parse_integer()
        self.parse_punctuation(":")
        return make_location((self.file if file is None else file, line, self.parse_integer()))

    def parse_optional_str_literal(self) -> str | None:
        """Parse a text, also one with escapes of bytes that are not ASCII."""
        text = super().parse_optional_str_literal()
        if text is None and (data := self.parse_optional_bytes_literal()) is not None:
            return data.decode()
        return text

    def make_span(self, place: TextSpan[str] | TextSpan[bytes]) -> Span:
        """Return a place of the text as errors show it."""
        line, column = place.get_location()[1:]
        return Span(Source(self.name, self.text), line, column, line, column + max(1, len(place)))

    def parse_file(self) -> tuple[Kernel, State | None]:
        """Parse a kernel, with what may stand around it in a file."""
        state, begin = None, self._current_token.span
        if self.parse_optional_keyword("after"):
            number, name = self.parse_integer(), self.parse_str_literal("the name of a pass")
            without = (
                self.parse_comma_separated_list(self.Delimiter.NONE, self.parse_str_literal)
                if self.parse_optional_keyword("without")
                else ()
            )
            state = State(number, name, tuple(without), self.make_span(begin))
        if self.parse_optional_keyword("file"):
            self.file = self.parse_str_literal("the name of a file")
        begin = self._current_token.span
        kernel = self.parse_op()
        if not isinstance(kernel, Kernel):
            self.raise_error(f"expected tile.kernel, found {kernel.name}", begin)
        if self.parse_optional_keyword("places"):
            kernel.properties["places"] = Places(Places.parse_parameter(self))
        if self._current_token.text:
            self.raise_error(f"expected the end of the file, found {self._current_token.text}")
        return kernel, state


def show(op: Operation) -> str:
    """Return an operation and all inside it as text that `parse` reads, without places."""
    out = io.StringIO()
    _TextPrinter(out).print_op(op)
    return out.getvalue() + "\n"


def show_file(kernel: Kernel, state: State) -> str:
    """Return a kernel as the text of a file that `read` reads, with all that the rest of the lowering needs."""
    out = io.StringIO()
    printer = _FilePrinter(out)
    without = ", ".join(f'"{name}"' for name in state.without)
    printer.print_string(f'after {state.number} "{state.name}"{" without " + without if without else ""}\n')
    if isinstance(kernel.location, FileLineColLoc):
        printer.file = kernel.location.filename.data
        printer.print_string("file ")
        printer.print_string_literal(printer.file)
        printer.print_string("\n")
    printer.print_op(kernel)
    if kernel.places is not None:
        printer.print_string("\nplaces ")
        kernel.places.print_parameter(printer)
    return out.getvalue() + "\n"


def parse(text: str) -> Kernel:
    """Parse and verify a kernel.

    Raises: xdsl's ParseError and VerifyException, which name the place.
    """
    kernel, _ = _make_parser(text, "<unknown>").parse_file()
    kernel.verify()
    return kernel


def _make_parser(text: str, name: str) -> _TextParser:
    context = Context()
    context.load_dialect(Builtin)  # of marks
    context.load_dialect(dialect())
    return _TextParser(context, text, name)


def read(text: str, name: str = "<ir>") -> tuple[Kernel, State | None]:
    """Read a file of a kernel's IR, verified, and the state that it says it is in.

    Raises: CuirError L014 with the place in the file that is not as the IR's text is.
    """
    for number, line in enumerate(text.split("\n"), 1):  # xDSL's lexer takes ages for a text without its end
        quotes = [m.start() for m in re.finditer(r'\\.|"', line) if m[0] == '"']
        if len(quotes) % 2:
            place = Span(Source(name, text), number, quotes[-1] + 1, number, quotes[-1] + 2)
            raise _make_error("expected the end of a text in quotes, found the end of the line", place)
    try:
        parser = _make_parser(text, name)
    except ParseError as error:  # the first word is none
        raise _make_error(error.msg, Span(Source(name, text), 1, 1, 1, 2)) from None
    try:
        kernel, state = parser.parse_file()
    except ParseError as error:
        raise _make_error(error.msg, parser.make_span(error.span)) from None
    except Exception as error:  # an operation is made of other parts than it has: any of Python's errors, at the last word read
        raise _make_error(f"expected another operation: {error}", parser.make_span(parser._current_token.span)) from None
    for op in kernel.walk():
        try:
            op.verify(verify_nested_ops=False)
        except VerifyException as error:
            raise _make_error(str(error), parser.make_span(parser.begins[op])) from None
    return kernel, state


def _make_error(message: str, span: Span) -> CuirError:
    return CuirError.of("L014", f"this is no IR: {message}", span, "`cuir lower PROGRAM --stages FOLDER` writes such files")
