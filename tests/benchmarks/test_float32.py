"""benchmarks/float32.py: what its rows show. No figure of it is kept yet, so these are made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import float32, shown


def row(precision: str, failed: dict[str, str], **tflops: float) -> dict[str, Any]:
    return {
        "precision": precision,
        "head dim": 64,
        "mask": "causal",
        "length": 4096,
        "tflops": tflops,
        "errors": dict.fromkeys(("ours", "flex"), 4.1e-07),
        "same bits": not failed,
        "failed": failed,
    }


def test_rows_have_a_table_and_a_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row("float32", {}, ours=60.0, flex=20.0), row("TF32", {"flex": "OutOfMemoryError"}, ours=180.5)]
    path = tmp_path / "float32.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["shown", str(path), "--out", str(tmp_path / "drawn")])
    shown.main()
    page = (tmp_path / "drawn" / "float32.md").read_text(encoding="utf-8").splitlines()
    assert "| float32 | 64 | causal | 4096 | 60.0 (4.1e-07) | 20.0 (4.1e-07) | 3.00 | the same bits |" in page
    assert "| TF32 | 64 | causal | 4096 | 180.5 (4.1e-07) | - | - | other bits |" in page
    assert "* TF32, head dim 64, causal, 4096: flex: OutOfMemoryError" in page and page[4].split()[2] == float32.__spec__.name
    assert (tmp_path / "drawn" / "float32.svg").read_text(encoding="utf-8").count("<path") > 10
