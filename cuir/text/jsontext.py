"""JSON that every reader takes, and files of JSON lines.

Numbers that are not finite become null, other objects their text.
"""

from __future__ import annotations

import json
import lzma
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def to_json(value: Mapping[str, Any]) -> str:
    """Return indented JSON text, without a line end."""
    return json.dumps(_make_plain(value), indent=2, allow_nan=False)


def has_content(path: Path) -> bool:
    """Return whether a file exists and holds something.

    An empty one counts as unused, as `mktemp` and `touch` make them.
    """
    return path.exists() and not (path.is_file() and path.stat().st_size == 0)


def read_lines(path: Path) -> list[str]:
    """Return the lines of a UTF-8 file; one named NAME.xz is compressed.

    Raises OSError, UnicodeDecodeError, lzma.LZMAError.
    """
    data = path.read_bytes()
    return (lzma.decompress(data) if path.suffix == ".xz" else data).decode("utf-8").splitlines()


def append_line(path: Path, line: str) -> None:
    """Add a line to a file of JSON lines, removing a last line that an interruption cut short."""
    with path.open("a+b") as file:
        end = file.tell()
        file.seek(max(0, end - 1))
        if file.read(1) not in (b"\n", b""):
            file.seek(0)
            last = file.read().rpartition(b"\n")[2]
            if _is_json(last):
                file.write(b"\n")
            else:
                file.truncate(end - len(last))
        file.write(line.encode() + b"\n")


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _make_plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _make_plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_make_plain(v) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, (str, int, bool, type(None))) else str(value)
