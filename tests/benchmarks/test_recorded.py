"""Rows that benchmarks write are rows that `cuir bench SUITE --show` reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import recorded
from cuir.performance.suites.cell_benchmark import Cell
from cuir.performance.suites.results import markdown, read
from cuir.performance.suites.suites import suite


def test_what_is_written_is_read_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(recorded, "versions", lambda: {"device": "a GPU", "date": "2026-11-26", "driver": "1", "torch": "2", "cuda": "3"})

    def row(cell: Cell) -> dict[str, Any]:
        ours = {"error": 0.0, "milliseconds": 1.0, "tflops": 20.0, "rounds": 3}
        return recorded.as_row(cell, 2e10, 1e-3, 2e-3, {"cuir": ours, "fa3": ours | {"tflops": 10.0}, "cudnn": {"failed": "not here"}})

    cells, out = suite("backward").cells()[:2], tmp_path / "rows.jsonl"
    recorded.record(out, {"suite": "backward", "pass": "backward", "command": "python -m benchmarks.such"}, cells, row)
    head, rows = read(out)
    assert [Cell.from_json(r) for r in rows] == cells and head["command"] == "python -m benchmarks.such"
    text = markdown(head, rows)
    assert "python -m benchmarks.such" in text and "cuir / fa3: 2.00 in the geometric mean of 2 rows" in text
    assert capsys.readouterr().out.splitlines()[0] == f"{cells[0].name} {{'cuir': 20.0, 'fa3': 10.0, 'cudnn': 'not here'}}"
    recorded.record(out, {"suite": "backward", "pass": "backward", "command": "none"}, cells, row, seconds=0.0)
    assert read(out)[1] == []
