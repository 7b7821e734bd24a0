"""Memory that the tensors of a problem take, asked before they are made. Owns the bound and what is said beyond it."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping

from ..checking.checked import Checked
from ..text.diagnostics import CuirError

_HINT = "shorter lengths: what a kernel does wrong shows within a few tiles"
_TORCH = ("can't allocate memory", "not enough memory", "out of memory")  # how torch says it, in a RuntimeError


def require_memory(checked: Checked, sizes: Mapping[str, object], further: int = 0) -> None:
    """sizes: lengths of the kernel's dims (left out: 1); further: bytes besides its tensors. Raises CuirError: U113 for a length that no kernel can count, U125 for more bytes than the machine has."""
    lengths = {d: n for d in checked.dims if type(n := sizes.get(d)) is int}
    for d, n in lengths.items():
        if n >= 2**31:
            raise CuirError.of("U113", f"the length {d}={n} does not fit the 32 bits that integers of a kernel have", hint=_HINT)
    shapes = [(t.dtype.itemsize, [lengths.get(d, 1) if isinstance(d, str) else d for d in t.dims]) for t in checked.tensors]
    needed, limit = sum(size * math.prod(shape) for size, shape in shapes) + further, machine_bytes()
    if needed > limit:
        said = ", ".join(f"{d}={n}" for d, n in lengths.items())
        raise CuirError.of("U125", f"`{checked.name}` with {said} takes {_gigabytes(needed)} of tensors, and this machine has {_gigabytes(limit)} of memory", hint=_HINT)  # fmt: skip


def machine_bytes() -> int:
    """The memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def memory_error(error: BaseException) -> CuirError | None:
    """What an exception says if it is of memory that ran out all the same, in Python, NumPy or torch; None for another."""
    told = isinstance(error, RuntimeError) and any(words in str(error) for words in _TORCH)
    return CuirError.of("U125", "there is not memory enough for tensors of these lengths", hint=_HINT) if told or isinstance(error, MemoryError) else None  # fmt: skip


def _gigabytes(n: int) -> str:
    return f"{n / 1e9:,.1f} GB"
