"""Files of recorded results: rows as `cuir bench SUITE --show` reads them, and the reader of JSON lines, compressed or not.

Archives of recorded answers: the transcripts of one `cuir eval --record` run in benchmarks/results/NAME.tar.xz.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cuir.performance.suites.cell_benchmark import Cell
from cuir.performance.timing.gpu import versions
from cuir.text.jsontext import read_lines


def record(
    out: Path, head: Mapping[str, Any], cells: Iterable[Cell], row: Callable[[Cell], Mapping[str, Any]], seconds: float = math.inf
) -> None:
    """Write a head (suite, pass, command; dtype is f16) and the row of each cell, and print its results.

    No cell begins after `seconds`.
    """
    began = time.monotonic()
    with open(out, "w", encoding="utf-8") as file:
        print(json.dumps({**head, "dtype": "f16", **versions()}), file=file, flush=True)
        for cell in cells:
            if time.monotonic() - began >= seconds:
                break
            result = row(cell)
            print(json.dumps(result), file=file, flush=True)
            figures = {name: c.get("tflops", c.get("wrong") or c.get("failed")) for name, c in result["contenders"].items()}
            print(cell.name, figures, flush=True)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read JSON lines; those of a file NAME.xz are compressed."""
    return [json.loads(line) for line in read_lines(path)]


def command(module: str, arguments: Sequence[str]) -> str:
    """Return the command that makes such a file, without its path and limit of time."""
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    parser.add_argument("--out")
    parser.add_argument("--seconds")
    return " ".join(["python -m", module, *parser.parse_known_args(arguments)[1]])


def as_row(cell: Cell, flops: float, own_error: float, bound: float, contenders: Mapping[str, Any]) -> dict[str, Any]:
    """Return a cell's row. own_error, bound: of PyTorch in half precision, and the allowed error."""
    return {**cell.as_json(), "dtype": "f16", "flops": flops, "own_error": own_error, "bound": bound, "contenders": contenders}


@functools.cache
def _make_folder() -> tempfile.TemporaryDirectory[str]:
    """Make the folder of unpacked archives; it is removed at the end of the process."""
    return tempfile.TemporaryDirectory(prefix="transcripts-")


@functools.cache
def open_transcripts(path: Path) -> Path:
    """Return a folder of transcripts: that of an archive NAME.tar.xz, or path itself if it is a folder.

    The archive holds the folder NAME.
    """
    if path.is_dir():
        return path
    target = Path(_make_folder().name)
    with tarfile.open(path) as archive:
        archive.extractall(target, filter="data")
    return target / path.name.removesuffix(".tar.xz")
