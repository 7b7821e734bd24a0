"""PTX in a fat binary, as a host program registers it with CUDA's runtime."""

from __future__ import annotations

import ctypes
import ctypes.util
import struct
from collections.abc import Iterator

from ...text.diagnostics import CuirError

HEAD = struct.Struct("<IHHQ")  # magic, version, bytes of this head, bytes behind it
MAGIC = 0xBA55ED50
PART = struct.Struct(
    "<HHIQIIHHI8xQ8xQ"
)  # kind, version, bytes of this head, bytes behind it, of them packed, ..., architecture, flags, bytes unpacked
PTX_KIND = 1
ZSTD = b"\x28\xb5\x2f\xfd"
BUILD = "nvcc -cudart shared -lineinfo -gencode arch=compute_XX,code=compute_XX --no-compress"


def read_ptx(data: bytes) -> list[str]:
    """Return the texts of PTX in a fat binary, those for the newest architecture first."""
    found = sorted(_list_parts(data), key=lambda part: -part[0])
    return [text.rstrip(b"\0").decode("utf-8", "replace") for _, text in found]


def _list_parts(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield architecture and text of each PTX."""
    magic, _, head, size = HEAD.unpack_from(data)
    at = head if magic == MAGIC else len(data)
    while at + PART.size <= min(len(data), head + size):
        kind, _, part_head, part_size, packed, _, _, _, arch, _, unpacked = PART.unpack_from(data, at)
        if kind == PTX_KIND:
            content = data[at + part_head : at + part_head + part_size]
            yield arch, _unpack(content[:packed], unpacked) if unpacked else content
        at += part_head + part_size


def _unpack(content: bytes, size: int) -> bytes:
    """Return what a compressed part holds. Raises CuirError O121 where it cannot be unpacked here."""
    name = "zstd" if content.startswith(ZSTD) else "lz4"
    path = ctypes.util.find_library(name)
    if path is None:
        raise CuirError.of("O121", f"the program's PTX is compressed, and lib{name} is missing", hint=f"build it by {BUILD}")
    library, out = ctypes.CDLL(path), ctypes.create_string_buffer(size)
    if name == "zstd":
        library.ZSTD_decompress.restype = ctypes.c_size_t
        done = library.ZSTD_decompress(out, ctypes.c_size_t(size), content, ctypes.c_size_t(len(content)))
    else:
        done = library.LZ4_decompress_safe(content, out, len(content), size)
    if done != size:
        raise CuirError.of("O121", "the program's compressed PTX cannot be unpacked", hint=f"build it by {BUILD}")
    return out.raw
