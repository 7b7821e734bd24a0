"""Consts of a judged kernel: the caller's, then the file's defaults, then the usual ones, alike in every command and in Python."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import cuir
from corpus.computes import COMPUTES
from cuir.checking.checker import check, pick_kernel
from cuir.checking.const_defaults import fill_consts
from cuir.cli import run as run_command
from cuir.cli.command_inputs import KernelWords, find_corpus_consts, read_origin, read_program, read_program_consts
from cuir.cli.gpu_stage import read_verified
from cuir.syntax.parser import parse
from cuir.syntax.types import BF16, F16
from cuir.text.diagnostics import CuirError
from cuir.verification.stages import _Verification

MEAN = """\
@kernel(arch="sm_90a")
def mean_rows(X: Global[T, M, D], Y: Global[f32, M], *, T: const = bf16, D: const = 1024):
    work = tiles(cdiv(M, 64))
    with role("all", warpgroups=1):
        for t in work:
            total = zeros(f32, [64, 1])
            for c in range(D // 64):
                total = total + row_sum(cast(load(X[t * 64 : t * 64 + 64, c * 64 : c * 64 + 64]), f32) * (1.0 / WIDTH))
            store(Y[t * 64 + rows(64)], total)
"""
REFERENCE = 'def reference(X):\n    return {"Y": X.double().mean(-1)}\n'


@pytest.fixture
def files(tmp_path: Path) -> Callable[[str], tuple[Path, Path]]:
    """A mean over rows that divides by so much, and what it should compute."""

    def write(width: str) -> tuple[Path, Path]:
        program, reference = tmp_path / "mean.cuir", tmp_path / "mean.py"
        program.write_text(MEAN.replace("WIDTH", width), encoding="utf-8")
        reference.write_text(REFERENCE, encoding="utf-8")
        return program, reference

    return write


def test_verify_refuses_a_mean_that_divides_by_another_width(files: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    program, reference = files("128.0")
    assert run_command(["verify", str(program), "--against", str(reference), "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert [d["code"] for d in data["diagnostics"]] == ["V301"]
    assert data["verification"]["consts"] == {"T": "bf16", "D": 1024}


def test_mutate_refuses_a_mean_that_divides_by_another_width(files: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    program, reference = files("128.0")
    assert run_command(["mutate", str(program), "--against", str(reference), "--limit", "1", "--jobs", "1", "--json"]) == 1
    assert [d["code"] for d in json.loads(capsys.readouterr().out)["diagnostics"]] == ["V301"]


@pytest.mark.thorough
def test_python_verifies_the_kernel_of_the_file(files: Callable) -> None:
    program, reference = files("128.0")
    wrong = cuir.verify(program, reference, shrink=False, seeded=0)
    assert not wrong.ok and wrong.consts == {"T": BF16, "D": 1024}
    right = cuir.verify(files("1024.0")[0], str(reference), seeded=0)
    assert right.ok and right.consts == {"T": BF16, "D": 1024}
    assert "With T=bf16, D=1024" in right.as_markdown()
    assert cuir.verify(files("128.0")[0], reference, consts={"D": 128}, shrink=False, seeded=0).ok, "the caller's consts win"


@pytest.mark.parametrize("command", ["verify", "run", "lower", "check"])
def test_commands_name_the_consts_of_the_file(files: Callable, capsys: pytest.CaptureFixture[str], command: str) -> None:
    program, reference = files("1024.0")
    besides = {"verify": ["--against", str(reference), "--problem", "M=3"], "run": ["-d", "M=3"]}.get(command, [])
    assert run_command([command, str(program), *besides, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    consts = data["kernel"]["consts"] if command == "check" else data["consts"]
    assert consts == {"T": "bf16", "D": 1024}
    assert run_command([command, str(program), *besides]) == 0
    output = capsys.readouterr()
    assert command == "lower" or "1024" in output.out + output.err


@pytest.mark.sweep(4)
@pytest.mark.parametrize(("name", "kernel"), [(n, k) for n, kernels in COMPUTES.items() for k in kernels])
def test_commands_take_the_same_consts(name: str, kernel: str) -> None:
    program = read_program(name)
    picked, consts = read_program_consts(program, name, kernel, ())
    assert (
        check(program, kernel, consts).consts
        == read_verified(name, None, (), "", KernelWords(kernel, None, None, ()), "quick", True).checked.consts
    )
    defaults = {p.name for p in picked.params if getattr(p, "default", None) is not None}
    assert not consts.keys() & defaults, "a default of the file is replaced"
    assert not find_corpus_consts(name, picked).keys() & defaults


def test_origins_keep_their_defaults(tmp_path: Path) -> None:
    path = tmp_path / "mine.cuir"
    text = read_program("flash_fwd_sm90").span.source.text
    path.write_text(text.replace("T: const, D: const,", "T: const = bf16, D: const = 64,", 1), encoding="utf-8")
    _, program, picked, consts = read_origin(str(path), KernelWords(None, None, None, ()))
    result = check(program, picked.name, consts).consts
    assert (result["T"], result["D"]) == (BF16, 64)
    _, _, _, inputs = read_origin(str(path), KernelWords(None, None, 128, ("T=f16",)))
    assert (inputs["T"], inputs["D"]) == (F16, 128)


def test_ours_fill_only_what_has_neither_value_nor_default() -> None:
    kernel = pick_kernel(
        parse(MEAN.replace("WIDTH", "D").replace("T: const = bf16, D: const = 1024", "T: const, D: const, N: const, BM: const = 64")), None
    )
    assert fill_consts(kernel, {}) == {"T": F16, "D": 128}
    assert fill_consts(kernel, {"D": 64, "BM": 32}, {"N": 3, "D": 192}) == {"T": F16, "D": 64, "N": 3, "BM": 32}
    with pytest.raises(CuirError) as caught:
        cuir.check(parse(MEAN.replace("WIDTH", "128.0").replace("D: const = 1024", "D: const = 1024, N: const")))
    assert [d.code for d in caught.value.diagnostics] == ["N112"]


def test_the_full_level_varies_no_default_of_a_kernel_that_is_of_no_attention() -> None:
    def list_others(text: str) -> list[dict[str, object]]:
        program = parse(text)
        expected_values = fill_consts(pick_kernel(program, None), {})
        verification: Any = SimpleNamespace(level="full", consts=expected_values, program=program, kernel=None)
        return [dict(c.consts) for c in _Verification.make_variants(verification, check(program, None, expected_values))[0]]

    fixed = MEAN.replace("WIDTH", "128.0").replace("1024", "128")
    assert list_others(fixed) == []
    assert list_others(fixed.replace(": const = bf16, D: const = 128", ": const, D: const")) == [{"T": BF16, "D": 128}, {"T": F16, "D": 64}]


def test_a_run_on_a_gpu_keeps_the_defaults_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shipped table of tiles is for calls that bring no file; only what the user has tuned replaces a default."""
    from cuir.cli import kernel_run as running
    from cuir.performance.selection import Device
    from cuir.performance.selection.shipped_table import list_shipped_devices

    class _Reached(Exception):
        pass

    selected: dict[str, object] = {}

    def stop(checked: cuir.Checked, *_: object) -> None:
        selected.update(checked.consts)
        raise _Reached

    monkeypatch.setenv("CUIR_CACHE", str(tmp_path))
    monkeypatch.setattr("cuir.performance.timing.gpu.require_gpu", lambda *_: None)
    monkeypatch.setattr(running, "_require_package", lambda *_: None)
    monkeypatch.setattr(Device, "current", staticmethod(lambda: list_shipped_devices()["NVIDIA H200"]))
    monkeypatch.setattr(running, "make_arguments", stop)
    text = read_program("flash_fwd_sm90").span.source.text.replace("BM: const = 128", "BM: const = 64", 1)
    dims = {"B": 2, "H": 32, "HK": 32, "M": 8192, "N": 8192}
    with pytest.raises(_Reached):
        running.run_kernel(
            parse(text),
            None,
            {"T": F16, "D": 128},
            dims,
            {"scale": 0.1},
            running.RunOptions("in_order", None, 0, None, "gpu", "driver"),
        )
    assert (selected["BM"], selected["BN"], selected["D"]) == (64, 128, 128)
