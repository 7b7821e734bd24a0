"""`cuir mutate`: the table, the survivors, JSON, and calls that are wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.strategies.faulty import faulty_file

SMALL = ("-c", "BM=64,BN=64", "--jobs", "1", "--seed", "1")


@pytest.mark.thorough
@pytest.mark.usefixtures("few_problems")
def test_the_table_and_json_say_what_was_refused(cuir: Callable, tmp_path: Path) -> None:
    out = tmp_path / "mutants.jsonl"
    output = cuir("mutate", "flash_fwd_sm90", "--class", "14", "--class", "5", "--limit", "2", "--out", out, *SMALL)
    assert output.code == 0 and output.err == ""
    lines = output.out.splitlines()
    assert any(line.split()[:1] == ["14"] and "resources" in line for line in lines) and "faulty programs refused" in lines[-1]
    data = cuir("mutate", "flash_fwd_sm90", "--class", "14", "--class", "5", "--limit", "2", "--out", out, "--json", *SMALL).json
    assert data["ok"] and len(data["mutants"]) == 2 and set(data["classes"]) == {"5", "14"} and data["seed"] == 1
    assert data["killed"] == sum(m["verdict"] == "killed" for m in data["mutants"]) >= 1
    assert all(m["diff"].startswith("--- original") for m in data["mutants"])


@pytest.mark.parametrize(
    ("argv", "code", "exit_code", "word"),
    [
        (("flash_fwd_sm90", "--class", "16"), "U123", 2, "class of faults 16"),
        ((faulty_file("clean_product"),), "U130", 2, "--against VARIANT"),
        (("flash_fwd_sm91",), "U101", 2, "did you mean"),
        (("flash_fwd_sm90", "--against", "causall"), "U102", 2, "did you mean"),
        (("flash_fwd_sm90", "--level", "half"), "U100", 2, "quick or full"),
        (("flash_fwd_sm90", "--limit", "0"), "U100", 2, "limit"),
        (("flash_fwd_sm90", "--out", ".", "--limit", "1", *SMALL), "U122", 2, "--out"),
        (("flash_fwd_sm90", "--against", "full", "--limit", "1", *SMALL), "V107", 1, "does not attend"),
    ],
)
def test_wrong_calls_are_told(cuir: Callable, argv: tuple[str, ...], code: str, exit_code: int, word: str) -> None:
    output = cuir("mutate", *argv)
    assert output.code == exit_code and f"[{code}]" in output.err and word in output.err, output.err
