"""Disk cache of whole kernels: the same program is neither checked, lowered nor compiled again.

It is found by the next process with the same tools. Cache key and file are here. The cubin of a lowered text has an
entry in another cache (see `compile`), which serves other programs that lower to it.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ..caching.disk import KERNELS, mark_used, write_whole
from ..checking.checked import Const
from ..ops.limits import TARGETS
from ..syntax.nodes import Program
from ..syntax.printer import show
from ..text.diagnostics import CuirError
from .cards import list_codes
from .content_digests import describe_nvcc, describe_package, digest
from .loader import DRIVER
from .nvcc import Compiled, describe_environment, find_nvcc
from .nvrtc import describe_version, import_nvrtc
from .result_cache import dump, restore

CHECKSUM_BYTES = 4


def make_entry_path(program: Program, kernel: str | None, consts: Mapping[str, Const] | None, loader: str = DRIVER) -> Path:
    """Return the file of a kernel, named after its cache key.

    The key covers the program (its text as written too, since reports quote it), its consts, this package's files, the
    compiler, the loader, and the cards that a kernel of several cards is compiled for.
    """
    values = sorted((n, repr(v)) for n, v in (consts or {}).items())
    parts = [
        describe_package(),
        _describe_compiler(),
        show(program),
        program.span.source.text,
        program.span.source.name,
        str(kernel),
        repr(values),
        loader,
        *sorted({code for k in program.kernels().values() if k.arch in TARGETS for code in list_codes(k.arch)}),
    ]
    return KERNELS.path(digest(parts))


def load(entry: Path) -> Compiled | None:
    try:
        content = entry.read_bytes()
        if zlib.crc32(content[:-CHECKSUM_BYTES]) != int.from_bytes(content[-CHECKSUM_BYTES:], "little"):
            return None
        loaded = restore(content[:-CHECKSUM_BYTES])
        mark_used(entry)
        return loaded if isinstance(loaded, Compiled) else None
    except Exception:  # a damaged file may raise anything: the kernel is compiled again
        return None


def store(entry: Path, compiled: Compiled) -> None:
    """Store what a launch needs: the kernel without the text of its roles."""
    checked = compiled.cuda.checked
    roles = tuple(replace(r, body=(), locals={}) for r in checked.roles)
    origin = replace(checked.origin, body=())
    slim = replace(checked, program=Program(items=(origin,), span=checked.program.span), origin=origin, roles=roles)
    compiled = replace(compiled, cuda=replace(compiled.cuda, checked=slim))
    content = dump(compiled)
    write_whole({entry: content + zlib.crc32(content).to_bytes(CHECKSUM_BYTES, "little")})


def _describe_compiler() -> str:
    """Describe nvcc by its version, and the environment that it reads; or NVRTC where there is no nvcc."""
    try:
        return f"{describe_nvcc(find_nvcc())} {describe_environment()}"
    except (CuirError, OSError):
        nvrtc = import_nvrtc()
        return "none" if nvrtc is None else describe_version(nvrtc)
