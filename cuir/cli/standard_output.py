"""Standard output with `--json`: one object; everything else goes to stderr.

Other output is that of a user's file, a library or C code. `end_process` ends the process even if a user's thread does
not end.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from typing import NoReturn, TextIO

_out: list[TextIO] = []  # where the object goes, while stdout is turned away


def get_json_stream() -> TextIO:
    """Return the stream to which the JSON object of `--json` is written."""
    return _out[-1] if _out else sys.stdout


def is_json_only() -> bool:
    """Return whether stdout is reserved for the object of `--json`."""
    return bool(_out)


@contextlib.contextmanager
def reserve_stdout(as_json: bool) -> Iterator[None]:
    """Turn stdout to stderr, of Python and of the process, for all but `get_json_stream`."""
    if not as_json:
        yield
        return
    before = sys.stdout
    duplicate = _duplicate(before)
    _out.append(duplicate or before)
    sys.stdout = sys.stderr
    try:
        yield
    finally:
        _out.pop()
        sys.stdout = before
        if duplicate is not None:
            with contextlib.suppress(OSError, ValueError):  # the reader left
                before.flush()
            os.dup2(duplicate.fileno(), 1)
            with contextlib.suppress(OSError, ValueError):
                duplicate.close()


def redirect_stdout() -> None:
    """Send what is still printed, while the process ends, to stderr."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        os.dup2(2, 1)


def _duplicate(stream: TextIO) -> TextIO | None:
    """Duplicate the file descriptor of stdout, then redirect stdout to stderr.

    None where Python's stdout is something else.
    """
    try:
        if stream.fileno() != 1:
            return None
        stream.flush()
        descriptor = os.dup(1)
        os.dup2(2, 1)
    except (OSError, ValueError):  # no file, or closed
        return None
    return open(descriptor, "w", encoding="utf-8", errors=getattr(stream, "errors", None))


def end_process(code: int) -> NoReturn:
    """End the process with this code, even if threads that a user's file started do not end."""
    if any(t is not threading.main_thread() and not t.daemon for t in threading.enumerate()):
        flush()
        os._exit(code)
    if _frees_needlessly():
        atexit._run_exitfuncs()
        with contextlib.suppress(OSError, ValueError):  # else Python reports what cannot be written
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    sys.exit(code)


def _frees_needlessly() -> bool:
    """Return whether Python would free PyTorch's objects one by one, which takes half a second, for no one.

    A debugger, a profiler and a GPU's driver act when Python ends.
    """
    torch = sys.modules.get("torch")
    watched = sys.gettrace() is not None or sys.getprofile() is not None
    return torch is not None and not watched and not torch.cuda.is_initialized()


def flush() -> None:
    """Write out buffered output."""
    for stream in (get_json_stream(), sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
