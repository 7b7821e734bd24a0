"""Device functions, read from the .cuh files of the lowering and of its targets.

They are emitted only when used.

A file is C++ that compiles by itself. Lines that begin with `//@` divide it into parts, and never reach a kernel:

* `//@ section NAME`: the section of a kernel's text in which the following parts stand;
* `//@ part NAME needs A, B defines C`: the text up to the next such line, the parts that it uses, and further names that
  it defines;
* `//@ for A B` to `//@ end`: parts of A, and the same ones with B in place of A;
* `//@ note TEXT`: for readers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

INCLUDE = Path(__file__).parents[1] / "include"
# Files of functions that every target has. Parts of one section stand in the order of these files.
FILES = ("integers", "floats", "logarithms", "roots", "sines", "tanh", "halves", "rows", "barriers", "addresses", "words", "registers",
         "accumulators", "reductions")  # fmt: skip

# Purposes of the functions, in the order of the sections of a file.
SECTIONS = (
    "numbers",
    "rows",
    "mbarriers",
    "barriers",
    "addresses",
    "matrices",
    "words",
    "products",
    "copies",
    "fences",
    "registers",
    "descriptors",
    "queues",
)


@dataclass(frozen=True)
class Part:
    """A piece of the file with one function or more.

    `names` are further definitions in it, `needs` are parts that precede it.
    """

    section: str
    text: str
    needs: tuple[str, ...]
    names: tuple[str, ...]


_REPEATED = re.compile(r"^//@ for (\w+) (\w+)\n(.*?)^//@ end$", re.S | re.M)
_MARK = re.compile(r"//@ (section|part|note) (.+)")
_PART = re.compile(r"(\w+)(?: needs (\w+(?:, \w+)*))?(?: defines (\w+(?:, \w+)*))?")
_LAST_LINE = "}  // namespace cuir"


def parse_parts(text: str) -> dict[str, Part]:
    """Divide the text of a .cuh file into its parts, by name. Raises ValueError for a wrong mark."""
    text = _REPEATED.sub(lambda m: m[3] + m[3].replace(m[1], m[2]).rstrip("\n"), text.partition(f"\n{_LAST_LINE}")[0])
    parts: dict[str, Part] = {}
    section = ""
    for piece in re.split(r"^(?=//@)", text, flags=re.M)[1:]:
        line, _, body = piece.partition("\n")
        mark = _MARK.fullmatch(line)
        head = _PART.fullmatch(mark[2]) if mark is not None and mark[1] == "part" else None
        if mark is None or (mark[1] == "part" and (head is None or not section or head[1] in parts)):
            raise ValueError(f"a wrong mark of a part: {line}")
        if mark[1] == "section":
            section = mark[2]
            if section not in SECTIONS:
                raise ValueError(f"no section is called {section}")
        if head is None and body.strip():
            raise ValueError(f"text outside of a part, after {line}")
        if head is not None:
            needs, names = ((tuple(words.split(", ")) if words else ()) for words in head.groups()[1:])
            parts[head[1]] = Part(section, body.strip("\n"), needs, names)
    return parts


def read_parts(folder: Path, *files: str) -> dict[str, Part]:
    """Read the parts of .cuh files."""
    parts: dict[str, Part] = {}
    for file in files:
        parts.update(parse_parts((folder / f"{file}.cuh").read_text(encoding="utf-8")))
    return parts


def read_lines(folder: Path, *beginnings: str) -> str:
    """Read the lines of a folder's `headers.cuh` that begin so."""
    return "\n".join(x for x in (folder / "headers.cuh").read_text(encoding="utf-8").splitlines() if x.startswith(beginnings))


HEADERS = read_lines(INCLUDE, "#include <")
QUALIFIERS = read_lines(INCLUDE, "#define ")
COMMON = read_parts(INCLUDE, *FILES)


def render(body: str, extra: Mapping[str, str], parts: Mapping[str, Part]) -> str:
    """Return the functions of `cuir::` that a text uses, with those they use.

    They come in the order of their sections, followed by the `extra` ones.
    """
    homes = {name: home for home, part in parts.items() for name in (home, *part.names)}
    required: set[str] = set()

    def require(name: str) -> None:
        if name not in required:
            required.add(name)
            for dependency in parts[name].needs:
                require(dependency)

    for name in re.findall(r"cuir::(\w+)", body):
        if name in homes:
            require(homes[name])
    used = sorted((part for name, part in parts.items() if name in required), key=lambda p: SECTIONS.index(p.section))
    return "\n".join([*(p.text for p in used), *(text for _, text in sorted(extra.items()))])
