"""Failure of a differential test: at most 30 lines, the cause first, and how to run it again."""

from __future__ import annotations

from collections.abc import Sequence

from ..text.diagnostics import CuirError, Diagnostic

LINES = 30


class MismatchError(AssertionError):
    """Raised where a kernel differs from its function, or goes wrong under a schedule.

    Attributes:
        diagnostics: the faults, the first being the cause.
    """

    def __init__(self, text: str, diagnostics: Sequence[Diagnostic] = ()):
        super().__init__(text)
        self.diagnostics = tuple(diagnostics)


def make_failure(title: str, error: CuirError, call: str) -> MismatchError:
    """Make the exception for a fault. call: the assertion that reproduces it."""
    lines = [title, *(line for d in error.diagnostics[:1] for line in d.render().splitlines() if "= note: replay:" not in line)]
    more = len(error.diagnostics) - 1
    end = [f"({more} more in `diagnostics` of this exception)"] * bool(more) + [f"again: {call}"]
    room = LINES - len(end)
    if len(lines) > room:
        lines = [*lines[: room - 1], f"... ({len(lines) - room + 1} more lines in `diagnostics` of this exception)"]
    return MismatchError("\n".join([*lines, *end]), error.diagnostics)
