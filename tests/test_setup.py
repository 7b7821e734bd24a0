"""The set-up: every requirement has a pin that satisfies it, the targets are there, CI runs them."""

from __future__ import annotations

import os
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
REQUIREMENTS = sorted({*PROJECT["dependencies"], *(r for extra in EXTRAS.values() for r in extra)})


def pins() -> dict[str, str]:
    lines = (line.partition("#")[0].strip() for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines())
    return dict(line.split("==") for line in lines if line)


@pytest.mark.parametrize("text", REQUIREMENTS)
def test_every_requirement_is_pinned(text: str) -> None:
    expected = Requirement(text)
    assert expected.specifier.contains(pins()[expected.name])


def test_nothing_else_is_pinned() -> None:
    assert pins().keys() == {Requirement(r).name for r in REQUIREMENTS}


def test_the_distribution_and_its_extras() -> None:
    assert PROJECT["name"] == "cubridge" and PROJECT["requires-python"] == ">=3.11"
    assert EXTRAS.keys() >= {"gpu", "pycuda", "llm", "testing", "bench", "transformers", "site", "dev"}
    assert {Requirement(r).name for r in EXTRAS["gpu"]} == {"cuda-bindings", "nvidia-cutlass"}


@pytest.mark.parametrize(
    ("target", "part"),
    [
        ("demo", "cuir bridge prefix_lm"),
        ("test", "-m pytest -n 2"),
        ("thorough", "--thorough=all"),
        ("lint", "ruff"),
        ("docs", "ops --markdown"),
        ("site", "mkdocs build"),
        ("dist", "build_sdist"),
        ("picture", "benchmarks.picture"),
        ("bench", "benchmarks.interp"),
        ("peer-tests", "-m tests.peer"),
    ],
)
def test_targets_set_up_what_they_need(target: str, part: str, tmp_path: Path) -> None:
    output = subprocess.run(
        ["make", "-n", target, f"VENV={tmp_path / 'venv'}"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert part in output and "-c constraints.txt" in output and output.index("pip install") < output.index(part)


def test_setting_up_shows_its_progress(tmp_path: Path) -> None:
    output = subprocess.run(
        ["make", "-n", "setup", f"VENV={tmp_path / 'venv'}"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    (line,) = (line for line in output.splitlines() if "-m pip install" in line)
    assert not {"-q", "-qq", "-qqq", "--quiet"} & set(line.split()) and "progress-bar" not in line
    assert output.index("1 of 2") < output.index("2 of 2") < output.index("-m pip install")


def test_a_second_set_up_does_nothing(tmp_path: Path) -> None:
    stamp = tmp_path / "venv" / ".installed"
    stamp.parent.mkdir()
    stamp.touch()
    output = subprocess.run(
        ["make", "-n", "test", f"VENV={tmp_path / 'venv'}"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert "pip install" not in output and "pytest" in output


def test_ci_runs_tests_and_lint() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    text = script.read_text(encoding="utf-8")
    assert "make test" in text and "make lint" in text and "set -euo pipefail" in text
    assert text.index("make lint") < text.index("make dist") < text.index("make thorough") and "--durations=20" in text
    assert "timeout 60 make setup-site" in text and "skipped: make site" in text


def test_demo_installs_less_than_the_tests_need(tmp_path: Path) -> None:
    plans = {
        target: subprocess.run(
            ["make", "-n", target, f"VENV={tmp_path / 'venv'}"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
        for target in ("demo", "test")
    }
    assert "'.[gpu]'" in plans["demo"] and "'.[dev]'" not in plans["demo"] and "'.[dev]'" in plans["test"]
