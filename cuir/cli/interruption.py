"""What a command that is interrupted (Ctrl-C) says: that it was, and where what it found is kept. Owns the words, not the files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

INTERRUPTED = 130  # the exit code: 128 + SIGINT, as shells have it


class Interrupted(Exception):
    """A KeyboardInterrupt of a command that keeps what it has found; its text says where."""


@contextmanager
def goes_on_from(path: Path | None, fresh: bool = False) -> Iterator[None]:
    """Around work whose results are written to `path` as they come. fresh: the command line says --fresh, with which it would begin anew."""
    try:
        yield
    except KeyboardInterrupt:
        if path is None or not path.exists():
            raise
        raise Interrupted(f"the same command{' without --fresh' if fresh else ''} goes on from {path}") from None


def tell_interrupted(kept: str = "") -> int:
    """Says so on stderr, on a line of its own below the `^C` of a terminal; returns the exit code."""
    print(f"\ninterrupted{f'; {kept}' if kept else ''}", file=sys.stderr)
    return INTERRUPTED
