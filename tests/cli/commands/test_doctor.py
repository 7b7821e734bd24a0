"""`cuir doctor`: the machine, what is missing and how to get it, and a self-test whose failures are told."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from cuir.cli import self_test
from cuir.runtime import environment
from cuir.runtime.cards import CARDS
from cuir.text.diagnostics import CuirError
from tests.cli.commands import self_test_steps
from tests.stand_in_cards import stand_in


def test_the_machine_is_described(cuir: Callable) -> None:
    output = cuir("doctor")
    assert output.code == 0 and "PyTorch" in output.out and "cache" in output.out and "verify" in output.out
    data = cuir("doctor", "--json").json
    assert data["ok"] and {"system", "nvcc", "CuTe headers"} <= {f["name"] for f in data["machine"]} and not data["self_test"]


def test_people_see_what_is_missing_and_what_works(cuir: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise CuirError.of("U503", "no nvcc", hint="install a toolkit")

    monkeypatch.setattr("cuir.runtime.environment.find_nvcc", missing)
    lines = [line.split(None, 2) for line in cuir("doctor").out.splitlines()]
    assert ["missing", "nvcc", "none; to get it: install a toolkit"] in lines
    assert any(line[:2] == ["ok", "PyTorch"] for line in lines) and ["what", "works", "here"] in lines
    assert any(line[:2] == ["compile", "kernels"] and "no, without nvcc" in line[2] for line in lines)


def test_what_is_missing_names_what_to_install(cuir: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise CuirError.of("U503", "no nvcc", hint="install a toolkit")

    monkeypatch.setattr("cuir.runtime.environment.find_nvcc", missing)
    data = cuir("doctor", "--json").json
    assert next(f for f in data["machine"] if f["name"] == "nvcc")["remedy"] == "install a toolkit"
    assert "compile kernels: no, without nvcc" in data["runs"]


@pytest.mark.parametrize(
    ("capability", "words", "lacks"),
    [
        ((7, 5), ["gradients", "kernels for sm_75", "not attention over a KV cache of 8-bit numbers", "nobody measured"], ["sm_80"]),
        ((8, 6), ["kernels for sm_80", "compiled for sm_86", "nobody measured"], ["could do"]),
        ((9, 0), ["kernels for sm_90a", "measured settings"], ["nobody", "not "]),
        ((10, 0), ["kernels for sm_80", "compiled for sm_100", "not what the GPU could do"], []),
    ],
)
def test_people_see_which_attention_calls_a_card_runs(
    cuir: Callable, capability: tuple[int, int], words: list[str], lacks: list[str]
) -> None:
    with stand_in(CARDS[capability]):
        data = cuir("doctor", "--json").json
    (line,) = (text for text in data["runs"] if text.startswith("attention on cuda 0"))
    assert all(word in line for word in words) and not any(word in line for word in lacks)
    (card,) = (f for f in data["machine"] if f["name"] == "cuda:0")
    assert CARDS[capability].name in card["value"] and f"{CARDS[capability].shared_bytes // 1024} KiB" in card["value"]


def test_nvrtc_takes_the_place_of_nvcc(cuir: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise CuirError.of("U503", "no nvcc", hint="install a toolkit")

    monkeypatch.setattr(environment, "find_nvcc", missing)
    monkeypatch.setattr(environment, "import_nvrtc", lambda: object())
    monkeypatch.setattr(environment, "describe_version", lambda library: "NVRTC 13.9")
    data = cuir("doctor", "--json").json
    assert any("compile kernels: yes, by NVRTC" in text for text in data["runs"])
    assert next(f for f in data["machine"] if f["name"] == "NVRTC")["value"].startswith("NVRTC 13.9")


def stand_in_steps(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Let `cuir doctor` run steps of self_test_steps.py."""
    monkeypatch.setattr(self_test, "STEPS", {name: self_test_steps.STEPS[name] for name in names})
    monkeypatch.setattr(self_test, "COMMAND", self_test_steps.COMMAND)


@pytest.fixture(autouse=True)
def importable_stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]))


def test_a_failed_step_does_not_stop_the_next(cuir: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_steps(monkeypatch, "fail", "succeed", "leave_out")
    output = cuir("doctor", "--self-test")
    assert output.code == 1 and "numbers differ" in output.out and "no GPU" in output.out and output.out.count("passed") == 1
    assert output.out.rstrip().endswith("send all of this with an issue")


def test_an_error_of_any_kind_is_a_failed_step() -> None:
    """Steps run in one process, and a new one after a crash."""
    steps = list(self_test.run_self_test(("fail_to_import", "crash", "succeed"), self_test_steps.COMMAND))
    assert [s.verdict for s in steps] == ["failed", "failed", "passed"]
    assert steps[0].reason == "ImportError: no module named parts" and "ended with 9" in steps[1].reason


def test_the_self_test_ends_in_time(cuir: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that hangs is cut off, and people see which steps are not run."""
    seconds, begin = 2.0, time.monotonic()
    stand_in_steps(monkeypatch, "succeed", "hang", "fail", "leave_out")
    monkeypatch.setattr(self_test, "SECONDS", seconds)
    output = cuir("doctor", "--self-test")
    assert time.monotonic() - begin < 60 and output.code == 1
    lines = output.out.splitlines()[-5:-1]
    assert [line[:9].rstrip() for line in lines] == ["passed", "cut off", "not run", "not run"]
    assert "hang" in lines[1] and "after the 2 s" in lines[1] and "fail" in lines[2] and "leave_out" in lines[3]


MODULE = "NVRM version: NVIDIA UNIX {kind}Kernel Module {machine}580.65.06  {end}\nGCC version:  gcc version 13.3.0\n"


@pytest.mark.parametrize(
    "text",
    [
        MODULE.format(kind="Open ", machine="for x86_64  ", end="Release Build  (root@host)  Sun Jul 27 2025"),
        MODULE.format(kind="x86_64 ", machine=" ", end="Sun Jul 27 06:43:23 UTC 2025"),
    ],
)
def test_an_issue_names_the_version_of_the_driver(text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (module := tmp_path / "version").write_text(text, encoding="utf-8")
    monkeypatch.setattr(environment, "driver", lambda: SimpleNamespace(cuDriverGetVersion=lambda: (0, 13010)))
    monkeypatch.setattr(environment, "KERNEL_MODULE", module)
    assert environment.describe_driver() == "580.65.06, CUDA 13.1"
    monkeypatch.setattr(environment, "KERNEL_MODULE", tmp_path / "none")
    assert environment.describe_driver() == "CUDA 13.1"


@pytest.mark.parametrize("step", ["find_fault", "interpret_attention"])
def test_steps_pass(step: str) -> None:
    assert getattr(self_test, step)() == ""


def test_a_verification_that_passes_everything_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cuir.testing.matching._run", lambda *arguments: None)
    with pytest.raises(AssertionError, match="leaves out the last rows passes"):
        self_test.find_fault()
