"""The examples of docs/testing.md hold, and fail where the page says so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from cuir.testing import MismatchError

PAGE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text(encoding="utf-8")


def read_example(name: str) -> str:
    match = re.search(rf"<!-- file: {name} -->\n```python\n(.*?)```", PAGE, re.S)
    assert match
    return match[1]


@pytest.mark.parametrize("name", ["test_scale.py", "test_gemm.py", "test_rule.py"])
def test_examples_hold(name: str) -> None:
    names: dict[str, Any] = {}
    exec(read_example(name).replace("max_examples=20", "max_examples=5").replace("max_examples=5)", "max_examples=2)"), names)
    for function in [f for n, f in names.items() if n.startswith("test_")]:
        for arguments in [(64,), (200,)] if function.__name__ == "test_gemm" else [()]:
            function(*arguments)


def test_the_planted_fault_of_the_page_fails() -> None:
    text = read_example("test_scale.py").replace("cdiv(M, 64)", "(M + 62) // 64")
    plain = text.replace("import given,", "import Phase, given,").replace("max_examples=20", "max_examples=100, phases=[Phase.generate]")
    assert plain.count("Phase") == 2
    names: dict[str, Any] = {}
    exec(plain, names)
    with pytest.raises(MismatchError, match="no store reached"):
        names["test_scale"]()
