"""PTX of fat binaries: the newest first, other parts are left out, what cannot be unpacked says how to build it."""

from __future__ import annotations

import ctypes
import ctypes.util

import pytest

from cuir.ptx.launch.fat_binaries import HEAD, MAGIC, PART, PTX_KIND, read_ptx
from cuir.text.diagnostics import CuirError

TEXT = b".version 8.0\n" * 50


def make_part(kind: int, arch: int, content: bytes, packed: int = 0, unpacked: int = 0) -> bytes:
    padded = content + bytes(-len(content) % 8)
    return PART.pack(kind, 257, PART.size, len(padded), packed, 64, 0, 9, arch, 0, unpacked) + padded


def make_binary(*parts: bytes) -> bytes:
    content = b"".join(parts)
    return HEAD.pack(MAGIC, 1, HEAD.size, len(content)) + content + b"behind it"


def pack_zstd(content: bytes) -> bytes:
    path = ctypes.util.find_library("zstd")
    if path is None:
        pytest.skip("no libzstd")
    library, out = ctypes.CDLL(path), ctypes.create_string_buffer(2 * len(content) + 100)
    library.ZSTD_compress.restype = ctypes.c_size_t
    size = library.ZSTD_compress(out, ctypes.c_size_t(len(out)), content, ctypes.c_size_t(len(content)), 3)
    return out.raw[:size]


def test_texts_are_found_beside_machine_code() -> None:
    binary = make_binary(make_part(2, 90, b"\x7fELF"), make_part(PTX_KIND, 80, b"old\0"), make_part(PTX_KIND, 90, b"new\0\0"))
    assert read_ptx(binary) == ["new", "old"]
    assert read_ptx(b"\0" * 64) == []


def test_compressed_texts_are_unpacked() -> None:
    packed = pack_zstd(TEXT)
    assert read_ptx(make_binary(make_part(PTX_KIND, 90, packed, len(packed), len(TEXT)))) == [TEXT.decode()]


def test_what_cannot_be_unpacked_says_how_to_build_it(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = pack_zstd(TEXT)
    with pytest.raises(CuirError, match="cannot be unpacked"):
        read_ptx(make_binary(make_part(PTX_KIND, 90, packed[:-6], len(packed) - 6, len(TEXT))))
    monkeypatch.setattr("ctypes.util.find_library", lambda name: None)
    with pytest.raises(CuirError, match="libzstd is missing") as error:
        read_ptx(make_binary(make_part(PTX_KIND, 90, packed, len(packed), len(TEXT))))
    assert "no-compress" in str(error.value.diagnostics[0].hint)
