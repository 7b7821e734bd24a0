"""Limits of a kernel's size while its functions are inlined: a page of text can expand beyond memory."""

from __future__ import annotations

from ..text.diagnostics import CuirError
from ..text.source import Span
from .scope import Frame, TupleValue, Value

CALLS, STATEMENTS, VALUES = 40, 5_000, 1_000  # nesting of inlined calls, statements of the kernel, values of a tuple


class Growth:
    """Counter of a kernel's statements so far."""

    def __init__(self) -> None:
        self.statements = 0

    def count_statement(self, span: Span) -> None:
        """Count one more statement or inlined call.

        Raises CuirError N121.
        """
        self.statements += 1
        if self.statements > STATEMENTS:
            message = f"the kernel has more than {STATEMENTS:,} statements once its functions are inlined"
            raise CuirError.of("N121", message, span, "call fewer functions, or loop")

    def count_call(self, caller: Frame, span: Span) -> None:
        """Count a function that is about to be inlined into its caller.

        Raises CuirError N121.
        """
        if len(caller.stack) >= CALLS:
            message = f"calls of @funcs are nested more than {CALLS} deep"
            raise CuirError.of("N121", message, span, "call fewer functions from one another")
        self.count_statement(span)

    def make_group(self, parts: list[Value], span: Span) -> TupleValue:
        """Make a tuple of `parts`, if it is not too large.

        Raises CuirError N121.
        """
        value = TupleValue(tuple(parts), span)
        if value.size > VALUES:
            hint = "tuples are taken apart when the kernel is specialised: keep what is large in an array"
            raise CuirError.of("N121", f"a tuple of more than {VALUES:,} values", span, hint)
        return value
