"""cuda run: host programs run unchanged, and what their launches break is found."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cuir.ptx.machine.lane_machine import Machine
from cuir.runtime.nvcc import find_nvcc
from tests.cli.conftest import CapturedOutput

pytestmark = pytest.mark.nvcc
SOURCE = Path(__file__).parent.parent / "host_program.cu"
Command = Callable[..., CapturedOutput]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, built as its author would, with compressed PTX."""
    out = tmp_path_factory.mktemp("host") / "a.out"
    flags = ("-cudart", "shared", "-lineinfo", "-std=c++17", "-gencode", "arch=compute_90a,code=compute_90a")
    subprocess.run([find_nvcc(), *flags, "-o", str(out), str(SOURCE)], check=True)
    return out


@pytest.mark.thorough
def test_a_program_runs_to_its_end(program: Path) -> None:
    command = [sys.executable, "-m", "cuir", "cuda", "run", str(program), "add", "1000"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "sum 3000, 3 launches counted, a box of 128 elements" in done.stdout
    assert f"ok  {program}: 5 launches of 10 CTAs in all, 1 schedule to the end" in done.stdout


def test_findings_of_launches_are_told_and_the_program_goes_on(cuir: Command, program: Path) -> None:
    output = cuir("cuda", "run", program, "race", "--schedule", "random:1", "--json")
    assert output.code == 1
    data = output.json
    assert not data["ok"] and "R401" in {d["code"] for d in data["diagnostics"]} and data["exit_code"] == 0
    assert any("--schedule random:1" in n["message"] for n in data["diagnostics"][0]["notes"])


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (("undefined",), "M401", "reads global memory that nothing has written"),
        (("past",), "M402", "behind `allocation 1 of 64 bytes`"),
        (("freed",), "M402", "outside of global memory"),
    ],
)
def test_memory_of_the_program_has_bounds_and_begins_undefined(
    cuir: Command, program: Path, words: tuple[str, ...], code: str, part: str
) -> None:
    output = cuir("cuda", "run", program, *words)
    assert output.code == 1 and f"error[{code}]" in output.err and part in output.err


def test_the_exit_code_of_the_program_counts(cuir: Command, program: Path) -> None:
    output = cuir("cuda", "run", program, "nothing of this name")
    assert output.code == 1 and "exit code   3" in output.out


def test_a_launch_without_threads_is_an_error_of_the_runtime(cuir: Command, program: Path) -> None:
    output = cuir("cuda", "run", program, "empty")
    assert output.code == 0 and "0 launches" in output.out, output.out


def test_a_call_that_the_stand_in_lacks_is_named(cuir: Command, program: Path) -> None:
    output = cuir("cuda", "run", program, "lacking")
    assert output.code == 2 and "calls `cudaDeviceGetLimit`" in output.err


def test_what_cannot_run_says_how_to_build_it(cuir: Command, tmp_path: Path) -> None:
    assert "no file" in cuir("cuda", "run", tmp_path / "none").err
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n", encoding="utf-8")
    output = cuir("cuda", "run", script)
    assert output.code == 2 and "-cudart shared" in output.err
    bad = tmp_path / "bad.cu"
    bad.write_text("int main() { return }\n", encoding="utf-8")
    output = cuir("cuda", "run", bad)
    assert output.code == 2 and "error[O121]" in output.err and "nvcc refuses" in output.err
    assert cuir("cuda", "run", bad, "--schedule", "odd").code == 2


def test_ctrl_c_keeps_what_was_found(cuir: Command, program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, run = [0], Machine.run

    def interrupted(machine: Machine) -> None:
        runs[0] += 1
        if runs[0] == 2:
            raise KeyboardInterrupt
        run(machine)

    monkeypatch.setattr(Machine, "run", interrupted)
    output = cuir("cuda", "run", program, "race", "--json")
    assert output.code == 130 and output.json["interrupted"] and output.json["diagnostics"][0]["code"] == "R401"
