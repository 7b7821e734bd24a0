"""Parameters of a kernel as its author sees them: names and types from the source and from the C++ name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..module import Function
from .compile_ptx import demangle


@dataclass(frozen=True)
class KernelParameter:
    """Parameter of a kernel.

    Attributes:
        name: As in the source, else p0, p1, ...
        type: In C++; "8 bytes" where neither the source nor the name tells it.
    """

    name: str
    type: str
    size: int

    def __str__(self) -> str:
        return f"{self.type} {self.name}"


def list_parameters(function: Function, path: Path) -> tuple[KernelParameter, ...]:
    """Return the parameters of a kernel.

    path: the file that it is from; only the text of a CUDA source is searched.
    """
    count = len(function.parameters)
    (full,) = demangle([function.name])
    short = _strip_template(full.partition("(")[0]).split(" ")[-1].rpartition("::")[2]
    types = list(split_at_commas(full.partition("(")[2].rpartition(")")[0])) if "(" in full else []
    declared = _find_declared(path, short, count)
    rows = []
    for i, v in enumerate(function.parameters):
        text, name = declared[i] if declared else ("", f"p{i}")
        exact = types[i] if len(types) == count else text or f"{v.size} bytes"
        rows.append(KernelParameter(name, re.sub(r"(.*\S) const\s*([*&])", r"const \1\2", exact), v.size or 0))
    return tuple(rows)


def split_at_commas(text: str) -> Iterator[str]:
    """Yield the parts of a list of C++, split at commas outside of brackets."""
    depth, start = 0, 0
    for i, c in enumerate(text):
        depth += (c in "<([{") - (c in ">)]}")
        if c == "," and depth == 0:
            yield text[start:i].strip()
            start = i + 1
    if text[start:].strip():
        yield text[start:].strip()


def _strip_template(name: str) -> str:
    """Return a name without template arguments."""
    while "<" in name and (shorter := re.sub(r"<[^<>]*>", "", name)) != name:
        name = shorter
    return name


def _find_declared(path: Path, name: str, count: int) -> list[tuple[str, str]]:
    """Return types and names of the parameters of a function in a CUDA source; none if it is not found once."""
    if path.suffix == ".ptx":
        return []
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.S)
    for match in re.finditer(rf"\b{re.escape(name)}\s*\(([^;{{}}]*?)\)\s*\{{", text):
        parts = [re.fullmatch(r"(.*?)\b([A-Za-z_]\w*)\s*(?:=.*)?", p, re.S) for p in split_at_commas(match[1])]
        if len(parts) == count and all(parts):
            words = r"\b(__grid_constant__|__restrict__|CUTE_GRID_CONSTANT|__restrict)\b"
            return [(" ".join(re.sub(words, " ", p[1]).split()), p[2]) for p in parts if p]
    return []
