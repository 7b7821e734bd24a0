"""Compilation by NVRTC, the compiler in a library, on a machine without nvcc.

It needs the package `nvidia-cuda-nvrtc`, cuda-bindings, and CUDA's headers of `nvidia-cuda-runtime`, all of which
PyTorch for CUDA installs too. It has no host compiler's headers: stand-ins serve.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from ..lowering import Cuda
from .cards import list_codes
from .slim_headers import write_slim_headers

FLAGS = ("-std=c++17", "-lineinfo", "--ptxas-options=-v", "-diag-suppress=177,780", "-default-device")
INSTALL = "or pip install cubridge[nvrtc]"
CUDA_HEADER = "cuda_fp16.h"  # by which the folder of CUDA's headers is found
_BASICS = """#pragma once
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef unsigned long long uintptr_t;
namespace std {
using ::int8_t; using ::int16_t; using ::int32_t; using ::int64_t;
using ::uint8_t; using ::uint16_t; using ::uint32_t; using ::uint64_t; using ::uintptr_t;
}
"""
# headers of a host compiler that CUDA's and CuTe's name
STAND_INS = {
    "cstdint": _BASICS,
    "cuda/std/cstdint": _BASICS,
    "stdint.h": _BASICS,
    "stdlib.h": "#pragma once\n",
    "stddef.h": "#pragma once\n",
    "string.h": "#pragma once\n",
    "cstring": "#pragma once\n",
}


@functools.cache
def import_nvrtc() -> ModuleType | None:
    """Import NVRTC; None if the library, its bindings or CUDA's headers are not installed."""
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError, OSError):  # cuda-bindings loads the library at the first call
        return None
    return nvrtc if find_headers() is not None else None


@functools.cache
def find_headers() -> str | None:
    """Return the folder of CUDA's headers: of a toolkit, or of the package nvidia-cuda-runtime."""
    homes = [Path(home) / "include" for home in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")) if home]
    spec = importlib.util.find_spec("nvidia")
    packages = [p for base in (spec.submodule_search_locations or () if spec else ()) for p in sorted(Path(base).glob("*/include"))]
    return next((str(folder) for folder in (*homes, *packages) if (folder / CUDA_HEADER).is_file()), None)


def describe_version(nvrtc: ModuleType) -> str:
    """Return NVRTC's version, as reports and cache keys name it."""
    _, major, minor = nvrtc.nvrtcVersion()
    return f"NVRTC {major}.{minor}"


def compile_by_nvrtc(nvrtc: ModuleType, cuda: Cuda, include: str) -> tuple[bytes | None, str]:
    """Compile a kernel; return its machine code, or its PTX for several cards, and the compiler's log.

    The code is None if NVRTC refuses the text. include: folder of the CuTe headers.
    """
    codes = list_codes(cuda.arch)
    real = [c for c in codes if not c.startswith("compute_")]
    arch = real[0] if len(real) == 1 else codes[-1]
    headers = find_headers()
    assert headers is not None
    with tempfile.TemporaryDirectory() as folder:
        for name, text in STAND_INS.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        write_slim_headers(cuda.source, include, Path(folder))
        options = [*FLAGS, f"-arch={arch}", f"-I{folder}", f"-I{headers}", f"-I{headers}/cccl", f"-I{include}"]
        program = _require(nvrtc, nvrtc.nvrtcCreateProgram(cuda.source.encode(), f"{cuda.name}.cu".encode(), 0, [], []))
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
        log = _read(nvrtc, program, "ProgramLog").rstrip(b"\0").decode(errors="replace").replace(folder + os.sep, "")
        output = _read(nvrtc, program, "CUBIN" if arch in real else "PTX") if int(status) == 0 else None
        nvrtc.nvrtcDestroyProgram(program)
    return output, log


def _read(nvrtc: ModuleType, program: object, name: str) -> bytes:
    """Return one of a program's outputs, by the end of the name of NVRTC's functions."""
    size = int(_require(nvrtc, getattr(nvrtc, f"nvrtcGet{name}Size")(program)))
    buffer = bytes(size)
    _require(nvrtc, getattr(nvrtc, f"nvrtcGet{name}")(program, buffer))
    return buffer


def _require(nvrtc: ModuleType, result: tuple[Any, ...]) -> Any:
    """Return the value of a call of NVRTC. Raises RuntimeError for a failure that no program causes."""
    status, *values = result
    if int(status) != 0:
        raise RuntimeError(f"NVRTC fails: {nvrtc.nvrtcGetErrorString(status)[1].decode()}")
    return values[0] if values else None


__all__ = ["INSTALL", "compile_by_nvrtc", "describe_version", "find_headers", "import_nvrtc"]
