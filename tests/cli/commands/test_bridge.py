"""`cuir bridge`: the folder it fills, what it says is missing, and progress on a terminal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cuir import parse, show
from tests.cli.programs import KERNEL, SMALL, needs_nvcc, write_changed


@pytest.mark.thorough
@pytest.mark.usefixtures("few_problems")
def test_bridge_fills_the_output_folder(cuir: Callable, tmp_path: Path) -> None:
    out = tmp_path / "out"
    output = cuir("bridge", "prefix_lm", "-p", "prefix=100", *SMALL, "--no-compile", "--no-run", "--out", out, "--json")
    assert output.code == 0 and not output.err
    report = output.json
    assert [(s["name"], s["status"]) for s in report["steps"]] == [
        ("transfer", "done"),
        ("check", "done"),
        ("verify", "done"),
        ("lower", "done"),
        ("compile", "skipped"),
        ("run", "skipped"),
    ]
    assert {p.name for p in out.iterdir()} == set(report["files"])
    assert {
        "origin.cuir",
        "prefix_lm.cuir",
        "prefix_lm.diff",
        "prefix_lm.cu",
        "verification.md",
        "verification.json",
        "summary.json",
    } <= set(report["files"])
    assert json.loads((out / "summary.json").read_text()) == report
    assert report["verification"]["ok"] and report["consts"]["D"] == 64 and report["consts"]["T"] == "f16"
    program = (out / "prefix_lm.cuir").read_text()
    assert "(k < prefix) | (k <= q)" in program and show(parse(program)) == program
    assert (out / "origin.cuir").read_text() == show(parse(KERNEL))
    assert "+    return (k < prefix) | (k <= q)" in (out / "prefix_lm.diff").read_text()


@pytest.mark.thorough
@pytest.mark.usefixtures("few_problems")
def test_bridge_takes_your_own_specification_and_says_what_is_missing(
    cuir: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    monkeypatch.setenv("CUIR_CACHE", str(tmp_path))
    Path("mine.py").write_text("def mine(b, h, q_idx, kv_idx, *, prefix=256):\n    return (kv_idx < prefix) | (kv_idx <= q_idx)\n")
    output = cuir("bridge", "mine.py:mine", "-p", "prefix=70", *SMALL)
    assert output.code == 0 and "mine: verified" in output.out
    assert "nvcc is needed to compile" in output.out and "CUDA toolkit" in output.out and "a GPU that runs sm_90a" in output.out
    assert "left out" in output.err and (tmp_path / "out" / "mine" / "mine.cuir").is_file()


@pytest.mark.thorough
@pytest.mark.usefixtures("few_problems")
@needs_nvcc
def test_bridge_ends_with_a_cubin(cuir: Callable, tmp_path: Path) -> None:
    report = cuir("bridge", "causal", "--head-dim", "64", "--compile", "--no-run", "--out", tmp_path, "--json").json
    assert report["ok"] and (tmp_path / "causal.cubin").read_bytes()[:4] == b"\x7fELF"
    assert report["resources"]["registers"] > 0 and json.loads((tmp_path / "resources.json").read_text()) == report["resources"]


@pytest.mark.thorough
def test_bridge_of_a_wrong_origin_ends_with_1(cuir: Callable, tmp_path: Path) -> None:
    origin = write_changed(
        tmp_path / "origin.cuir",
        "                        mma_wait(acc)\n                        v_empty[u].arrive(cluster=True)",
        "                        v_empty[u].arrive(cluster=True)\n                        mma_wait(acc)",
    )
    output = cuir("bridge", "causal", *SMALL, "--origin", origin, "--out", tmp_path / "out", "--json")
    report = output.json
    assert output.code == 1 and not report["ok"] and report["steps"][-1]["status"] == "failed" and report["steps"][-1]["name"] == "verify"
    assert report["diagnostics"][0]["code"] == "R401"
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["ok"] is False
    text = cuir("bridge", "causal", *SMALL, "--origin", origin, "--out", tmp_path / "out")
    assert text.code == 1 and "causal: failed" in text.out and "@@" not in text.out
    place = tmp_path / "out" / "causal.cuir"
    named = next(line for line in text.err.splitlines() if "error[R401]" in line)
    line = int(named.removeprefix(f"{place}:").split(":")[0])
    output = text.err.splitlines()[text.err.splitlines().index(named) + 1]
    assert output == f"{line:5d} | {place.read_text().splitlines()[line - 1]}"


def test_head_dim_and_dtype_are_those_of_the_consts(cuir: Callable, tmp_path: Path) -> None:
    for command in (("verify", "causal"), ("bridge", "causal", "--out", tmp_path)):  # BN = 8 ends both at the check
        for consts, expected in (("BN=8", ("T=f16", "D=128")), ("BN=8,D=64,T=bf16", ("T=bf16", "D=64"))):
            output = cuir(*command, "-c", consts)
            assert any(all(w in line for w in (*expected, "BN=8")) for line in (output.out + output.err).splitlines())


@pytest.mark.parametrize(
    ("tiles", "ended", "code"),
    [
        ("BM=64,BN=8", "error[T135]", 1),
        pytest.param("BM=64,BN=64", "causal: verified", 0, marks=pytest.mark.thorough("verifies in a process of its own")),
    ],
)
def test_progress_on_a_terminal(tmp_path: Path, tiles: str, ended: str, code: int) -> None:
    """On a terminal the steps are shown live, and the summary, or what is wrong, stands at the end."""
    ours, child_end = os.openpty()
    argv = [
        sys.executable,
        "-m",
        "cuir",
        "bridge",
        "causal",
        "--head-dim",
        "64",
        "-c",
        tiles,
        "--no-compile",
        "--no-run",
        "--out",
        str(tmp_path),
    ]
    environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "CUIR_DEBUG")} | {"TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=child_end, stderr=child_end, env=environment)
    os.close(child_end)
    output = bytearray()
    try:
        while data := os.read(ours, 4096):
            output += data
    except OSError:  # the other side is closed: the command has ended
        pass
    os.close(ours)
    assert process.wait(timeout=30) == code
    text = output.decode(errors="replace")
    assert "transfer" in text and "\x1b[" in text and ended in text and "Traceback" not in text
