"""A CUDA source to PTX with lines, by nvcc, without a GPU; and the kernel of it that is meant. Owns the call of nvcc and its cache, no PTX."""

from __future__ import annotations

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

from cuir.runtime.nvcc import cache_dir, compiler_version, find_nvcc, include_dir
from cuir.text.diagnostics import CuirError

from .module import entries, read_entry
from .reading import Compiled, reading_of

FLAGS = ("-ptx", "-lineinfo", "-O3", "-std=c++17", "--expt-relaxed-constexpr", "--expt-extended-lambda", "-diag-suppress=780", "-w")
SHOWN = 12  # kernels that an error lists


@dataclass(frozen=True)
class Build:
    """How a source is compiled, and which of its kernels is meant. include: folders; defines: macros; kernel: its name, or a part or pattern of its full name;
    instantiate: text behind the source, an explicit instantiation for instance; threads, cluster (in x, y, z): of the launch, where the source does not say; flags: more of nvcc's."""

    arch: str
    include: tuple[str, ...] = ()
    defines: Mapping[str, str] = field(default_factory=dict)
    kernel: str | None = None
    instantiate: str = ""
    threads: int | None = None
    cluster: tuple[int, int, int] | None = None
    flags: tuple[str, ...] = ()


def read_compiled(source: Path, build: Build) -> Compiled:
    """What nvcc makes of a source, read. Raises CuirError U503, U504 (nothing to compile with), O121 (nvcc refuses it), O122, O124 (no such kernel), O123."""
    ptx = ptx_of(source, build)
    mangled, name = chosen(entries(ptx), build.kernel, source)
    own = [str(source.resolve().parent), *(str(Path(i).resolve()) for i in build.include)]
    return reading_of(read_entry(ptx, mangled), name, source, own, build.threads, build.cluster)


def ptx_of(source: Path, build: Build) -> str:
    """The PTX, from the cache if neither the source nor a file that it includes has changed. Raises as `read_compiled`."""
    nvcc = find_nvcc()
    arguments = [f"-arch={build.arch}", *FLAGS, *build.flags, *(f"-D{n}={v}" if v else f"-D{n}" for n, v in build.defines.items()),
                 *(x for i in build.include for x in ("-I", str(Path(i).resolve()))), "-I", include_dir()]  # fmt: skip
    key = hashlib.sha256("\n".join([str(source.resolve()), build.instantiate, compiler_version(nvcc), *arguments]).encode()).hexdigest()[
        :32
    ]
    text, seen = cache_dir() / f"{key}.ptx", cache_dir() / f"{key}.ptx.json"
    try:
        if all(_stamp(path) == stamp for path, stamp in json.loads(seen.read_text(encoding="utf-8")).items()):
            return text.read_text(encoding="utf-8")
    except (OSError, ValueError, AttributeError):
        pass
    with tempfile.TemporaryDirectory() as folder:
        given = source.resolve()
        if build.instantiate:
            given = Path(folder) / source.name
            given.write_text(f'#include "{source.resolve()}"\n{build.instantiate}\n', encoding="utf-8")
        out, needs = Path(folder) / "kernel.ptx", Path(folder) / "kernel.d"
        done = subprocess.run(
            [nvcc, *arguments, "-MD", "-MF", str(needs), "-o", str(out), str(given)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            said = (done.stdout + done.stderr).strip().splitlines()
            first = next((line for line in said if "error" in line), said[-1] if said else "no word")
            raise CuirError.of("O121", f"nvcc refuses `{source}`: {first.replace(folder + os.sep, '')}", hint="-I FOLDER for headers, -D NAME=VALUE for macros; without them --read text reads the text alone")  # fmt: skip
        ptx = out.read_text(encoding="utf-8")
        files = {
            p: s
            for p in re.findall(r"(?:\\.|[^\s\\])+", needs.read_text(encoding="utf-8").partition(":")[2])
            if not p.startswith(folder) and (s := _stamp(p))
        }
    try:
        cache_dir().mkdir(parents=True, exist_ok=True)
        text.write_text(ptx, encoding="utf-8")
        seen.write_text(json.dumps(files), encoding="utf-8")
    except OSError:
        pass  # compiled anew the next time
    return ptx


def _stamp(path: str) -> str:
    try:
        status = os.stat(path)
    except OSError:
        return ""
    return f"{status.st_size} {status.st_mtime_ns}"


def chosen(names: Sequence[str], wanted: str | None, source: Path) -> tuple[str, str]:
    """The kernel that is meant: its mangled name and what C++ calls it. Raises CuirError O122 if there is none, O124 if none or several fit."""
    if not names:
        raise CuirError.of("O122", f"`{source.name}` must have a __global__ function, and one that is used, found none",
                           hint="a template needs an instantiation: --instantiate 'template __global__ void name<64>(int*);'")  # fmt: skip
    plain = dict(zip(names, demangled(names)))
    if wanted is None:
        fitting = list(names)
    else:
        fitting = [m for m, p in plain.items() if wanted in (m, p, p.partition("(")[0].split("<")[0].split()[-1].rpartition("::")[2])]
        fitting = fitting if len(fitting) == 1 else [m for m, p in plain.items() if wanted in p or wanted in m or _matches(wanted, p)]
    if len(fitting) != 1:
        listed = "\n".join(f"  {_short(plain[m])}" for m in (fitting or names)[:SHOWN])
        more = len(fitting or names) - SHOWN
        which = (
            f"{len(fitting) or 'no'} kernels of `{source.name}` are called `{wanted}`"
            if wanted
            else f"`{source.name}` has {len(names)} kernels"
        )
        raise CuirError.of("O124", f"{which}; one must be named:\n{listed}" + (f"\n  and {more} more" if more > 0 else ""),
                           hint="--kernel NAME, a part of the full name, or a regular expression that one full name fits")  # fmt: skip
    return fitting[0], plain[fitting[0]]


def _matches(wanted: str, name: str) -> bool:
    try:
        return re.search(wanted, name) is not None
    except re.error:
        return False


def _short(name: str) -> str:
    """A kernel's full name without what its arguments are."""
    depth = 0
    for i, c in enumerate(name):
        depth += (c == "<") - (c == ">")
        if c == "(" and depth == 0 and i > 0 and name[:i].strip() != "":
            return name[:i]
    return name


def demangled(names: Sequence[str]) -> list[str]:
    """What C++ calls these; the names themselves where there is no tool that knows."""
    tool = shutil.which("cu++filt", path=str(Path(find_nvcc()).parent)) or shutil.which("c++filt")
    if tool is None:
        return list(names)
    done = subprocess.run([tool], input="\n".join(names), capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    return lines if len(lines) == len(names) else list(names)
