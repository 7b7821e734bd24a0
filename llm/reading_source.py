"""Choice of the reader of a CUDA source, and inclusion of its headers.

The compiler's output is read where a compiler accepts the source, else the text with the headers that it includes in
quotes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from cuir.text.diagnostics import CuirError
from cuir.text.source import Source

from .cuda_source import annotate
from .ptx.compile_source import Build, read_compiled
from .reading import Reading

READERS = ("auto", "compiler", "text")
QUOTED = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"[^\n]*$', re.M)
MOST_LINES = 40_000  # of a text with its headers


def read_source(path: Path, build: Build, reader: str, kernel: str | None, of_text: Mapping[str, int]) -> tuple[Reading, str]:
    """Read a source; return the reading and a description of how it was made.

    Args:
        place: Path of the source.
        build: Options of the compiler.
        reader: One of READERS.
        kernel: Name of the kernel in the launch description.
        of_text: Macros that are whole numbers, for the reader of text.

    Raises CuirError as `read_compiled` does if the compiler is demanded, and O122 if the text has no such kernel.
    """
    why = "as demanded"
    if reader != "text":
        try:
            compiled = read_compiled(path, build if build.kernel is not None else replace(build, kernel=kernel))
            return compiled, "read from what nvcc made of the source (PTX with lines)"
        except CuirError as error:
            if reader == "compiler" or error.diagnostics[0].code == "O124":
                raise
            why = f"nvcc did not serve: {error.diagnostics[0].message}"
    text, lines = with_headers(path, build.include)
    try:
        reading = annotate(text, path.name, of_text, build.kernel or kernel, build.threads, lines)
    except CuirError as error:
        diagnostic = error.diagnostics[0]
        raise CuirError.of(
            diagnostic.code,
            diagnostic.message if reader == "text" else f"{why}; and of the text: {diagnostic.message}",
            hint=diagnostic.hint,
        ) from None
    return reading, f"read from the text alone, {why}"


def with_headers(main_path: Path, folders: Sequence[str] = ()) -> tuple[str, tuple[tuple[Source, int], ...]]:
    """Return a text with quoted includes put in, each header once, and the source and line of each line.

    Headers that cannot be found, and those in angle brackets, stay out. Raises CuirError U202, U203 for the source
    file.
    """
    lines: list[str] = []
    places: list[tuple[Source, int]] = []
    included: set[Path] = set()

    def add(path: Path, source: Source) -> None:
        """Append the lines of a file."""
        included.add(path)
        for number, line in enumerate(source.lines, 1):
            header = QUOTED.match(line)
            header_path = (
                next((p for p in (f / header[1] for f in (path.parent, *map(Path, folders))) if p.is_file()), None) if header else None
            )
            if header_path is not None and len(lines) < MOST_LINES:
                if header_path.resolve() not in included:
                    add(header_path.resolve(), Source(str(header_path), _text(header_path)))
                continue
            lines.append(line)
            places.append((source, number))

    add(main_path.resolve(), Source(main_path.name, _text(main_path)))
    return "\n".join(lines), tuple(places)


def _text(path: Path) -> str:
    """Read a file. Raises CuirError U202, U203."""
    try:
        return path.read_text(encoding="utf-8").replace("\r\n", "\n")
    except OSError as error:
        raise CuirError.of("U202", f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise CuirError.of("U203", f"{path} is not UTF-8 text (byte {error.start})", hint="save it as UTF-8") from None
