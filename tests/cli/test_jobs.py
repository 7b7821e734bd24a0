"""The commands that run things: bridge, verify, lower, run. The steps have tests of their own; here is what the commands promise."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest

from cuir import parse, show

KERNEL = (files("corpus") / "kernels" / "flash_fwd_sm90.cuir").read_text(encoding="utf-8")
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on the PATH")
SMALL = ("-c", "BM=64,BN=64", "--head-dim", "64")


def changed(path: Path, old: str, new: str) -> Path:
    assert KERNEL.count(old) >= 1
    path.write_text(KERNEL.replace(old, new, 1), encoding="utf-8")
    return path


def test_bridge_fills_the_output_folder(cuir: Callable, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shown = cuir("bridge", "prefix_lm", "-p", "prefix=100", *SMALL, "--no-compile", "--no-run", "--out", out, "--json")
    assert shown.code == 0 and not shown.err
    report = shown.json
    assert [(s["name"], s["status"]) for s in report["steps"]] == [
        ("transfer", "done"), ("check", "done"), ("verify", "done"), ("lower", "done"), ("compile", "skipped"), ("run", "skipped"),
    ]  # fmt: skip
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


def test_bridge_takes_your_own_specification_and_says_what_is_missing(
    cuir: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    monkeypatch.setenv("CUIR_CACHE", str(tmp_path))
    Path("mine.py").write_text("def mine(b, h, q_idx, kv_idx, *, prefix=256):\n    return (kv_idx < prefix) | (kv_idx <= q_idx)\n")
    shown = cuir("bridge", "mine.py:mine", "-p", "prefix=70", *SMALL)
    assert shown.code == 0 and "mine: verified" in shown.out
    assert "nvcc is needed to compile" in shown.out and "CUDA toolkit" in shown.out and "a Hopper GPU" in shown.out
    assert "left out" in shown.err and (tmp_path / "out" / "mine" / "mine.cuir").is_file()


@needs_nvcc
def test_bridge_ends_with_a_cubin(cuir: Callable, tmp_path: Path) -> None:
    report = cuir("bridge", "causal", "--head-dim", "64", "--compile", "--no-run", "--out", tmp_path, "--json").json
    assert report["ok"] and (tmp_path / "causal.cubin").read_bytes()[:4] == b"\x7fELF"
    assert report["resources"]["registers"] > 0 and json.loads((tmp_path / "resources.json").read_text()) == report["resources"]


def test_bridge_of_a_wrong_origin_ends_with_1(cuir: Callable, tmp_path: Path) -> None:
    origin = changed(
        tmp_path / "origin.cuir",
        "                        mma_wait(acc)\n                        v_empty[u].arrive(cluster=True)",
        "                        v_empty[u].arrive(cluster=True)\n                        mma_wait(acc)",
    )
    shown = cuir("bridge", "causal", *SMALL, "--origin", origin, "--out", tmp_path / "out", "--json")
    report = shown.json
    assert shown.code == 1 and not report["ok"] and report["steps"][-1]["status"] == "failed" and report["steps"][-1]["name"] == "verify"
    assert report["diagnostics"][0]["code"] == "R401"
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["ok"] is False
    text = cuir("bridge", "causal", *SMALL, "--origin", origin, "--out", tmp_path / "out")
    assert text.code == 1 and "causal: failed" in text.out and "@@" not in text.out
    place = tmp_path / "out" / "causal.cuir"
    named = next(line for line in text.err.splitlines() if "error[R401]" in line)
    line = int(named.removeprefix(f"{place}:").split(":")[0])
    shown = text.err.splitlines()[text.err.splitlines().index(named) + 1]
    assert shown == f"{line:5d} | {place.read_text().splitlines()[line - 1]}"


def test_verify_a_variant(cuir: Callable) -> None:
    shown = cuir("verify", "sliding_window", "-p", "window=40", *SMALL, "--json")
    assert shown.code == 0 and shown.json["verification"]["ok"]


def test_head_dim_and_dtype_are_those_of_the_consts(cuir: Callable, tmp_path: Path) -> None:
    for command, first, second in (
        (("verify", "causal"), "(T=f16, D=128, BN=8)", "(T=bf16, D=64, BN=8)"),
        (("bridge", "causal", "--out", tmp_path), "(T=f16, D=128, BN=8)", "(T=bf16, D=64, BN=8)"),
    ):  # BN = 8 ends both at the check
        assert first in cuir(*command, "-c", "BN=8").err
        assert second in cuir(*command, "-c", "BN=8,D=64,T=bf16").err


def test_verify_a_program_against_a_variant(cuir: Callable, tmp_path: Path) -> None:
    path = changed(tmp_path / "k.cuir", "return k <= q + (N - M)", "return k < q + (N - M)")
    shown = cuir("verify", path, "--against", "causal", *SMALL, "--json")
    d = shown.json["diagnostics"][0]
    line = KERNEL.splitlines().index("    return k <= q + (N - M)") + 1
    assert shown.code == 1 and d["code"] == "V107" and abs(d["span"]["line"] - line) <= 1
    assert cuir("verify", path, "--against", "causal", *SMALL).code == 1


def test_a_failing_verification_tells_the_command_that_replays_it(cuir: Callable, tmp_path: Path) -> None:
    path = changed(
        tmp_path / "k.cuir", "mma_wait(acc)\n                        v_empty[u].arrive(cluster=True)", "v_empty[u].arrive(cluster=True)"
    )
    shown = cuir("verify", path, "--against", "causal", *SMALL)
    command = next(line.split("replay: ")[1] for line in shown.err.splitlines() if "replay: cuir verify" in line)
    again = cuir(*shlex.split(command)[1:])
    code = shown.err.split("error[")[1][:4]
    assert again.code == 1 and f"error[{code}]" in again.err


def test_lower_prints_or_writes(cuir: Callable, tmp_path: Path) -> None:
    argv = ("lower", "flash_fwd_sm90", "-c", "T=f16,D=64")
    source = cuir(*argv).out
    assert "__global__" in source and cuir(*argv, "--json").json["source"] == source
    assert cuir(*argv, "-o", tmp_path / "k.cu").code == 0 and (tmp_path / "k.cu").read_text() == source
    assert cuir(*argv, "-o", tmp_path / "k.cu" / "no").code == 2
    nowhere = cuir(*argv, "-o", tmp_path / "nowhere" / "k.cu")
    assert nowhere.code == 2 and "U108" in nowhere.err and not (tmp_path / "nowhere").exists(), "no folder is made for a file"


@needs_nvcc
def test_lower_compiles(cuir: Callable, tmp_path: Path) -> None:
    shown = cuir("lower", "flash_fwd_sm90", "-c", "T=f16,D=64", "--cubin", tmp_path / "k.cubin")
    assert shown.code == 0 and "registers" in shown.out and (tmp_path / "k.cubin").stat().st_size > 1000


def test_run_writes_a_trace_and_repeats(cuir: Callable, tmp_path: Path) -> None:
    argv = ("run", "flash_fwd_sm90", "-c", "T=f16,D=64,BM=64,BN=64", "-d", "B=1,H=2,HK=1,M=100,N=130", "-s", "scale=0.125")
    shown = cuir(*argv, "--trace", tmp_path / "trace.json", "--schedule", "random:4", "--json")
    assert shown.code == 0 and [o["name"] for o in shown.json["outputs"]] == ["O", "LSE"]
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    again = cuir(*argv, "--json").json
    assert again["outputs"] == shown.json["outputs"]
    text = cuir(*argv, "--grid", "2", "--schedule", "random:4")
    (command,) = (line.removeprefix("again: ") for line in text.out.splitlines() if line.startswith("again: "))
    repeated = cuir(*shlex.split(command)[1:])
    assert "tensors written" in text.out and "--grid 2" in command and "random:4" in command
    assert repeated.code == 0 and repeated.out.splitlines()[-2:] == text.out.splitlines()[-2:]
    assert cuir(*argv, "--trace", tmp_path / "no" / "trace.json").code == 2


COPY = """\
@kernel(arch="sm_90a")
def copy(X: Global[T, M, 64], Y: Global[T, M, 64], *, T: const):
    work = tiles(M // 64)
    with role("all", warpgroups=1):
        for t in work:
            store(Y[t * 64 : t * 64 + 64, :], load(X[t * 64 : t * 64 + 64, :]))
"""


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("schedule", ["in_order", "all"])
def test_run_counts_elements_that_were_never_stored(cuir: Callable, tmp_path: Path, dtype: str, schedule: str) -> None:
    path = tmp_path / "copy.cuir"
    path.write_text(COPY, encoding="utf-8")
    argv = ("run", path, "-c", f"T={dtype}", "--schedule", schedule)
    short = cuir(*argv, "-d", "M=150", "--json").json
    assert short["outputs"][0]["never_stored"] == (150 - 128) * 64 and not short["outputs"][0]["not_finite"]
    assert "1,408 of 9,600 elements of `Y` were never stored" in short["note"]
    assert "1,408" in cuir(*argv, "-d", "M=150").out
    whole = cuir(*argv, "-d", "M=128", "--json").json
    assert whole["outputs"][0]["never_stored"] == 0 and "never stored" not in whole["note"]


def test_numbers_that_a_kernel_computes_as_nan_are_not_counted_as_never_stored(cuir: Callable, tmp_path: Path) -> None:
    path = tmp_path / "root.cuir"
    path.write_text(COPY.replace("load(X[t * 64 : t * 64 + 64, :])", "sqrt(load(X[t * 64 : t * 64 + 64, :]))"), encoding="utf-8")
    output = cuir("run", path, "-c", "T=f32", "-d", "M=64", "--json").json["outputs"][0]
    assert output["never_stored"] == 0 and output["not_finite"] > 0


@pytest.mark.parametrize(
    ("ending", "begins"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("html", b"<!DOCTYPE html>"), ("json", b'{"traceEvents"')]
)
def test_the_ending_of_a_trace_says_its_format(cuir: Callable, tmp_path: Path, ending: str, begins: bytes) -> None:
    path = tmp_path / f"trace.{ending}"
    shown = cuir("run", "gemm", "-c", "BM=64,BN=64", "-d", "M=70,N=64,K=192", "--trace", path, "--json")
    assert shown.code == 0 and shown.json["trace"] == str(path)
    content = path.read_bytes()
    assert content.startswith(begins)
    if ending == "html":
        assert content.count(b"<svg") == 1 and b"gemm with T=f16" in content and b"tensor core" in content
        assert not re.search(rb'(src|href)="(?!#)', content), "nothing from elsewhere"


def test_another_ending_of_a_trace_is_refused_before_the_run(cuir: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    argv = ("run", "gemm", "-d", "M=8,N=8,K=8", "--trace")
    for name in ("trace.txt", "trace", "trace.gif"):
        shown = cuir(*argv, tmp_path / name)
        assert shown.code == 2 and "U126" in shown.err and all(e in shown.err for e in (".json", ".png", ".svg", ".html"))
        assert not (tmp_path / name).exists()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    shown = cuir(*argv, tmp_path / "trace.png")
    assert shown.code == 2 and "U120" in shown.err and "pip install 'cubridge[bench]'" in shown.err
    assert cuir(*argv, tmp_path / "trace.json").code == 0


def test_progress_on_a_terminal(tmp_path: Path) -> None:
    """On a terminal the steps are shown live, and the summary stands at the end."""
    ours, theirs = os.openpty()
    argv = [sys.executable, "-m", "cuir", "bridge", "causal", *SMALL, "--no-compile", "--no-run", "--out", str(tmp_path)]
    environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "CUIR_DEBUG")} | {"TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    shown = bytearray()
    try:
        while data := os.read(ours, 4096):
            shown += data
    except OSError:  # the other side is closed: the command has ended
        pass
    os.close(ours)
    assert process.wait(timeout=30) == 0
    text = shown.decode(errors="replace")
    assert "verify" in text and "\x1b[" in text and "causal: verified" in text and "Traceback" not in text


def test_run_under_every_schedule(cuir: Callable) -> None:
    good = cuir("run", "gemm", "-c", "T=f16,BN=64,BM=64", "-d", "M=70,N=72,K=64", "--schedule", "all", "--json")
    assert good.code == 0 and "runs under different schedules" in good.json["events"]
    bad = cuir("run", files("corpus") / "faulty" / "R401_missing_wait.cuir", "-d", "M=200", "--schedule", "all", "--json")
    assert bad.code == 1 and bad.json["diagnostics"][0]["code"] == "R401"
    assert cuir("run", "gemm", "-c", "T=f16,BN=64", "-d", "M=70,N=72,K=64", "--schedule", "all", "--trace", "x.json").code == 2


GEMM = (files("corpus") / "programs" / "gemm.cuir").read_text(encoding="utf-8")
TILES = ("-c", "T=f16,BM=64,BN=64,STAGES=2")


def test_a_run_of_no_grid_comes_to_the_third_round_of_a_ring(cuir: Callable, tmp_path: Path) -> None:
    """A parity that is right for two rounds: found where a CTA of the chosen grid has five units of work, told where no grid can."""
    path = tmp_path / "k.cuir"
    path.write_text(GEMM.replace("i // stages % 2", "min(i // stages, 1)"), encoding="utf-8")
    enough = cuir("run", path, *TILES, "-d", "M=640,N=64,K=64")
    assert enough.code == 1 and "replay: " in enough.err and "--grid 2" in enough.err
    two = cuir("run", path, *TILES, "-d", "M=640,N=64,K=64", "--grid", "5")
    assert two.code == 0 and "third round of `full`, `empty`" in two.out and "--grid 2 gives each 5 units" in two.out
    assert cuir("run", path, *TILES, "-d", "M=640,N=64,K=64", "--grid", "2").code == 1
    small = cuir("run", path, *TILES, "-d", "M=64,N=128,K=64", "--json")
    assert small.code == 0 and "-d M=192 with --grid 1 may give it 5 units" in small.json["note"]
    assert cuir("run", path, *TILES, "-d", "M=192,N=128,K=64", "--grid", "1").code == 1
    assert not cuir("run", "gemm", *TILES, "-d", "M=64,N=64,K=320", "--json").json["note"], "its steps go round the ring"
    path.write_text(GEMM.replace("cdiv(N, BN))\n", "cdiv(N, BN) * 1024 // (K - 128))\n", 1), encoding="utf-8")
    odd = cuir("run", path, *TILES, "-d", "M=64,N=128,K=64", "--json")
    assert odd.code == 0 and "-d K=192 with --grid 1" in odd.json["note"], "at K=128 there is no number of units"


def test_a_report_tells_the_command_that_replays_it(cuir: Callable) -> None:
    faulty = str(files("corpus") / "faulty" / "R401_missing_wait.cuir")
    first = cuir("run", faulty, "-d", "M=200", "--schedule", "random:4", "--json").json["diagnostics"]
    (command,) = {n["message"].removeprefix("replay: ") for n in first[0]["notes"] if n["message"].startswith("replay: ")}
    words = shlex.split(command)
    assert words[0] == "cuir" and "random:4" in words
    again = cuir(*words[1:], "--json").json["diagnostics"]
    assert [(d["code"], d["message"], d["span"]) for d in again] == [(d["code"], d["message"], d["span"]) for d in first]


PLAIN = """\
@kernel(arch="sm_90a")
def double(X: Global[f32, M, 64], Y: Global[f32, M, 64]):
    work = tiles(cdiv(M, 64))
    with role("all", warpgroups=1):
        for t in work:
            x = load(X[t * 64 : t * 64 + 64, :])
            store(Y[t * 64 : t * 64 + 64, :], x + x)
"""


def test_a_kernel_without_consts_and_rings_is_described_without_empty_texts(cuir: Callable, tmp_path: Path) -> None:
    path, mine = tmp_path / "double.cuir", tmp_path / "mine.py"
    path.write_text(PLAIN, encoding="utf-8")
    mine.write_text("def reference(x):\n    return x + x\n", encoding="utf-8")
    verified = cuir("verify", path, "--against", mine)
    assert verified.code == 0 and "()" not in verified.err and "verification of double with no consts" in verified.out
    assert "rings of 1 stages" not in verified.out
    ran = cuir("run", path, "-d", "M=64", "--trace", tmp_path / "x.json")
    assert ran.code == 0 and "consts    none" in ran.out and "1 unit of work on 1 CTA of 1 worker" in ran.out
    assert f"written to {tmp_path / 'x.json'}" in "".join(ran.out.split("\n"))


def test_the_hint_for_an_unknown_schedule_of_run_has_all(cuir: Callable) -> None:
    (found,) = cuir("run", "gemm", "-d", "M=64,N=64,K=64", "--schedule", "foo", "--json").json["diagnostics"]
    assert found["code"] == "U111" and found["hint"].endswith(", all") and "in_order" in found["hint"]
