"""Standard streams during calls of users' functions: their prints go to stderr, in their thread alone."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import TextIO

_lock = threading.Lock()
_callers: set[int] = set()  # threads within a user's function
_saved: list[TextIO] = []  # stdout, stderr and stdin of before, while some thread is within one


class ThreadStdout:
    """Stand-in for stdout: stderr for threads within a user's function.

    For all other threads it is the stream of before.

    `contextlib.redirect_stdout` is of the process: where two threads overlap, the last to leave restores stderr.
    """

    def __init__(self, stdout: TextIO):
        self._stdout = stdout

    def __getattr__(self, name: str) -> object:
        return getattr(sys.stderr if threading.get_ident() in _callers else self._stdout, name)


@contextlib.contextmanager
def redirect_prints() -> Iterator[None]:
    """Send what this thread prints to stderr within the block.

    Restore the streams that the block replaces.
    """
    with _lock:
        if not _callers:
            _saved[:] = sys.stdout, sys.stderr, sys.stdin
            sys.stdout = ThreadStdout(sys.stdout)
        _callers.add(threading.get_ident())
        entered = sys.stdout, sys.stderr, sys.stdin
    try:
        yield
    finally:
        with _lock:
            _callers.discard(threading.get_ident())
            sys.stdout, sys.stderr, sys.stdin = entered if _callers else _saved
