"""`cuir verify` of programs that the corpus' table knows, of a function in a file, and of one problem; what is found names the command that shows it again."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest

from cuir.cli.gpu_stage import Verified
from cuir.cli.one_problem import add_commands
from cuir.text.diagnostics import Diagnostic, Note
from tests.verification.test_noise_verdicts import UNMARKED

GEMM = (files("corpus") / "programs" / "gemm.cuir").read_text(encoding="utf-8")
SMALL = ("-c", "BM=64,BN=64")
REFERENCE = """
import torch

def sizes(drawn):
    return {"K": min(drawn["K"], 70)}

def reference(a, bt, bias):
    x = a @ bt.mT + bias
    return x * torch.sigmoid(1.702 * x)
"""


@pytest.mark.thorough
def test_a_program_of_the_corpus_needs_no_specification(cuir: Callable) -> None:
    data = cuir("verify", "gemm", *SMALL, "--json").json["verification"]
    assert data["ok"] and data["variant"] == "gelu_gemm" and data["consts"]["T"] == "f16"
    assert [s["verdict"] for s in data["stages"]] == ["passed", "skipped", "passed", "skipped", "passed"]


@pytest.mark.thorough
def test_a_function_in_a_file(cuir: Callable, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text(REFERENCE)
    bad.write_text(REFERENCE.replace("1.702", "1.6"))
    data = cuir("verify", "gemm", "--spec", good, *SMALL, "--json").json["verification"]
    assert data["ok"] and data["variant"] == "good" and all("K=70" in r["case"] or "K=" in r["case"] for r in data["stages"][4]["rows"])
    assert not any(int(r["case"].rsplit("K=", 1)[1].split(",")[0]) > 70 for r in data["stages"][4]["rows"])
    output = cuir("verify", "gemm", "--against", f"{bad}:reference", *SMALL)
    assert output.code == 1 and "error[V301]" in output.err
    command = next(line.split("replay: ")[1] for line in output.err.splitlines() if "replay: " in line)
    repeated = cuir(*shlex.split(command)[1:])
    assert repeated.code == 1 and "error[V301]" in repeated.err and "--problem" in command


def test_a_problem_of_wide_inputs_is_contracted_too(cuir: Callable, tmp_path: Path) -> None:
    program, reference = tmp_path / "softmax.cuir", tmp_path / "softmax.py"
    program.write_text(UNMARKED)
    reference.write_text("def reference(x, scale):\n    return (x * scale).softmax(-1)\n")
    problem = ("--problem", "M=70,N=73,scale=0.7", "--inputs")
    assert cuir("verify", program, "--against", reference, *problem, "normal").code == 0
    output = cuir("verify", program, "--against", reference, *problem, "wide")
    assert output.code == 1 and "error[V301]" in output.err and "(FMA)" in output.err


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("def reference(a, b):\n    return a\n", "X105", "`b`"),
        ("def reference(a):\n    return a.no\n", "X113", "AttributeError"),
        ("def other(a):\n    return a\n\ndef another(a):\n    return a\n", "X112", "it has: other, another"),
        ("def reference(*tensors):\n    return tensors[0]\n", "X105", "called with names"),
        ("def reference(a):\n    return a\n\ndef inputs(sizes):\n    return 3\n", "X106", "inputs"),
        ("def reference(a):\n    return a[:, 1:]\n", "X106", "the specification `wrong` gives C of shape"),
        ("def reference(a):\n    return None\n", "X106", "the specification `wrong` gives"),
        ("def reference(a:\n    return a\n", "X113", "cannot be imported: SyntaxError"),
        ("import nothing_of_that_name\n", "X113", "the specification `"),
    ],
)
def test_wrong_functions_are_told_with_their_place(cuir: Callable, tmp_path: Path, text: str, code: str, says: str) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(text)
    output = cuir("verify", "gemm", "--against", path, *SMALL)
    assert output.code == 2 and f"[{code}]" in output.err and says in output.err, output.err
    if code == "X106":  # names and shapes are compared before anything runs
        assert " runs under different schedules" not in output.out


def test_the_only_function_of_a_file_is_a_mod_only_for_attention(cuir: Callable, tmp_path: Path) -> None:
    """A function without attention can only be one of the inputs; beside Q, K and V it is asked what it is."""
    path = tmp_path / "other.py"
    path.write_text("def other(a):\n    return a\n")
    output = cuir("verify", "flash_fwd_sm90", "--against", path)
    assert output.code in (1, 2) and "[X116]" in output.err and "a function of the inputs is called `reference`" in output.err, output.err
    assert "[V301]" in cuir("verify", "gemm", "--against", path, *SMALL).err


def test_a_race_is_shown_again(cuir: Callable, tmp_path: Path) -> None:
    path = tmp_path / "race.cuir"
    path.write_text(GEMM.replace("                mma_wait(before)\n", ""))
    output = cuir("verify", path, "--against", "gelu_gemm", *SMALL, "--json").json["diagnostics"][0]
    (command,) = [n["message"].removeprefix("replay: ") for n in output["notes"] if n["message"].startswith("replay: ")]
    repeated = cuir(*shlex.split(command)[1:], "--json").json["diagnostics"][0]
    assert repeated["code"] == output["code"] == "R401" and repeated["span"] == output["span"]


def test_one_problem(cuir: Callable) -> None:
    rows = cuir(
        "verify", "gemm", *SMALL, "--problem", "M=65,N=33,K=70", "--inputs", "spikes", "--data-seed", "3", "--grid", "2", "--json"
    ).json["rows"]
    assert len(rows) == 1 and "spikes inputs, seed 3" in rows[0]["case"] and rows[0]["error"] < 1e-3
    for options, code in (
        (("--problem", "M=65,N=33"), "U113"),
        (("--problem", "M=1,N=1,K=1,Z=1"), "U113"),
        (("--problem", "M=1,N=1,K=1", "--inputs", "odd"), "U100"),
    ):
        assert f"[{code}]" in cuir("verify", "gemm", *SMALL, *options).err


@pytest.mark.parametrize(
    ("problem", "says"),
    [
        ("B=1,H=2", "found none of HK, M, N"),
        ("B=1,H=2,HK=1,M=-3,N=5", "found M=-3, which is negative"),
        ("B=1,H=2,HK=1,M=2.5,N=5", "found M=2.5"),
        ("B=1,H=2,HK=1,M=3,N=5,X=1,Y=2", "there is no dim X, Y"),
        ("B=1,H=3,HK=2,M=3,N=5", "found H=3, HK=2"),
    ],
)
def test_a_wrong_problem_is_told_in_full(cuir: Callable, problem: str, says: str) -> None:
    output = cuir("verify", "flash_fwd", "--problem", problem)
    assert output.code == 2 and says in output.err and "B=...,H=...,HK=...,M=...,N=..." in output.err


@pytest.mark.parametrize(
    "failure",
    [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")],
    ids=["python", "torch"],
)
def test_memory_that_runs_out_all_the_same_is_told(cuir: Callable, monkeypatch: pytest.MonkeyPatch, failure: Exception) -> None:
    def runs_out(*_: object, **__: object) -> None:
        raise failure

    monkeypatch.setattr("cuir.cli.kernel_run.run_kernel", runs_out)
    output = cuir("run", "gemm", "-c", "T=f16", "-d", "M=1,N=1,K=1")
    assert output.code == 2 and "error[U125]" in output.err


SKIPPING = """
@kernel(arch="sm_80")
def kernel(X: Global[f16, M, 32], Y: Global[f16, M, 32], skip: i32):
    work = tiles(cdiv(M, 16))
    with role("all", warps=1):
        for t in work:
            f = 3.0 if t == 3 and skip == -7 else 2.0
            q = t * 16 + rows(16)
            store(Y[q, cols(32)], cast(cast(X[q, cols(32)], f32) * f, f16))
"""


def test_a_fault_that_a_scalar_shows_is_shown_again(cuir: Callable, tmp_path: Path) -> None:
    path, spec = tmp_path / "skipping.cuir", tmp_path / "double.py"
    path.write_text(SKIPPING)
    spec.write_text("def reference(x, skip):\n    return 2 * x\n")
    output = cuir("verify", path, "--against", spec, "--json").json["diagnostics"][0]
    (command,) = [n["message"].removeprefix("replay: ") for n in output["notes"] if n["message"].startswith("replay: ")]
    assert "skip=-7" in command
    assert cuir(*shlex.split(command)[1:], "--json").json["diagnostics"][0]["code"] == output["code"] == "V301"
    assert cuir("verify", path, "--against", spec, "--problem", "M=64,skip=6").code == 0
    for value, says in (("2.5", "of type i32"), ("true", "of type i32"), (str(2**31), "of 32 bits")):
        wrong = cuir("verify", path, "--against", spec, "--problem", f"M=64,skip={value}")
        assert wrong.code == 2 and "[U113]" in wrong.err and says in wrong.err


def test_the_command_names_the_consts_of_the_kernel_that_failed() -> None:
    notes = (Note("in the case largest 0: M=2, N=126, largest inputs"), Note("found with -c T=bf16"))
    verified = Verified("k.cuir", "mine.py", (), "", None, {}, "full")
    (result,) = add_commands([Diagnostic("V302", "NaN", None, notes)], verified, {"D": 64, "T": "f16"})
    assert result.notes[-1].message.endswith("-c D=64,T=bf16 --problem M=2,N=126 --inputs largest")


def test_one_problem_names_what_is_not_compared(cuir: Callable, tmp_path: Path) -> None:
    path = tmp_path / "first.py"
    path.write_text("def reference(q, k, v, scale):\n    return (q @ k.mT * scale).softmax(-1) @ v\n")
    command = ("verify", "flash_fwd", "--head-dim", "64", "--against", path, "--problem", "B=1,H=2,HK=1,M=1,N=1")
    output = cuir(*command)
    assert output.code == 1 and "error[V307]" in output.err and "writes LSE" in output.err
    assert [d["code"] for d in cuir(*command, "--json").json["diagnostics"]] == ["V307"]
    path.write_text(path.read_text().replace("return ", "return {'LSE': None, 'O': ").replace("@ v", "@ v}"))
    assert cuir(*command).code == 0


def test_inputs_that_do_not_apply_are_refused(cuir: Callable) -> None:
    problem = ("--problem", "M=5,N=33,K=16")
    assert cuir("verify", "gemm", *SMALL, *problem, "--inputs", "offset").code == 0
    for kind, says in (
        ("faint", "no scalar keeps a root"),
        ("scaled", "no scalar called scale"),
        ("strided", "more dims"),
        ("edges", "no scalar is drawn"),
    ):
        output = cuir("verify", "gemm", *SMALL, *problem, "--inputs", kind)
        assert (
            output.code == 2 and "error[U100]" in output.err and says in " ".join(output.err.split()) and "these do: normal" in output.err
        )
    assert cuir("verify", "gemm", *SMALL, *problem, "--inputs", "near", "--data-seed", "1").code == 0
    for kind in ("faint", "hidden"):
        output = cuir("verify", "flash_fwd", "--head-dim", "64", "--problem", "B=1,H=2,HK=1,M=3,N=20", "--inputs", kind)
        assert output.code == 2 and "error[U100]" in output.err


def test_every_kind_of_inputs_is_given_to_an_attention(cuir: Callable) -> None:
    for kind in ("largest", "ties", "onehot"):
        output = cuir("verify", "flash_fwd", "--head-dim", "64", "--problem", "B=1,H=2,HK=1,M=3,N=20", "--inputs", kind)
        assert output.code == 0 and f"{kind} inputs" in output.out and "allowed" in output.out


def test_exhaustive_says_what_it_does_not_ask(cuir: Callable) -> None:
    output = cuir("verify", "gemm", *SMALL, "--exhaustive")
    assert output.code == 0 and "not asked: contracts, mask and numbers" in " ".join(output.out.split())
