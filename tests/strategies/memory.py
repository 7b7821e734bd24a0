"""Memory of this process: what is resident, and what the C library holds back of freed blocks."""

from __future__ import annotations

import contextlib
import ctypes
import resource
from pathlib import Path

_STATM = Path("/proc/self/statm")


def read_resident() -> float:
    """Resident memory in MB; 0 where the system does not tell."""
    return int(_STATM.read_text().split()[1]) * resource.getpagesize() / 1e6 if _STATM.exists() else 0.0


def hold_freed_memory() -> None:
    """Let freed blocks of any size stay with the process, where the C library is glibc's.

    Mapped anew for each tensor, their pages would be cleared by the system a million times, a tenth of the CPU seconds of an interpreted run.
    """
    mmap_threshold, trim_threshold, top_pad = -3, -1, -2
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        for parameter, value in ((mmap_threshold, 1 << 30), (trim_threshold, (1 << 31) - 1), (top_pad, 1 << 26)):
            library.mallopt(parameter, value)
