"""JSON that every reader takes: numbers that are not finite become null, other objects their text; files of JSON lines. Owns no report."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def to_json(value: Mapping[str, Any]) -> str:
    """Indented JSON text, without a line end."""
    return json.dumps(_plain(value), indent=2, allow_nan=False)


def append_line(path: Path, line: str) -> None:
    """Adds a line to a file of JSON lines, also where an interruption cut the last one short."""
    with path.open("a+b") as file:
        if file.tell() > 0:
            file.seek(-1, 2)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(line.encode() + b"\n")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, (str, int, bool, type(None))) else str(value)
