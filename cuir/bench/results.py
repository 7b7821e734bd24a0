"""Rows of a suite in a file of JSON lines, from which an interrupted run goes on; a Markdown table of them. Owns no measurement."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..diagnostics import CuirError
from ..jsontext import append_line
from .cells import OURS, Cell

Row = dict[str, Any]


class Results:
    """A results file: a head line (suite, command, date, versions), then a row a line, each written when it is measured."""

    def __init__(self, path: Path, head: Mapping[str, Any], fresh: bool = False):
        self.path, self.head, self.rows = path, dict(head), list[Row]()
        if path.exists() and not fresh:
            self.head, self.rows = read(path)
        else:
            self._append(path, self.head, fresh=True)

    def missing(self, cells: Iterable[Cell]) -> list[Cell]:
        done = [Cell.from_json(r) for r in self.rows if "failed" not in r]
        return [c for c in cells if c not in done]

    def add(self, row: Row) -> None:
        self.rows = [r for r in self.rows if Cell.from_json(r) != Cell.from_json(row)] + [row]
        self._append(self.path, row)

    @staticmethod
    def _append(path: Path, line: Mapping[str, Any], fresh: bool = False) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if fresh:
                path.unlink(missing_ok=True)
            append_line(path, json.dumps(line))
        except OSError as error:
            raise CuirError.of("U108", f"cannot write {path}: {error.strerror}", hint="name another file with --out") from None


def read(path: Path) -> tuple[dict[str, Any], list[Row]]:
    """Head and rows of a results file. Raises CuirError U119. Lines that an interruption cut short are left out."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CuirError.of("U119", f"{path} cannot be read: {error}") from None
    found = []
    for number, line in enumerate(lines):
        try:
            found.append(json.loads(line))
        except ValueError:
            if number == 0:
                raise CuirError.of("U119", f"the first line of {path} is no JSON", hint="--fresh starts a new file") from None
    columns = {"variant", "parameters", "model", "shape"}
    if not found or not all(isinstance(f, dict) for f in found) or "suite" not in found[0] or not all(columns <= set(r) for r in found[1:]):
        raise CuirError.of("U119", f"{path} holds no results of `cuir bench`", hint="--out names another file")
    rows = {json.dumps([r["variant"], r["parameters"], r["shape"]]): r for r in found[1:]}  # a cell that was measured again counts once
    return found[0], list(rows.values())


def ours(row: Row) -> tuple[str, dict[str, Any]] | None:
    """The fastest of our settings: its name and figures."""
    timed = [(n, c) for n, c in row.get("contenders", {}).items() if n.startswith(OURS) and "tflops" in c]
    return max(timed, key=lambda pair: pair[1]["tflops"], default=None)


def peers(row: Row) -> dict[str, float]:
    """TFLOP/s of the peers that ran and were right."""
    return {n: c["tflops"] for n, c in row.get("contenders", {}).items() if not n.startswith(OURS) and "tflops" in c}


def ratio(row: Row) -> float | None:
    """Ours over the best peer."""
    mine, others = ours(row), peers(row)
    return mine[1]["tflops"] / max(others.values()) if mine and others else None


def names_of_peers(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(n for r in rows for n in r.get("contenders", {}) if not n.startswith(OURS)))


def markdown(head: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """A table of TFLOP/s of unmasked pairs, with what it was measured on."""
    columns = names_of_peers(rows)
    lines = [
        f"# `cuir bench {head['suite']}`", "",
        "TFLOP/s of unmasked pairs (4 x head dim each), forward; medians with a cold L2 cache, contenders in turns; every result was checked against float64.",
        f"{head.get('device')}, driver {head.get('driver')}, CUDA {head.get('cuda')}, torch {head.get('torch')}, {head.get('date')}.", "",
        f"    {head.get('command')}", "",
        "| variant | model | length | batch | " + " | ".join([OURS, *columns]) + " | ratio | setting |",
        "|---" * (6 + 1 + len(columns)) + "|",
    ]  # fmt: skip
    for row in rows:
        B, _, _, M, _, _ = row["shape"]
        mine, share = ours(row), ratio(row)
        entries = (
            [_entry(row["contenders"].get(n)) for n in columns]
            if "contenders" in row
            else [row.get("failed", "")] + [""] * (len(columns) - 1)
        )
        first = (
            f"{mine[1]['tflops']:.0f}"
            if mine
            else _entry(next((c for n, c in row.get("contenders", {}).items() if n.startswith(OURS)), None))
        )
        setting = mine[0].removeprefix(OURS).strip() if mine else ""
        lines.append(
            f"| {row['variant']} | {row['model']} | {M} | {B} | "
            + " | ".join([first, *entries])
            + f" | {f'{share:.2f}' if share else ''} | {setting} |"
        )
    return "\n".join([*lines, "", *summary(rows), ""])


def summary(rows: Sequence[Row]) -> list[str]:
    """Geometric means of ours over each peer."""
    lines = []
    for name in names_of_peers(rows):
        ratios = [mine[1]["tflops"] / p[name] for r in rows if (mine := ours(r)) and name in (p := peers(r))]
        if ratios:
            lines.append(
                f"{OURS} / {name}: {geometric_mean(ratios):.2f} in the geometric mean of {len(ratios)} rows, {min(ratios):.2f} in the weakest"
            )
    wrong = [
        f"{r['variant']} {r['model']} {r['shape'][3]}: {n}: {c['wrong']}"
        for r in rows
        for n, c in r.get("contenders", {}).items()
        if "wrong" in c
    ]
    return lines + [f"wrong: {w}" for w in wrong]


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def _entry(contender: Mapping[str, Any] | None) -> str:
    if contender is None:
        return ""
    if "tflops" in contender:
        return f"{contender['tflops']:.0f}"
    return "wrong" if "wrong" in contender else contender.get("failed", "")
