"""Set-up of a process that runs the interpreter.

It concerns threads, garbage collection, and user functions that do not end.
"""

from __future__ import annotations

import gc
import os
from typing import NoReturn

from ..text.diagnostics import CuirError


def configure_process() -> None:
    """Configure the process for the interpreter.

    Its operations are small: threads cost more than they bring unless OMP_NUM_THREADS is set, and so do frequent
    garbage collections. Functions of a user that do not end are given up.
    """
    import torch

    from ..spec import user_calls

    user_calls.on_stuck = give_up
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    collect_rarely()


def collect_rarely() -> None:
    """Collect garbage rarely: what the interpreter drops is mostly freed at once."""
    gc.set_threshold(50_000, 20, 100)


def give_up(error: CuirError | None) -> NoReturn:
    """Print why a command ends, and end its process.

    A user's function in which the process runs may swallow every exception.

    error: None for Ctrl-C.
    """
    from ..spec.user_calls import end_at_once
    from .interruption import report_interruption
    from .output import exit_code, print_errors
    from .standard_output import flush, is_json_only

    if error is None:
        code = report_interruption(as_json=is_json_only())
    else:
        print_errors(error.diagnostics, is_json_only())
        code = exit_code(error.diagnostics)
    flush()
    end_at_once(code)
