"""Time limits of verification, in seconds of processor time unless said otherwise.

A problem that takes longer is left out, or not searched further; only RUN makes a fault of it (D402).

Check of the memory for a problem's tensors before they are allocated.

Return of freed memory to the system, so that many verifications in one process stay small.

The C library keeps what was freed between objects that live on: half a gigabyte after a problem of long rows, and more
with each further one.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
from collections.abc import Mapping

from ..checking.checked import Checked
from ..text.diagnostics import CuirError

RUN = 20.0  # a run, by default: problems are small
SEARCHED_RUN = 2.0  # a run that searches for more turns: longer ones would exceed RUN on a slower machine
SYNCHRONISATION = {"quick": 2.0, "full": 20.0}  # a run without data for a condition
FURTHER_WAYS = 20.0  # runs of counted problems on further grids and under further schedules, at level full
TRIED_VALUES = 3.0  # all trials of special values in a function
EXPLORATION = 20.0  # all schedules of small launches, at level full; wall time
SHRINKING = 5.0  # the search for a smaller problem with the same error; wall time
LONGEST_SCHEDULE = 24 * 3600.0  # a schedule of a CUDA kernel, before its process counts as dead; wall time
SILENCE = 60.0  # a helper process without a report, before it is killed; wall time


_HINT = "shorter lengths: what a kernel does wrong shows within a few tiles"
_TORCH = ("can't allocate memory", "not enough memory", "out of memory")  # torch's messages, in a RuntimeError


def require_memory(checked: Checked, sizes: Mapping[str, object], other_bytes: int = 0) -> None:
    """Raise CuirError if tensors do not fit: U113 for a length beyond 32 bits, U125 for too many bytes.

    sizes: lengths of the kernel's dims (1 if omitted). other_bytes: memory besides its tensors. The limit is the memory
    of the machine.
    """
    lengths = {d: n for d in checked.dims if type(n := sizes.get(d)) is int}
    for d, n in lengths.items():
        if n >= 2**31:
            raise CuirError.of("U113", f"the length {d}={n} does not fit the 32 bits that integers of a kernel have", hint=_HINT)
    shapes = [(t.dtype.itemsize, [lengths.get(d, 1) if isinstance(d, str) else d for d in t.dims]) for t in checked.tensors]
    needed, limit = sum(size * math.prod(shape) for size, shape in shapes) + other_bytes, get_machine_bytes()
    if needed > limit:
        lengths_text = ", ".join(f"{d}={n}" for d, n in lengths.items())
        raise CuirError.of(
            "U125",
            f"`{checked.name}` with {lengths_text} takes {_format_gigabytes(needed)} of tensors, and this machine has {_format_gigabytes(limit)} of memory",
            hint=_HINT,
        )


def get_machine_bytes() -> int:
    """Return the memory of this machine, in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def convert_memory_error(error: BaseException) -> CuirError | None:
    """Convert an exception of exhausted memory in Python, NumPy or torch to a CuirError; None for others."""
    is_torch_error = isinstance(error, RuntimeError) and any(words in str(error) for words in _TORCH)
    return (
        CuirError.of("U125", "there is not memory enough for tensors of these lengths", hint=_HINT)
        if is_torch_error or isinstance(error, MemoryError)
        else None
    )


def _format_gigabytes(n: int) -> str:
    return f"{n / 1e9:,.1f} GB"


def release_freed_memory() -> None:
    """Return memory that was freed to the system; nothing where the C library cannot."""
    with contextlib.suppress(OSError, AttributeError):  # no glibc
        ctypes.CDLL(None).malloc_trim(0)
