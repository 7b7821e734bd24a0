"""Set-up and interruption of a process that runs the interpreter.

Set-up concerns threads, garbage collection and user functions that do not end. After Ctrl-C the command says which step
was running and where results are kept.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from ..text.diagnostics import CuirError

INTERRUPTED = 130  # the exit code: 128 + SIGINT, as shells have it


class Interrupted(Exception):
    """KeyboardInterrupt of a command, with the running step and how to continue.

    Attributes:
        step: Step that was running.
        continuation: How the same command goes on, in words.
        told: Whether the command has told it, with what it had found.
    """

    def __init__(self, continuation: str = "", step: str = "", told: bool = False):
        super().__init__(continuation)
        self.continuation, self.step, self.told = continuation, step, told


@contextmanager
def goes_on_from(path: Path | None, fresh: bool = False) -> Iterator[None]:
    """Return a context that tells how to resume after an interruption, as results are written to `path`.

    `fresh`: the command line has --fresh, with which it would begin anew.
    """
    try:
        yield
    except (KeyboardInterrupt, Interrupted) as stop:
        if path is None or not path.exists():
            raise
        step = stop.step if isinstance(stop, Interrupted) else ""
        raise Interrupted(f"the same command{' without --fresh' if fresh else ''} goes on from {path}", step) from None


def report_interruption(continuation: str = "", step: str = "", as_json: bool = False) -> int:
    """Print one JSON object, or a line on stderr below the `^C` of a terminal; return the exit code."""
    if as_json:
        from .output import print_json

        print_json({"ok": False, "interrupted": True, "diagnostics": [], "step": step or None, "goes_on": continuation or None})
    else:
        print(f"\ninterrupted{f'; {continuation}' if continuation else ''}", file=sys.stderr)
    return INTERRUPTED


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
    from .output import exit_code, print_errors
    from .standard_output import flush, is_json_only

    if error is None:
        code = report_interruption(as_json=is_json_only())
    else:
        print_errors(error.diagnostics, is_json_only())
        code = exit_code(error.diagnostics)
    flush()
    end_at_once(code)
