"""Compilation of C++ extensions of PyTorch with CUDA in them, against a stand-in for PyTorch's headers."""

from __future__ import annotations

import hashlib
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ..caching.disk import PTX, mark_used, write_whole
from ..ptx.launch.stand_in import HOST_FLAGS
from ..runtime.nvcc import compiler_version, find_nvcc
from ..text.diagnostics import CuirError

HEADER = Path(__file__).with_name("extension.hpp")
FORWARDED = (
    *("torch/extension.h", "torch/torch.h", "torch/types.h", "torch/all.h", "torch/library.h", "torch/script.h", "torch/python.h"),
    *(
        "ATen/ATen.h",
        "ATen/Dispatch.h",
        "ATen/cuda/CUDAContext.h",
        "ATen/cuda/Exceptions.h",
        "ATen/AccumulateType.h",
        "ATen/cuda/CUDAUtils.h",
    ),
    *("c10/cuda/CUDAGuard.h", "c10/cuda/CUDAStream.h", "c10/cuda/CUDAException.h", "c10/util/Optional.h", "c10/util/Exception.h"),
    *("c10/core/ScalarType.h", "c10/util/Half.h", "c10/util/BFloat16.h", "pybind11/pybind11.h", "pybind11/stl.h"),
)
MODULE = re.compile(r"\bPYBIND11_MODULE\s*\(")
FUNCTION = re.compile(
    r"^\s*(?:(?:static|inline)\s+)?(?:(?:torch|at)::Tensor|std::vector<\s*(?:torch|at)::Tensor\s*>|std::tuple<[^;{}()]*>|void)\s+(\w+)\s*\([^;{}]*\)\s*\{",
    re.M,
)
KEPT_FLAG = re.compile(r"-D\w+(=\S*)?|--?use_fast_math|-U\w+|-std=c\+\+\d+|--expt-[\w-]+|--extended-lambda|--fmad=\w+|-I.*")


def list_functions(text: str) -> list[str]:
    """Return names of functions of a source that take or return tensors, for a source that does not name them itself."""
    kernels = set(re.findall(r"__global__[^;{}()]*?\b(\w+)\s*\(", re.sub(r"__launch_bounds__\s*\([^)]*\)", "", text)))
    found = [m[1] for m in FUNCTION.finditer(text) if m[1] not in kernels and "Tensor" in m[0]]
    return list(dict.fromkeys(found))


def join_sources(sources: Sequence[str], functions: Sequence[str]) -> str:
    """Return one source of several, which enters its functions for Python."""
    text = "\n".join(sources)
    entries = "" if MODULE.search(text) else "".join(f'    m.def("{name}", &{name});\n' for name in functions)
    module = f"\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{\n{entries}}}\n" if entries else ""
    return f"#include <torch/extension.h>\n#line 1\n{text}{module}"


def build_extension(text: str, name: str, arch: str, flags: Sequence[str] = ()) -> Path:
    """Compile a source, or find it in the cache. Raises CuirError U503, O121."""
    nvcc = find_nvcc()
    kept = [f for f in flags if KEPT_FLAG.fullmatch(f)]
    parts = [text, name, arch, *kept, HEADER.read_text(encoding="utf-8"), compiler_version(nvcc)]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
    library = PTX.path(key, ".so")
    if library.is_file():
        mark_used(library)
        return library
    source = PTX.path(f"{key}.{name}", ".cu")  # findings name its lines
    write_whole({source: text.encode()})
    virtual = arch.replace("sm_", "compute_")
    with tempfile.TemporaryDirectory() as folder:
        for path in FORWARDED:
            forwarded = Path(folder, path)
            forwarded.parent.mkdir(parents=True, exist_ok=True)
            forwarded.write_text(f'#pragma once\n#include "{HEADER}"\n', encoding="utf-8")
        out = Path(folder, "extension.so")
        codes = ["-gencode", f"arch={virtual},code={virtual}", "-Xcompiler", "-fPIC,-w,-O1", "-shared", "-I", folder]
        command = [nvcc, *HOST_FLAGS, *codes, *kept, "-o", str(out), str(source)]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        if process.returncode:
            output = (process.stdout + process.stderr).strip().splitlines()
            first = next((line for line in output if "error" in line), output[-1] if output else "no word")
            raise CuirError.of("O121", f"nvcc refuses the extension: {first.replace(str(source), name + '.cu')}")
        write_whole({library: out.read_bytes()})
    return library
