"""A CUDA source, compiled to PTX and read."""

from __future__ import annotations

from pathlib import Path

from cuir.ptx.launch.compile_ptx import Build as Build
from cuir.ptx.launch.compile_ptx import choose_kernel as choose_kernel
from cuir.ptx.launch.compile_ptx import compile_to_ptx
from cuir.ptx.module import entries, read_entry

from .ptx_reading import Compiled, reading_of


def read_compiled(source: Path, build: Build) -> Compiled:
    """Compile a source and read its PTX.

    Raises CuirError U503, U504 (nothing to compile with), O121 (nvcc refuses it), O122, O124 (no such kernel), O123.
    """
    ptx = compile_to_ptx(source, build)
    mangled, name = choose_kernel(entries(ptx), build.kernel, source)
    user_folders = [str(source.resolve().parent), *(str(Path(i).resolve()) for i in build.include)]
    return reading_of(read_entry(ptx, mangled), name, source, user_folders, build.threads, build.cluster)
