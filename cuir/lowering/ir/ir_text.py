"""The text of the tile IR: written for people, read back for tests of passes."""

from __future__ import annotations

import functools
import io

from xdsl.context import Context
from xdsl.ir import Dialect, Operation
from xdsl.parser import Parser
from xdsl.printer import Printer

from . import machine_ops, machine_tiles, ops, row_parts
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
        ],
        list(TYPES),
    )


class _MarkPrinter(Printer):
    """A printer that writes marks of passes on an operation (`op.attributes`) as a comment behind it.

    Passes derive these from the rest, and `parse` skips them.
    """

    def print_op(self, op: Operation) -> None:
        super().print_op(op)
        if op.attributes and not op.regions:
            self.print_string(f"  // {', '.join(op.attributes)}")


def show(op: Operation) -> str:
    """Return an operation and all inside it as text that `parse` reads."""
    out = io.StringIO()
    _MarkPrinter(out).print_op(op)
    return out.getvalue() + "\n"


def parse(text: str) -> Kernel:
    """Parse and verify a kernel.

    Raises: xdsl's ParseError and VerifyException, which name the place.
    """
    context = Context()
    context.load_dialect(dialect())
    kernel = Parser(context, text).parse_op()
    kernel.verify()
    assert isinstance(kernel, Kernel), kernel.name
    return kernel
