"""Tests that a plain run takes, and their limits of time: tests/strategies/selection.py, hooks of tests/conftest.py."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.strategies.selection import SHARE, choose_cases

CASES = f"""
import time, pytest

def test_plain(): pass

@pytest.mark.thorough("it is long")
def test_long(): pass

@pytest.mark.sweep
@pytest.mark.parametrize("i", range({SHARE + 1}))
def test_sweep(i): pass

@pytest.mark.sweep(4)
@pytest.mark.parametrize("i", range(5))
def test_denser_sweep(i): pass

def test_costs():
    end = time.process_time() + 0.4
    while time.process_time() < end: pass
"""
CONFTEST = """
import tests.conftest
tests.conftest.BUDGET = 0.1
from tests.conftest import *
"""


def run_pytest(folder: Path, *args: str) -> tuple[int, str]:
    (folder / "pytest.ini").write_text(
        "[pytest]\nmarkers = gpu\n  nvcc\n  thorough\n  sweep\naddopts = -rsf -p no:cacheprovider -p no:xdist --import-mode=importlib\n"
    )
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_it.py").write_text(CASES)
    output = folder / "output.txt"
    child = os.fork()  # a new process would import PyTorch first, for two seconds
    if child == 0:
        code = 70
        try:
            sys.stdout = sys.stderr = output.open("w", encoding="utf-8")
            os.chdir(folder)
            code = int(pytest.main(["-v", "--capture=sys", *args]))
            sys.stdout.flush()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), output.read_text(encoding="utf-8")


def test_a_plain_run_leaves_out_what_is_thorough_and_fails_what_costs_too_much(tmp_path: Path) -> None:
    code, text = run_pytest(tmp_path)
    assert code == 1 and f"1 failed, 5 passed, {SHARE + 3} deselected" in text
    assert (
        "thorough: it is long; `make thorough` runs it" in text
        and f"{SHARE - 1} left out: a sweep: a case in {SHARE} runs (--sweep-seed=0)" in text
        and "3 left out: a sweep: a case in 4 runs" in text
        and "SKIPPED" not in text
    )
    assert "test_it.py::test_costs: 0." in text or "CPU seconds; a test has 0" in text
    assert "over the budget" in text and "s  test_it.py::test_costs" in text


def test_the_rest_is_what_a_plain_run_leaves_out(tmp_path: Path) -> None:
    code, text = run_pytest(tmp_path, "--thorough=rest")
    assert code == 0 and f"{SHARE + 3} passed, 6 deselected" in text


def test_a_test_that_is_named_runs(tmp_path: Path) -> None:
    code, text = run_pytest(tmp_path, "test_it.py::test_long", "test_it.py::test_sweep")
    assert code == 0 and f"{SHARE + 2} passed" in text


def test_every_case_of_a_sweep_is_taken_under_some_seed() -> None:
    ids = [f"case {i}" for i in range(31)]
    selected = [choose_cases(ids, seed) for seed in range(5 * SHARE)]
    assert all(len(t) == -(-31 // SHARE) for t in selected) and set().union(*selected) == set(ids)
    assert choose_cases(ids, 1) == choose_cases(reversed(ids), 1) != choose_cases(ids, 2)
    assert choose_cases(["alone"], 5) == {"alone"} and len(choose_cases(ids, 1, 4)) == 8
