"""`cuir explain`: codes of errors."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cli.programs import ROOT


def test_explain(cuir: Callable) -> None:
    assert "different dtypes" in cuir("explain", "t111").out
    assert cuir("explain", "--json").json["codes"]
    assert cuir("explain", "--markdown").out == (ROOT / "docs/errors.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("code", "hint"),
    [("R999", "R401"), ("r4o1", "R401"), ("T1111", "`T111`"), ("T999", "T101"), ("Z1", "R (races)"), ("", "R (races)")],
)
def test_an_unknown_code_names_codes_of_its_letter(cuir: Callable, code: str, hint: str) -> None:
    output = cuir("explain", code, "--json")
    assert output.code == 2
    (result,) = output.json["diagnostics"]
    assert hint in result["hint"] and (code[:1] == "U" or "U999" not in result["hint"])
