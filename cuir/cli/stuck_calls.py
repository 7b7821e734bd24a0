"""End of a command whose process is in a user's function that swallows every exception."""

from __future__ import annotations

from typing import NoReturn

from ..spec.user_calls import end_at_once
from ..text.diagnostics import CuirError
from .interruption import report_interruption
from .output import exit_code, print_errors
from .standard_output import flush, is_json_only


def give_up(error: CuirError | None) -> NoReturn:
    """Print the reason, and end the process from within the function. error: None for Ctrl-C."""
    if error is None:
        code = report_interruption(as_json=is_json_only())
    else:
        print_errors(error.diagnostics, is_json_only())
        code = exit_code(error.diagnostics)
    flush()
    end_at_once(code)
