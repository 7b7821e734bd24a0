"""`cuir run`: results, traces, schedules, and `--loader` with what is not there."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path

import pytest

from cuir.runtime.pycuda_loader import import_pycuda
from tests.strategies.faulty import faulty_file


def test_run_writes_a_trace_and_repeats(cuir: Callable, tmp_path: Path) -> None:
    argv = ("run", "flash_fwd_sm90", "-c", "T=f16,D=64,BM=64,BN=64", "-d", "B=1,H=2,HK=1,M=100,N=130", "-s", "scale=0.125")
    output = cuir(*argv, "--trace", tmp_path / "trace.json", "--schedule", "random:4", "--json")
    assert output.code == 0 and [o["name"] for o in output.json["outputs"]] == ["O", "LSE"]
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    second_result = cuir(*argv, "--json").json
    assert second_result["outputs"] == output.json["outputs"]
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
    output = cuir("run", "gemm", "-c", "BM=64,BN=64", "-d", "M=70,N=64,K=192", "--trace", path, "--json")
    assert output.code == 0 and output.json["trace"] == str(path)
    content = path.read_bytes()
    assert content.startswith(begins)
    if ending == "html":
        assert content.count(b"<svg") == 1 and b"gemm with T=f16" in content and b"tensor core" in content
        assert not re.search(rb'(src|href)="(?!#)', content), "nothing from elsewhere"


def test_a_faulty_run_writes_its_trace_and_says_so(cuir: Callable, tmp_path: Path) -> None:
    path, program = tmp_path / "trace.json", tmp_path / "gemm.cuir"
    text = Path("corpus/programs/gemm.cuir").read_text(encoding="utf-8")
    program.write_text(text.replace("mbarrier(WG,", "mbarrier(2,"), encoding="utf-8")
    argv = ("run", program, "-c", "T=f16,BM=64,BN=64", "-d", "M=64,N=64,K=256", "--trace", path, "--json")
    output = cuir(*argv)
    assert output.code == 1 and output.json["diagnostics"][0]["code"] == "D401"
    assert any(str(path) in note["message"] for note in output.json["diagnostics"][0]["notes"])
    assert {e["cat"] for e in json.loads(path.read_text())["traceEvents"] if e["ph"] == "X"} >= {"copy", "blocked"}
    path.unlink()
    assert cuir(*argv[:5], "M=64,N=64,K=7", "--trace", path).code == 2 and not path.exists()


def test_another_ending_of_a_trace_is_refused_before_the_run(cuir: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    argv = ("run", "gemm", "-d", "M=8,N=8,K=8", "--trace")
    for name in ("trace.txt", "trace", "trace.gif"):
        output = cuir(*argv, tmp_path / name)
        assert output.code == 2 and "U126" in output.err and all(e in output.err for e in (".json", ".png", ".svg", ".html"))
        assert not (tmp_path / name).exists()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    output = cuir(*argv, tmp_path / "trace.png")
    assert output.code == 2 and "U120" in output.err and "pip install 'cubridge[bench]'" in output.err
    assert cuir(*argv, tmp_path / "trace.json").code == 0


def test_run_under_every_schedule(cuir: Callable) -> None:
    good = cuir("run", "gemm", "-c", "T=f16,BN=64,BM=64", "-d", "M=70,N=72,K=64", "--schedule", "all", "--json")
    assert good.code == 0 and "runs under different schedules" in good.json["events"]
    bad = cuir("run", faulty_file("R401_missing_wait"), "-d", "M=200", "--schedule", "all", "--json")
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
    faulty = faulty_file("R401_missing_wait")
    first = cuir("run", faulty, "-d", "M=200", "--schedule", "random:4", "--json").json["diagnostics"]
    (command,) = {n["message"].removeprefix("replay: ") for n in first[0]["notes"] if n["message"].startswith("replay: ")}
    words = shlex.split(command)
    assert words[0] == "cuir" and "random:4" in words
    repeated = cuir(*words[1:], "--json").json["diagnostics"]
    assert [(d["code"], d["message"], d["span"]) for d in repeated] == [(d["code"], d["message"], d["span"]) for d in first]


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
    (result,) = cuir("run", "gemm", "-d", "M=64,N=64,K=64", "--schedule", "foo", "--json").json["diagnostics"]
    assert result["code"] == "U111" and result["hint"].endswith(", all") and "in_order" in result["hint"]


RUN = ("run", "gemm", "-d", "M=64,N=64,K=64")


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("cuir.performance.timing.gpu.explain_missing_gpu", lambda *_: "")
    import_pycuda.cache_clear()
    monkeypatch.setitem(sys.modules, "pycuda", None)
    yield
    import_pycuda.cache_clear()


def test_without_pycuda_the_command_says_what_to_install(cuir: Callable, absent: None) -> None:
    for on in ((), ("--on", "gpu")):
        output = cuir(*RUN, "--loader", "pycuda", *on, "--json")
        (result,) = output.json["diagnostics"]
        assert output.code == 2 and result["code"] == "U510" and "cubridge[pycuda]" in result["hint"]


def test_an_unknown_loader_is_refused_before_a_gpu_is_looked_for(cuir: Callable) -> None:
    (result,) = cuir(*RUN, "--loader", "cupy", "--json").json["diagnostics"]
    assert result["code"] == "U512"


@pytest.mark.parametrize(
    "second", [("--on", "interpreter"), ("--schedule", "in_order"), ("--grid", "1"), ("--trace", "t.json"), ("--exhaustive",)]
)
def test_a_loader_is_refused_beside_what_runs_no_compiled_kernel(cuir: Callable, second: tuple[str, ...]) -> None:
    output = cuir(*RUN, "--loader", "driver", *second, "--json")
    (result,) = output.json["diagnostics"]
    assert output.code == 2 and result["code"] == "U100" and "--loader" in result["message"]


@pytest.mark.parametrize("typed", [("--loader", "pycuda"), ("--loader", "driver"), ("--on", "gpu"), ("--on", "gpu", "--loader", "pycuda")])
def test_without_a_gpu_that_is_said_first_with_the_options_to_leave_out(
    cuir: Callable, monkeypatch: pytest.MonkeyPatch, typed: tuple[str, ...]
) -> None:
    monkeypatch.setattr("cuir.performance.timing.gpu.explain_missing_gpu", lambda *_: "no CUDA device")
    output = cuir(*RUN, *typed, "--json")
    (result,) = output.json["diagnostics"]
    assert output.code == 2 and result["code"] == "U501" and result["hint"].startswith(f"leave out {' '.join(typed)} to run it")
