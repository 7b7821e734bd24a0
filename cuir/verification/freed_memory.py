"""Return of freed memory to the system, so that many verifications in one process stay small.

The C library keeps what was freed between objects that live on: half a gigabyte after a problem of long rows, and more
with each further one.
"""

from __future__ import annotations

import contextlib
import ctypes


def release_freed_memory() -> None:
    """Return memory that was freed to the system; nothing where the C library cannot."""
    with contextlib.suppress(OSError, AttributeError):  # no glibc
        ctypes.CDLL(None).malloc_trim(0)
