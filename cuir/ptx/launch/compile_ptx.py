"""Compilation of a CUDA source to PTX with lines by nvcc, and selection of its kernel.

It needs no GPU; PTX is cached.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...caching.disk import PTX, mark_used, write_whole
from ...runtime.nvcc import compiler_version, find_nvcc, include_dir
from ...runtime.slim_headers import write_slim_headers
from ...text.diagnostics import CuirError

FLAGS = ("-ptx", "-lineinfo", "-O3", "-std=c++17", "--expt-relaxed-constexpr", "--expt-extended-lambda", "-diag-suppress=780", "-w")
MOST_KERNELS = 12  # kernels that an error lists


@dataclass(frozen=True)
class Build:
    """Options of a compilation, and the choice of a kernel.

    Attributes:
        include: Folders of headers.
        defines: Macros.
        kernel: Name of the kernel, or a part or pattern of its full name.
        instantiate: Text to append to the source, such as an explicit instantiation.
        threads: Threads of a CTA, where the source does not say.
        cluster: CTAs of a cluster in x, y, z, where the source does not say.
        flags: Further flags of nvcc.
        slim: Read CuTe's headers without what the source does not name, which takes less time.
    """

    arch: str
    include: tuple[str, ...] = ()
    defines: Mapping[str, str] = field(default_factory=dict)
    kernel: str | None = None
    instantiate: str = ""
    threads: int | None = None
    cluster: tuple[int, int, int] | None = None
    flags: tuple[str, ...] = ()
    slim: bool = False


def compile_to_ptx(source: Path, build: Build) -> str:
    """Return the PTX, from the cache if neither the source nor a file that it includes has changed.

    Raises CuirError U503, U504 (nothing to compile with), O121 (nvcc refuses the source).
    """
    nvcc = find_nvcc()
    arguments = [
        f"-arch={build.arch}",
        *FLAGS,
        *build.flags,
        *(f"-D{n}={v}" if v else f"-D{n}" for n, v in build.defines.items()),
        *(x for i in build.include for x in ("-I", str(Path(i).resolve()))),
        *_include_headers(),
    ]
    key = hashlib.sha256("\n".join([str(source.resolve()), build.instantiate, compiler_version(nvcc), *arguments]).encode()).hexdigest()[
        :32
    ]
    text, stamps_path = PTX.path(key), PTX.path(key, ".ptx.json")
    try:
        if all(_stamp(path) == stamp for path, stamp in json.loads(stamps_path.read_text(encoding="utf-8")).items()):
            mark_used(text, stamps_path)
            return text.read_text(encoding="utf-8")
    except (OSError, ValueError, AttributeError):
        pass
    with tempfile.TemporaryDirectory() as folder:
        compiled_path = source.resolve()
        if build.instantiate:
            compiled_path = Path(folder) / source.name
            compiled_path.write_text(f'#include "{source.resolve()}"\n{build.instantiate}\n', encoding="utf-8")
        out, needs = Path(folder) / "kernel.ptx", Path(folder) / "kernel.d"
        command = [*arguments, "-MD", "-MF", str(needs), "-o", str(out), str(compiled_path)]
        slim = Path(folder) / "slim"
        is_slim = build.slim and write_slim_headers(source.read_text(encoding="utf-8"), include_dir(), slim)
        first_command = [nvcc, "-I", str(slim), *command] if is_slim else [nvcc, *command]
        process = subprocess.run(first_command, capture_output=True, text=True, check=False)
        if process.returncode and is_slim:
            process = subprocess.run([nvcc, *command], capture_output=True, text=True, check=False)
        if process.returncode:
            output = (process.stdout + process.stderr).strip().splitlines()
            first = next((line for line in output if "error" in line), output[-1] if output else "no word")
            if re.search(r"\b(cute|cutlass)/", first):
                include_dir()  # raises U504 if they are not installed
            raise CuirError.of(
                "O121",
                f"nvcc refuses `{source}`: {first.replace(folder + os.sep, '')}",
                hint="-I FOLDER for headers, -D NAME=VALUE for macros; `cuir lift --read text` needs neither",
            )
        ptx = out.read_text(encoding="utf-8")
        files = {
            p: s
            for p in re.findall(r"(?:\\.|[^\s\\])+", needs.read_text(encoding="utf-8").partition(":")[2])
            if not p.startswith(folder) and (s := _stamp(p))
        }
    write_whole({text: ptx.encode(), stamps_path: json.dumps(files).encode()})
    return ptx


def _include_headers() -> tuple[str, ...]:
    """Return the option for CuTe's headers; none where they are not installed, as most sources need none."""
    try:
        return "-I", include_dir()
    except CuirError:
        return ()


def _stamp(path: str) -> str:
    """Return size and time of a file, "" if there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return ""
    return f"{status.st_size} {status.st_mtime_ns}"


def choose_kernel(names: Sequence[str], pattern: str | None, source: Path) -> tuple[str, str]:
    """Return the selected kernel: its mangled name and its C++ name.

    Raises CuirError O122 if there is none, O124 if none or several fit.
    """
    if not names:
        raise CuirError.of(
            "O122",
            f"`{source.name}` must have a __global__ function, and one that is used, found none",
            hint="a template needs an instantiation: --instantiate 'template __global__ void name<64>(int*);'",
        )
    plain = dict(zip(names, demangle(names)))
    if pattern is None:
        fitting = list(names)
    else:
        fitting = [m for m, p in plain.items() if pattern in (m, p, p.partition("(")[0].split("<")[0].split()[-1].rpartition("::")[2])]
        fitting = fitting if len(fitting) == 1 else [m for m, p in plain.items() if pattern in p or pattern in m or _matches(pattern, p)]
    if len(fitting) != 1:
        listed = "\n".join(f"  {_short(plain[m])}" for m in (fitting or names)[:MOST_KERNELS])
        more = len(fitting or names) - MOST_KERNELS
        problem = (
            f"{len(fitting) or 'no'} kernels of `{source.name}` are called `{pattern}`"
            if pattern
            else f"`{source.name}` has {len(names)} kernels"
        )
        raise CuirError.of(
            "O124",
            f"{problem}; one must be named:\n{listed}" + (f"\n  and {more} more" if more > 0 else ""),
            hint="--kernel NAME, a part of the full name, or a regular expression that one full name fits",
        )
    return fitting[0], plain[fitting[0]]


def _matches(pattern: str, name: str) -> bool:
    """Return whether a regular expression finds a name; False for an invalid one."""
    try:
        return re.search(pattern, name) is not None
    except re.error:
        return False


def _short(name: str) -> str:
    """Return a kernel's full name without its parameters."""
    depth = 0
    for i, c in enumerate(name):
        depth += (c == "<") - (c == ">")
        if c == "(" and depth == 0 and i > 0 and name[:i].strip() != "":
            return name[:i]
    return name


def demangle(names: Sequence[str]) -> list[str]:
    """Return the C++ names of mangled ones; the mangled ones where there is no tool for it."""
    tool = shutil.which("c++filt")
    with contextlib.suppress(CuirError):  # PTX is read without nvcc too
        tool = shutil.which("cu++filt", path=str(Path(find_nvcc()).parent)) or tool
    if tool is None:
        return list(names)
    process = subprocess.run([tool], input="\n".join(names), capture_output=True, text=True, check=False)
    lines = process.stdout.splitlines()
    return lines if len(lines) == len(names) else list(names)
