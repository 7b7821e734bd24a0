"""Disk cache of whole kernels: the same program is neither checked, lowered nor compiled again.

It is found by the next process with the same tools. Cache key and file are here. The cubin of a lowered text has an
entry in another cache (see `compile`), which serves other programs that lower to it.
"""

from __future__ import annotations

import functools
import hashlib
import io
import os
import pickle
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ..checking.checked import Const
from ..ops import OPERATORS, TABLE, Op
from ..syntax.nodes import Program
from ..syntax.printer import show
from ..text.diagnostics import CuirError
from .loader import DRIVER
from .nvcc import Compiled, cache_dir, find_nvcc, write_whole

PACKAGE = Path(__file__).parent.parent


def make_entry_path(program: Program, kernel: str | None, consts: Mapping[str, Const] | None, loader: str = DRIVER) -> Path:
    """Return the file of a kernel, named after its cache key.

    The key covers the program (its text as written too, since reports quote it), its consts, this package's files, the
    compiler and the loader.
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
    ]
    return cache_dir() / (hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32] + ".kernel")


def load(entry: Path) -> Compiled | None:
    try:
        loaded = _Reader(io.BytesIO(entry.read_bytes())).load()
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
    content = io.BytesIO()
    _Writer(content, pickle.HIGHEST_PROTOCOL).dump(compiled)
    write_whole({entry: content.getvalue()})


class _Writer(pickle.Pickler):
    def persistent_id(self, obj: object) -> str | None:
        return obj.name if isinstance(obj, Op) else None


class _Reader(pickle.Unpickler):
    """Unpickler of classes of this package and entries of the table of primitives alone.

    A foreign file in the folder thus runs nothing.
    """

    def persistent_load(self, name: str) -> Op:
        return OPERATORS[name] if name in OPERATORS else TABLE[name]

    def find_class(self, module: str, name: str) -> object:
        if module.split(".")[0] == "cuir" and "." not in name:
            cls = super().find_class(module, name)
            if isinstance(cls, type):
                return cls
        raise pickle.UnpicklingError(f"{module}.{name} does not belong into a kernel's file")


@functools.cache
def describe_package() -> str:
    """Describe this package's files on disk: changes with every edit and every installation."""
    files = [p for p in sorted(PACKAGE.rglob("*")) if p.suffix in (".py", ".lark", ".cuir")]
    return repr([(p.relative_to(PACKAGE).as_posix(), (s := p.stat()).st_size, s.st_mtime_ns) for p in files])


def _describe_compiler() -> str:
    """Describe nvcc's file on disk, without running it."""
    try:
        path = os.path.realpath(find_nvcc())
        return f"{path} {os.stat(path).st_mtime_ns}"
    except (CuirError, OSError):
        return "none"
