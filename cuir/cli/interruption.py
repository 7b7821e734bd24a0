"""Interruption of a command (Ctrl-C): exit code, step that was running, and where results are kept."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

INTERRUPTED = 130  # the exit code: 128 + SIGINT, as shells have it


class Interrupted(Exception):
    """KeyboardInterrupt of a command, with the running step and how to continue.

    Attributes:
        step: Step that was running.
        continuation: How the same command goes on, in words.
    """

    def __init__(self, continuation: str = "", step: str = ""):
        super().__init__(continuation)
        self.continuation, self.step = continuation, step


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
