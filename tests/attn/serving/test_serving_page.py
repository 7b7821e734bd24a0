"""The examples of docs/serving.md run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "serving.md"


PRINTED = {
    "serve.py": "(2, 4, 4, 64) (2, 4, 4) True\n",
    "batch.py": "(46, 4, 64) True\n",
    "graph.py": "[34, 7] True\n",
    "packed.py": "(200, 4, 64) (4, 200)\n",
}


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    example = re.search(rf"<!-- file: {name} -->\n```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    assert example
    exec(compile(example[1], name, "exec"), {})
    assert capsys.readouterr().out == PRINTED[name]
