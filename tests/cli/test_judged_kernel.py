"""Every verdict names the kernel and the consts that it is about, also where an error ends the command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

FAULTY = """
@kernel(arch="sm_90a")
def double(X: Global[f32, M, D], Y: Global[f32, M, D], *, D: const = 32, SPARE: const = 3):
    work = tiles(cdiv(M, 64))
    with role("all", warpgroups=1):
        for t in work:
            i = t * 64 + rows(64)
            store(Y[i, cols(D)], X[i, cols(D)] * 3.0 + UNKNOWN)
"""
WRONG = FAULTY.replace(" + UNKNOWN", "")
REFERENCE = "def reference(X):\n    return {'Y': X * 2}\n"


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path, Path]:
    paths = tmp_path / "faulty.cuir", tmp_path / "wrong.cuir", tmp_path / "twice.py"
    for path, text in zip(paths, (FAULTY, WRONG, REFERENCE)):
        path.write_text(text, encoding="utf-8")
    return paths


@pytest.mark.parametrize(
    "call",
    [
        ("check",),
        ("lower",),
        ("run", "-d", "M=16"),
        ("run", "-d", "M=16", "--exhaustive"),
        ("mutate", "--against", "{spec}", "--limit", "1"),
    ],
)
def test_errors_of_programs_name_the_consts(cuir: Callable, files: tuple[Path, Path, Path], call: tuple[str, ...]) -> None:
    faulty, _, spec = files
    words = [call[0], faulty, *(str(spec) if w == "{spec}" else w for w in call[1:]), "-c", "SPARE=5"]
    output = cuir(*words, "--json")
    assert output.code == 1 and not output.json["ok"]
    assert (output.json["kernel"], output.json["consts"]) == ("double", {"D": 32, "SPARE": 5})
    assert "kernel double with D=32, SPARE=5" in cuir(*words).err


def test_a_wrong_original_of_mutants_names_its_consts(cuir: Callable, files: tuple[Path, Path, Path]) -> None:
    _, wrong, spec = files
    output = cuir("mutate", wrong, "--against", spec, "--limit", "1", "--jobs", "1", "-c", "D=16", "--json")
    assert output.code == 1 and output.json["diagnostics"][0]["code"] == "V301" and output.json["consts"] == {"D": 16, "SPARE": 3}


def test_one_problem_that_is_wrong_names_its_consts(cuir: Callable, files: tuple[Path, Path, Path]) -> None:
    _, wrong, spec = files
    output = cuir("verify", wrong, "--against", spec, "--problem", "M=5", "--json")
    assert output.code == 1 and output.json["consts"] == {"D": 32, "SPARE": 3}


def test_nothing_is_said_of_an_earlier_command(cuir: Callable, files: tuple[Path, Path, Path]) -> None:
    faulty, _, _ = files
    assert cuir("check", faulty, "--json").json["kernel"] == "double"
    assert "consts" not in cuir("check", faulty.with_name("nothing.cuir"), "--json").json
