"""A CUDA source read: by what nvcc makes of it where there is a compiler that takes it, else by its text with the headers that it includes in quotes.

Owns who reads, and the headers of a text; neither reader.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from cuir.text.diagnostics import CuirError
from cuir.text.source import Source

from .cuda_source import annotate
from .ptx.compiling import Build, read_compiled
from .reading import Reading

READERS = ("auto", "compiler", "text")
QUOTED = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"[^\n]*$', re.M)
MOST_LINES = 40_000  # of a text with its headers


def read_source(place: Path, build: Build, reader: str, kernel: str | None, of_text: Mapping[str, int]) -> tuple[Reading, str]:
    """The reading, and who made it, in words. kernel: as the launch description says; of_text: macros that are whole numbers, for the text.

    Raises CuirError as `read_compiled` does if the compiler is demanded, and O122 if the text has no such kernel.
    """
    why = "as demanded"
    if reader != "text":
        try:
            compiled = read_compiled(place, build if build.kernel is not None else replace(build, kernel=kernel))
            return compiled, "read from what nvcc made of the source (PTX with lines)"
        except CuirError as error:
            if reader == "compiler" or error.diagnostics[0].code == "O124":
                raise
            why = f"nvcc did not serve: {error.diagnostics[0].message}"
    text, lines = with_headers(place, build.include)
    try:
        reading = annotate(text, place.name, of_text, build.kernel or kernel, build.threads, lines)
    except CuirError as error:
        said = error.diagnostics[0]
        raise CuirError.of(
            said.code, said.message if reader == "text" else f"{why}; and of the text: {said.message}", hint=said.hint
        ) from None
    return reading, f"read from the text alone, {why}"


def with_headers(place: Path, folders: Sequence[str] = ()) -> tuple[str, tuple[tuple[Source, int], ...]]:
    """A text with what it includes in quotes in place of each `#include`, each header once, and where each line stands.

    Headers that are not found, and those in angle brackets, stay out. Raises CuirError U202, U203 for the source itself.
    """
    lines: list[str] = []
    places: list[tuple[Source, int]] = []
    seen: set[Path] = set()

    def add(path: Path, source: Source) -> None:
        seen.add(path)
        for number, line in enumerate(source.lines, 1):
            header = QUOTED.match(line)
            found = next((p for p in (f / header[1] for f in (path.parent, *map(Path, folders))) if p.is_file()), None) if header else None
            if found is not None and len(lines) < MOST_LINES:
                if found.resolve() not in seen:
                    add(found.resolve(), Source(str(found), _text(found)))
                continue
            lines.append(line)
            places.append((source, number))

    add(place.resolve(), Source(place.name, _text(place)))
    return "\n".join(lines), tuple(places)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").replace("\r\n", "\n")
    except OSError as error:
        raise CuirError.of("U202", f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise CuirError.of("U203", f"{path} is not UTF-8 text (byte {error.start})", hint="save it as UTF-8") from None
