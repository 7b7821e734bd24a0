"""The text of the tile IR: written for people, read back for tests of passes."""

from __future__ import annotations

import functools
import io

from xdsl.context import Context
from xdsl.dialects.builtin import IntAttr
from xdsl.ir import Dialect, Operation
from xdsl.parser import Parser
from xdsl.printer import Printer

from . import machine_ops, machine_tiles, ops, row_parts, synchronisation
from . import machine_ops as machine
from .ir_types import TYPES
from .ops import Kernel


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
        ],
        list(TYPES),
    )


class _TextPrinter(Printer):
    """A printer that writes marks of passes (`op.attributes`) behind each operation: attributes {flag, word = "text"}."""

    def print_op(self, op: Operation) -> None:
        super().print_op(op)
        self.print_op_attributes(op.attributes, print_keyword=True)


class _TextParser(Parser):
    """A parser of what `_TextPrinter` writes."""

    def parse_operation(self) -> Operation:
        op = super().parse_operation()
        marks = self.parse_optional_attr_dict_with_keyword()
        if marks is not None:
            op.attributes.update(marks.data)
        return op

    def parse_optional_str_literal(self) -> str | None:
        """Parse a text, also one with escapes of bytes that are not ASCII."""
        text = super().parse_optional_str_literal()
        if text is None and (data := self.parse_optional_bytes_literal()) is not None:
            return data.decode()
        return text


def show(op: Operation) -> str:
    """Return an operation and all inside it as text that `parse` reads."""
    out = io.StringIO()
    _TextPrinter(out).print_op(op)
    return out.getvalue() + "\n"


def parse(text: str) -> Kernel:
    """Parse and verify a kernel.

    Raises: xdsl's ParseError and VerifyException, which name the place.
    """
    context = Context()
    context.load_dialect(dialect())
    context.load_attr_or_type(IntAttr)  # a mark's number
    kernel = _TextParser(context, text).parse_op()
    kernel.verify()
    assert isinstance(kernel, Kernel), kernel.name
    return kernel
