"""The stand-in for CUDA's runtime, compiled, and host programs that can run on it."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ...caching.disk import PTX, mark_used, write_whole
from ...runtime.nvcc import TOOLKITS, compiler_version, find_nvcc
from ...text.diagnostics import CuirError

SOURCE = Path(__file__).with_name("cuda_runtime.c")
HOST_FLAGS = ("-cudart", "shared", "-lineinfo", "-std=c++17", "--expt-relaxed-constexpr", "--expt-extended-lambda", "-w", "--no-compress")
RUNTIME = re.compile(r"\b(__cuda\w+|cuda[A-Z]\w+)(@|\b)")


def find_runtime() -> Path:
    """Return CUDA's shared runtime, which lies beside nvcc. Raises CuirError U503."""
    homes = (Path(find_nvcc()).resolve().parent.parent, os.environ.get("CUDA_HOME"), *TOOLKITS)
    roots = [Path(home) for home in homes if home]
    for root, folder in itertools.product(roots, ("lib64", "lib", "targets/x86_64-linux/lib")):
        if (root / folder / "libcudart.so").exists():
            return root / folder / "libcudart.so"
    where = ", ".join(map(str, roots))
    raise CuirError.of("U503", f"CUDA's shared runtime is not in {where}", hint="install the toolkit's package of the runtime (libcudart)")


def build_stand_in() -> Path:
    """Compile the stand-in, or find it in the cache; each call of the runtime that it lacks ends the program by its name.

    Raises CuirError U503, O121.
    """
    nvcc, runtime = find_nvcc(), find_runtime()
    text = SOURCE.read_bytes()
    key = hashlib.sha256(text + compiler_version(nvcc).encode() + str(runtime).encode()).hexdigest()[:32]
    library = PTX.path(key, ".so")
    if library.is_file():
        mark_used(library)
        return library
    with tempfile.TemporaryDirectory() as folder:
        common = ["-Xcompiler", "-fPIC,-w", "-O1"]
        part, out = Path(folder) / "cuda_runtime.o", Path(folder) / "stand_in.so"
        _run([nvcc, *common, "-c", "-o", str(part), str(SOURCE)], "the stand-in for CUDA's runtime")
        lacking = sorted(list_symbols(runtime) - list_symbols(part, dynamic=False))
        stubs = Path(folder) / "stubs.c"
        lines = [f'void {name}(void) {{ cuir_missing("{name}"); }}' for name in lacking]
        stubs.write_text("void cuir_missing(const char *name);\n" + "\n".join(lines) + "\n", encoding="utf-8")
        _run([nvcc, *common, "-shared", "-cudart", "none", "-o", str(out), str(part), str(stubs)], "the stand-in for CUDA's runtime")
        write_whole({library: out.read_bytes()})
    return library


def list_symbols(path: Path, dynamic: bool = True, defined: bool = True) -> set[str]:
    """Return the names of CUDA's runtime that a binary defines, or asks for."""
    options = (["-D"] if dynamic else []) + (["--defined-only"] if defined else ["--undefined-only"])
    listed = subprocess.run(["nm", *options, str(path)], capture_output=True, text=True, check=False).stdout
    return {m[1] for m in RUNTIME.finditer(listed)}


def compile_host_program(source: Path, folder: Path, arch: str, flags: Sequence[str] = ()) -> Path:
    """Compile a CUDA source with a `main` for the stand-in. Raises CuirError U503, O121."""
    out = folder / source.stem
    virtual = arch.replace("sm_", "compute_")
    codes = ["-gencode", f"arch={virtual},code={virtual}"]
    _run([find_nvcc(), *HOST_FLAGS, *codes, *flags, "-o", str(out), str(source.resolve())], f"`{source}`")
    return out


def require_shared_runtime(program: Path) -> None:
    """Raise CuirError U100 for a program that has CUDA's runtime linked in, or none."""
    if not any(name.startswith("__cudaRegisterFatBinary") for name in list_symbols(program, defined=False)):
        raise CuirError.of(
            "U100",
            f"`{program}` does not load CUDA's runtime as a library",
            hint="build it by nvcc -cudart shared, with PTX in it: -gencode arch=compute_XX,code=compute_XX",
        )


def _run(command: Sequence[str], subject: str) -> None:
    """Run nvcc. Raises CuirError O121 with the first error that it tells."""
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        output = (process.stdout + process.stderr).strip().splitlines()
        first = next((line for line in output if "error" in line), output[-1] if output else "no word")
        raise CuirError.of("O121", f"nvcc refuses {subject}: {first}", hint="-I FOLDER for headers, -D NAME=VALUE for macros")
