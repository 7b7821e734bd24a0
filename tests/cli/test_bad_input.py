"""Bad input of every kind: one clear message with code, place and remedy, the right exit code, never a stack trace (the fixture sees to that)."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest
import torch

from cuir import CuirError, check, parse
from cuir import run as interpret
from tests.strategies.faulty import faulty_file

GOOD = """\
@func
def ring(i, stages):
    return i % stages, i // stages % 2

@kernel(arch="sm_90a")
def scale_rows(X: Global[T, M, D], Y: Global[T, M, D], scale: f32, *, T: const, D: const, STAGES: const = 2):
    buf = shared(T, [STAGES, 64, D])
    filled = mbarrier(1, stages=STAGES)
    free = mbarrier(1, stages=STAGES)
    work = tiles(cdiv(M, 64))

    with role("load", warps=1):
        i = 0
        for t in work:
            s, phase = ring(i, STAGES)
            free[s].wait(phase ^ 1)
            filled[s].expect(nbytes(buf[s]))
            copy_async(X[t * 64 : t * 64 + 64, :], buf[s], filled[s])
            i += 1

    with role("scale", warpgroups=1):
        i = 0
        for t in work:
            s, phase = ring(i, STAGES)
            filled[s].wait(phase)
            x = cast(load(buf[s]), f32)
            free[s].arrive()
            store(Y[t * 64 : t * 64 + 64, :], cast(x * scale, T))
            i += 1
"""
CONSTS = ("-c", "T=f16,D=64")
PROBLEM = ("-d", "M=1000", "-s", "scale=0.5")


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    """The good program with one piece of text replaced."""

    def make(old: str, new: str) -> Path:
        assert old in GOOD
        path = tmp_path / "program.cuir"
        path.write_text(GOOD.replace(old, new, 1), encoding="utf-8")
        return path

    return make


def first(output: object) -> tuple[str, int, int]:
    d = output.json["diagnostics"][0]  # type: ignore[attr-defined]
    return d["code"], d["span"]["line"], d["span"]["column"]


STATIC = [
    ("broken syntax", "work = tiles(cdiv(M, 64))", "work = tiles(cdiv(M, 64)", "P004", 10, 17),
    ("a statement that CuIR does not have", "i += 1", "while i:", "P005", 19, 13),
    ("unknown primitive", "copy_async(", "copy_asink(", "N105", 18, 13),
    ("unknown name", "x * scale", "x * scael", "N101", 28, 56),
    ("shape mismatch", "Y[t * 64 : t * 64 + 64, :]", "Y[t * 64 : t * 64 + 128, :]", "T123", 28, 48),
    ("dtype mismatch", "cast(x * scale, T)", "x * scale", "T123", 28, 47),
    ("no silent conversion", "cast(load(buf[s]), f32)", "load(buf[s])", "T111", 28, 56),
    ("too much shared memory", "STAGES: const = 2", "STAGES: const = 40", "M301", 7, 5),
    ("a product of a warp", "i += 1", "i += 1\n            x = mma_async(buf[s], buf[s].T)", "S219", 20, 17),
]


@pytest.mark.parametrize(("old", "new", "code", "line", "column"), [c[1:] for c in STATIC], ids=[c[0] for c in STATIC])
def test_check_finds(cuir: Callable, write: Callable, old: str, new: str, code: str, line: int, column: int) -> None:
    path = write(old, new)
    output = cuir("check", path, *CONSTS, "--json")
    assert output.code == 1 and first(output) == (code, line, column)
    text = cuir("check", path, *CONSTS)
    assert text.code == 1 and f"{path}:{line}:{column}: error[{code}]" in text.err and "^" in text.err


FAULTS = [
    ("a missing wait", "filled[s].wait(phase)", "ready = phase", "R401", 26, 22),
    ("a swapped parity of the reader", "filled[s].wait(phase)", "filled[s].wait(phase ^ 1)", "R401", 26, 22),
    ("a swapped parity of the writer", "free[s].wait(phase ^ 1)", "free[s].wait(phase)", "D401", 16, 13),
    ("too few bytes", "expect(nbytes(buf[s]))", "expect(nbytes(buf[s]) // 2)", "S403", 18, 13),
    ("too many bytes", "expect(nbytes(buf[s]))", "expect(nbytes(buf[s]) * 2)", "D401", 25, 13),
    ("an arrival left out", "free[s].arrive()", "left_out = s", "D401", 16, 13),
]


@pytest.mark.parametrize(("old", "new", "code", "line", "column"), [c[1:] for c in FAULTS], ids=[c[0] for c in FAULTS])
def test_run_finds(cuir: Callable, write: Callable, old: str, new: str, code: str, line: int, column: int) -> None:
    path = write(old, new)
    output = cuir("run", path, *CONSTS, *PROBLEM, "--grid", "2", "--json")
    results = [(d["code"], d["span"]["line"], d["span"]["column"]) for d in output.json["diagnostics"]]
    assert (
        output.code == 1 and {c for c, _, _ in results} == {code} and (code, line, column) in results
    )  # a deadlock has one for each worker
    assert all(d["hint"] for d in output.json["diagnostics"])


def test_the_good_program_is_good(cuir: Callable, write: Callable) -> None:
    for schedule in ("in_order", "random:3", "adversarial:1", "adversarial:engines_first"):
        output = cuir("run", write("", ""), *CONSTS, *PROBLEM, "--schedule", schedule, "--json")
        assert output.code == 0 and output.json["outputs"][0]["not_finite"] == 0


# ---- tensors of a call
def arguments() -> dict[str, object]:
    return {"X": torch.ones(100, 64, dtype=torch.float16), "Y": torch.zeros(100, 64, dtype=torch.float16), "scale": 0.5}


CALLS = [
    ("dtype", {"X": torch.ones(100, 64)}, "U404", 6, 16, ".to("),
    ("dtype that no kernel takes", {"X": torch.ones(100, 64, dtype=torch.float64)}, "U404", 6, 16, ""),
    ("device", {"Y": torch.zeros(100, 64, dtype=torch.float16, device="meta")}, "U407", 6, 36, "move"),
    ("rank", {"X": torch.ones(1, 100, 64, dtype=torch.float16)}, "U405", 6, 16, ""),
    ("stride", {"X": torch.ones(64, 100, dtype=torch.float16).T}, "U406", 6, 16, "contiguous"),
    ("dims that disagree", {"Y": torch.zeros(99, 64, dtype=torch.float16)}, "U408", 6, 36, ""),
    ("a scale that is not finite", {"scale": math.nan}, "U409", 6, 56, ""),
    ("an infinite scale", {"scale": math.inf}, "U409", 6, 56, ""),
    ("a scale beyond every float", {"scale": 10**400}, "U409", 6, 56, ""),
    ("a scale that is no number", {"scale": "0.5"}, "U409", 6, 56, ""),
    ("no tensor", {"X": [1.0]}, "U403", 6, 16, ""),
    ("an unknown name", {"Z": 1}, "U401", 5, 1, ""),
]


@pytest.mark.parametrize(("inputs", "code", "line", "column", "hint"), [c[1:] for c in CALLS], ids=[c[0] for c in CALLS])
def test_arguments(inputs: dict[str, object], code: str, line: int, column: int, hint: str) -> None:
    from cuir.cli.output import exit_code
    from cuir.syntax.types import F16

    checked = check(parse(GOOD, "program.cuir"), consts={"T": F16, "D": 64})
    with pytest.raises(CuirError) as caught:
        interpret(checked, {**arguments(), **inputs})  # type: ignore[dict-item]
    d = caught.value.diagnostics[0]
    assert d.span is not None and (d.code, d.span.line, d.span.column) == (code, line, column)
    assert hint in (d.hint or "") and exit_code(caught.value.diagnostics) == 2


def test_a_missing_argument() -> None:
    from cuir.syntax.types import F16

    inputs = arguments()
    del inputs["scale"]
    with pytest.raises(CuirError) as caught:
        interpret(check(parse(GOOD), consts={"T": F16, "D": 64}), inputs)  # type: ignore[arg-type]
    assert [d.code for d in caught.value.diagnostics] == ["U402"]


# ---- calls
WRONG_CALLS = [
    (("check", "no_such_file.cuir"), "U201"),
    (("check", "flash_fwd_sm91"), "U101"),
    (("check", "./."), "U202"),
    (("check", "flash_fwd_sm90", "-k", "nothing"), "N110"),
    (("check", "decode_paged"), "N109"),
    (("check", "flash_fwd_sm90", "-c", "T=f16,D=64,X=1"), "N111"),
    (("check", "flash_fwd_sm90", "-c", "T:f16"), "U103"),
    (("check", "flash_fwd_sm90", "-c", "T=f17"), "U103"),
    (("bridge", "prefixlm"), "U102"),
    (("bridge", "prefix_lm", "-p", "prefixx=3"), "X114"),
    (("bridge", "prefix_lm", "-p", "prefix=three"), "X114"),
    (("bridge", "softcap", "-p", "cap=nan"), "X114"),
    (("bridge", "softcap", "-p", "cap=inf"), "X114"),
    (("bridge", "softcap", "-p", "cap=1e39"), "U417"),
    (("verify", "prefix_lm", "-p", "prefix=99999999999"), "U417"),
    (("bridge", "prefix_lm", "-p", "prefix=99999999999"), "U417"),
    (("bridge", "nothing.py:f"), "X111"),
    (("bridge", "prefix_lm", "--dtype", "i32"), "U109"),
    (("bridge", "prefix_lm", "--head-dim", "584"), "U110"),
    (("bridge", "prefix_lm", "-c", "D=584"), "U110"),
    (("verify", "prefix_lm", "-c", "T=i32"), "U109"),
    (("verify", "prefix_lm", "-c", "D=64", "--head-dim", "128"), "U103"),
    (("mutate", "flash_fwd_sm90", "-c", "T=bf16", "--dtype", "f16"), "U103"),
    (("bridge", "prefix_lm", "--level", "some"), "U100"),
    (("verify", "prefix_lm", "--level", "full", "--quick"), "U100"),
    (("bridge", "prefix_lm", "--origin", "nothing"), "U101"),
    (("verify", faulty_file("clean_product")), "U130"),
    (("verify", "gemm", "--head-dim", "64"), "U103"),
    (("verify", "decode_paged", "-k", "nothing"), "N110"),
    (("verify", "gemm", "--dtype", "f12"), "U109"),
    (("bridge", "gelu_gemm"), "X117"),
    (("verify", "gemm", "--against", "casual"), "U102"),
    (("run", "sigmoid", "-c", "T=f16,D=64"), "U113"),
    (("run", "gemm", "-c", "T=f16", "-d", "M=64,N=64,K=64,X=1"), "U113"),
    (("run", "gemm", "-c", "T=f16", "-d", "M=64,N=64,K=64", "--schedule", "never"), "U111"),
    (("run", "gemm", "-c", "T=f16", "-d", "M=64,N=64,K=64", "--grid", "0"), "U112"),
    (("run", "gemm", "-c", "T=f16", "-d", "M=64,N=64,K=64", "--grid", "999999999"), "U112"),
    (("run", "gemm", "-c", "T=f16", "-d", "M=64,N=64,K=64", "--on", "tpu"), "U100"),
    (("run", "gemm", "-c", "T=f16", "-d", "M=64,N=64,K=999999999"), "U125"),
    (("run", "gemm", "-c", "T=f16", "-d", "M=64,N=0,K=99999999999999999999999"), "U113"),
    (("run", "gemm", "-c", "T=f16", "-d", "M=64,N=64,K=64", "--data-seed", "99999999999999999999999"), "U100"),
    (("verify", "flash_fwd", "--problem", "B=1,H=3,HK=2,M=30,N=20"), "U113"),
    (("verify", "flash_fwd", "--problem", "B=0,H=0,HK=0,M=0,N=0"), "U113"),
    (("verify", "flash_fwd", "--problem", "B=1,H=2,HK=1,M=300000,N=300000"), "U125"),
    (("verify", "flash_fwd", "--exhaustive", "--tiles", "999999999"), "U125"),
    (("verify", "gemm", "--tiles", "2"), "U100"),
    (("verify", "gemm", "--blocks", "3"), "U100"),
    (("verify", "gemm", "--out", "x.json"), "U100"),
    (("verify", "gemm", "--data-seed", "3"), "U100"),
    (("run", "gemm", "-c", "T=f16", "-d", "M=64,N=64,K=64", "--out", "x.json"), "U100"),
    (("verify", "gemm", "--problem", "M=1,N=1,K=1", "--exhaustive"), "U100"),
    (("verify", "gemm", "--problem", "M=1,N=1,K=1", "--replay", "s.json"), "U100"),
    (("verify", "gemm", "--replay", "s.json", "--exhaustive"), "U100"),
    (("verify", "causal", "--gpu", "--exhaustive"), "U100"),
    (("verify", "gemm", "--problem", "M=1,N=1,K=1", "--schedules", "9"), "U100"),
    (("verify", "gemm", "--exhaustive", "--quick"), "U100"),
    (("verify", "gemm", "--origin", "flash_fwd"), "U100"),
    (("verify", "causal", "--against", "causal"), "U100"),
    (("run", "gemm", "-c", "T=f16", "-d", "M=64,N=64,K=64", "--exhaustive", "--schedule", "random:1"), "U100"),
    (("run", "gemm", "-c", "T=f16", "-d", "M=64,N=64,K=64", "--exhaustive", "--replay", "s.json"), "U100"),
    (("run", "gemm", "-c", "T=f16", "-d", "M=64,N=64,K=64", "--replay", "s.json", "--trace", "t.json"), "U100"),
    (("run", "gemm", "-c", "T=f16", "-d", "M=64,N=64,K=64", "--on", "gpu", "--trace", "t.json"), "U100"),
    (("check", "gemm", "-c", "T=f16,T=bf16"), "U103"),
    (("run", "gemm", "-c", "T=f16", "-d", "M=64,N=64,K=64", "-d", "M=65"), "U103"),
    (("bridge", "causal", "-k", "nothing"), "N110"),
    (("bridge", "causal", "-c", "NOPE=1"), "N111"),
    (("explain", "T999"), "U107"),
    (("explain", "U101", "--markdown"), "U100"),
    (("ops", "mma", "--markdown"), "U100"),
    (("ops", "nothing"), "U106"),
]


@pytest.mark.parametrize(("argv", "code"), WRONG_CALLS, ids=[" ".join(Path(x).name for x in a) for a, _ in WRONG_CALLS])
def test_wrong_calls(cuir: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: tuple[str, ...], code: str) -> None:
    monkeypatch.chdir(tmp_path)
    output = cuir(*argv, "--json")
    assert output.code == 2 and [d["code"] for d in output.json["diagnostics"]][:1] == [code]
    text = cuir(*argv)
    assert text.code == 2 and f"error[{code}]" in text.err


def test_nothing_is_written_over_a_program(cuir: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither over what a command reads nor over another program or specification, whatever is mistyped."""
    monkeypatch.chdir(tmp_path)
    texts = {
        "mine.cuir": GOOD,
        "causal.cuir": (files("corpus") / "kernels" / "flash_fwd_sm90.cuir").read_text(),
        "spec.py": "x = 1\n",
        "t": "{}",
    }
    for name, text in texts.items():
        Path(name).write_text(text)
    for argv in (
        ("lower", "mine.cuir", *CONSTS, "-o", "mine.cuir"),
        ("lower", "mine.cuir", *CONSTS, "-o", "./spec.py"),
        ("lower", "mine.cuir", *CONSTS, "--cubin", "causal.cuir"),
        ("run", "mine.cuir", *CONSTS, *PROBLEM, "--trace", "mine.cuir"),
        ("run", "mine.cuir", *CONSTS, *PROBLEM, "--exhaustive", "--out", "causal.cuir"),
        ("verify", "causal.cuir", "--against", "causal", "--exhaustive", "--out", "causal.cuir"),
        ("bridge", "causal", "--origin", "causal.cuir", "--out", "."),
        ("transfer", "causal.cuir", "--to", "causal", "--out", "."),
        ("transfer", "flash_fwd", "--to", "gelu_gemm", "--replay", "t", "--record", "t", "--out", "o"),
    ):
        output = cuir(*argv)
        assert output.code == 2 and "error[U108]" in output.err, argv
        assert {n: Path(n).read_text() for n in texts} == texts, argv
    for argv in (("bridge", "causal", "-k", "nothing"), ("bridge", "causal", "-c", "NOPE=1")):  # an earlier result stays what it is
        assert cuir(*argv).code == 2 and not Path("out").exists()


def test_files_that_are_no_programs(cuir: Callable, tmp_path: Path) -> None:
    empty, binary, folder = tmp_path / "empty.cuir", tmp_path / "binary.cuir", tmp_path / "folder.cuir"
    empty.write_text("# nothing\n")
    binary.write_bytes(b"\xff\xfe\x00")
    folder.mkdir()
    codes = [cuir("show", p, "--json").json["diagnostics"][0]["code"] for p in (empty, binary, folder)]
    assert codes == ["U204", "U203", "U202"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu(cuir: Callable, tmp_path: Path) -> None:
    for typed, argv in (
        ("--run", ("bridge", "causal", "--run", "--out", str(tmp_path))),
        ("--on gpu", ("run", "gemm", "-c", "T=f16", "-d", "M=64,N=64,K=64", "--on", "gpu")),
        ("--gpu", ("verify", "gemm", "--gpu")),
    ):
        output = cuir(*argv, "--json")
        (result,) = output.json["diagnostics"]
        assert output.code == 2 and result["code"] == "U501" and f"leave out {typed} " in result["hint"]


def test_no_nvcc(cuir: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    monkeypatch.setenv("CUIR_CACHE", str(tmp_path))
    output = cuir("bridge", "causal", "--compile", "--out", tmp_path, "--json")
    assert output.code == 2 and output.json["diagnostics"][0]["code"] == "U503" and "CUDA toolkit" in output.json["diagnostics"][0]["hint"]


def test_an_output_folder_that_cannot_be_made(cuir: Callable, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    output = cuir("bridge", "causal", "--out", tmp_path / "file" / "out", "--json")
    assert output.code == 2 and output.json["diagnostics"][0]["code"] == "U108"


# ---- specifications
SPECIFICATIONS = [
    ("branch", "def keep(b, h, q, k):\n    if q < k:\n        return False\n    return True\n", 2),
    ("unknown operation", "import torch\ndef keep(b, h, q, k):\n    return torch.fft.fft(q) > k\n", 3),
    ("fails", "def keep(b, h, q, k):\n    return q.nothing > k\n", 2),
]


@pytest.mark.parametrize(("text", "line"), [c[1:] for c in SPECIFICATIONS], ids=[c[0] for c in SPECIFICATIONS])
def test_specifications_that_cannot_be_traced(cuir: Callable, tmp_path: Path, text: str, line: int) -> None:
    path = tmp_path / "mine.py"
    path.write_text(text, encoding="utf-8")
    output = cuir("bridge", f"{path}:keep", "--out", tmp_path / "out", "--json")
    d = output.json["diagnostics"][0]
    assert output.code == 2 and d["code"].startswith("X") and d["span"]["file"] == str(path) and d["span"]["line"] == line


def test_a_specification_file_with_a_fault(cuir: Callable, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def keep(b, h, q, k:\n    return q > k\n", encoding="utf-8")
    output = cuir("bridge", f"{path}:keep", "--out", tmp_path / "out", "--json")
    assert output.code == 2 and output.json["diagnostics"][0]["code"] == "X113" and output.json["diagnostics"][0]["span"]["line"] == 1
    path.write_text("x = 1\n", encoding="utf-8")
    assert cuir("bridge", f"{path}:keep", "--json").json["diagnostics"][0]["code"] == "X112"
    assert cuir("bridge", f"{path}:x", "--json").json["diagnostics"][0]["code"] == "X115"


def test_check_says_what_a_launch_asks_for_and_what_the_lowering_would_refuse(
    write: Callable[[str, str], Path], cuir: Callable[..., object]
) -> None:
    columns = write("STAGES: const = 2", "W: const = 20, STAGES: const = 2")
    columns.write_text(
        columns.read_text().replace("X: Global[T, M, D]", "X: Global[T, M, W]").replace("64 + 64, :], buf", "64 + 64, 0 : 64], buf"),
        encoding="utf-8",
    )
    output = cuir("check", columns, *CONSTS)
    assert "20 f16 of 40 bytes, must lie further apart" in output.out and output.code == 0  # type: ignore[attr-defined]
    ranks = write("X: Global[T, M, D]", "X: Global[T, A, B, C, E, M, D]")
    ranks.write_text(ranks.read_text().replace("X[t * 64", "X[0, 0, 0, 0, t * 64"), encoding="utf-8")
    output = cuir("check", ranks, *CONSTS)
    assert "L003" in output.err and output.code == 1  # type: ignore[attr-defined]


def test_a_loop_without_end_is_given_up_in_its_budget(write: Callable[[str, str], Path], cuir: Callable[..., object]) -> None:
    path = write(
        "            free[s].arrive()\n", "            for j in range(2000000000):\n                i += 0\n            free[s].arrive()\n"
    )
    assert cuir("check", path, *CONSTS).code == 0  # type: ignore[attr-defined]
    output = cuir("run", path, *CONSTS, *PROBLEM)
    assert output.code == 1 and "D402" in output.err and "--budget" in output.err and "range(2000000000)" in output.err  # type: ignore[attr-defined]
    more = write(
        "            free[s].arrive()\n", "            for j in range(3000):\n                i += 0\n            free[s].arrive()\n"
    )
    assert cuir("run", more, *CONSTS, *PROBLEM, "--budget", "0.001").code == 1  # type: ignore[attr-defined]
    assert cuir("run", more, *CONSTS, *PROBLEM, "--budget", "60").code == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "consts",
    [
        "T=f16,D=64,STAGES=0",
        "T=f16,D=64,STAGES=-1",
        "T=f16,D=64,STAGES=4294967296",
        "T=f16,D=0",
        "T=f16,D=-64",
        "T=f16,D=99999999999999999999",
    ],
)
def test_consts_that_nothing_can_have(write: Callable[[str, str], Path], cuir: Callable[..., object], consts: str) -> None:
    path = write("i = 0", "i = 0")
    for command in (("check",), ("run", *PROBLEM), ("lower",)):
        output = cuir(command[0], path, *command[1:], "-c", consts)
        assert output.code in (1, 2) and "error[" in output.err  # type: ignore[attr-defined]
