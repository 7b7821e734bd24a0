"""Medians over files of results, row by row."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.medians import medians


def test_a_row_is_the_median_of_the_files_that_have_it(tmp_path: Path) -> None:
    files = []
    for i, (mine, flex) in enumerate(((300, 200), (330, 300), (310, 250))):
        row = {
            "variant": "full",
            "parameters": {},
            "model": "m",
            "shape": [1, 2, 2, 64, 64, 64],
            "dtype": "f16",
            "contenders": {"cuir BM=64": {"tflops": mine}, "cuir BM=128": {"tflops": 1.0}, "cudnn": {"tflops": flex}},
        }
        files.append(tmp_path / f"{i}.jsonl")
        files[-1].write_text("\n".join(map(json.dumps, ({"suite": "flash"}, row))) + "\n", encoding="utf-8")
    (of,) = medians(files).values()
    assert of == {"ours": 310, "cudnn": 250, "ours / cudnn": 310 / 250}
