"""cuda check: findings with both lines and a replay, what never ran, numbers beside PyTorch, and a message for every wrong call."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from cuir.ptx.machine.lane_machine import Machine
from cuir.text.diagnostics import CuirError
from tests.campaigns.calls import Shuffled
from tests.cli.conftest import CapturedOutput

SOURCE = r"""
extern "C" __global__ void scale(const float* x, float* y, int n, float factor) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * factor;
    if (n < 0) {
        for (int j = 0; j < 100; j++) y[j * i] = 1.0f;
    }
}
extern "C" __global__ void reverse(const float* x, float* y) {
    __shared__ float s[64];
    s[threadIdx.x] = x[threadIdx.x];
    y[threadIdx.x] = s[63 - threadIdx.x];
}
extern "C" __global__ void add_up(const float* x, float* sum) {
    atomicAdd(sum, x[threadIdx.x]);
}
"""
LAUNCHES = """
import torch
from cuir.cuda import KernelCall

def launch():
    x = torch.randn(200)
    return KernelCall(2, 128, x, torch.zeros(200), 200, 3.0, kernel="scale")

def reverse():
    return KernelCall(1, 64, torch.randn(64), torch.zeros(64), kernel="reverse")

def both():
    x, y, sum = torch.randn(128), torch.zeros(128), torch.zeros(1)
    return [KernelCall(1, 128, x, y, 128, 2.0, kernel="scale"), KernelCall(1, 128, y, sum, kernel="add_up")]

def reference(x, y, n, factor):
    return x * factor

def wrong(x, y, n, factor):
    y[:] = x * factor
    y[17] += 1

def sums(x, y, n, factor, sum):
    return x * factor, (x * factor).sum()[None]

def two(x, y, n, factor):
    return x, y

def narrow(x, y, n, factor):
    return x[:100]

def number(x, y, n, factor):
    return 3

def broken(*arguments):
    raise ValueError("no such luck")

def nothing():
    return 3

def few():
    return KernelCall(1, 64, torch.randn(64), kernel="reverse")

def strange():
    return KernelCall(1, 64, torch.randn(64), "y", kernel="reverse")

def short():
    return KernelCall(1, 64, torch.randn(64), torch.zeros(8), kernel="reverse")
"""
Command = Callable[..., CapturedOutput]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with kernels and launches."""
    path = tmp_path_factory.mktemp("kernels")
    (path / "k.cu").write_text(SOURCE, encoding="utf-8")
    (path / "l.py").write_text(LAUNCHES, encoding="utf-8")
    return path


@pytest.fixture
def check(cuir: Command, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """`check("--launch", "l.py")` within the folder."""
    monkeypatch.chdir(folder)
    return lambda *words: cuir("cuda", "check", *words)


@pytest.mark.nvcc
def test_a_right_kernel_is_reported_with_what_was_run_and_what_was_not(check: Command) -> None:
    output = check("k.cu", "--launch", "l.py", "--against", "l.py", "--schedules", "4")
    assert output.code == 0 and not output.err
    assert "ok  k.cu: 4 launches of 8 CTAs in all, 4 schedules to the end" in output.out
    assert "not judged" in output.out and "of k.cu, which never ran: 6" in output.out
    assert "numbers     y: " in output.out and "the same under every schedule" in output.out


@pytest.mark.nvcc
def test_a_missing_barrier_is_told_with_both_lines_and_a_command_that_repeats_it(check: Command, cuir: Command) -> None:
    output = check("k.cu", "--launch", "l.py:reverse", "--schedules", "5")
    assert output.code == 1 and "error[R401]" in output.err and "__syncthreads()" in output.err
    assert "s[threadIdx.x] = x[threadIdx.x];" in output.err and "y[threadIdx.x] = s[63 - threadIdx.x];" in output.err
    replay = next(line.partition("replay: ")[2] for line in output.err.splitlines() if "replay: " in line)
    again = cuir(*shlex.split(replay)[1:])
    assert again.code == 1 and "error[R401]" in again.err and "1 launch of 1 CTA in all" in again.out


@pytest.mark.nvcc
def test_launches_in_a_row_share_tensors_and_an_order_of_atomics_shows_in_bits(check: Command) -> None:
    output = check("k.cu", "--launch", "l.py:both", "--against", "l.py:sums", "--schedules", "6", "--json")
    assert output.code == 0 and not output.err
    data = output.json
    assert data["ok"] and data["launches"] == 12 and len(data["schedules"]) == 6 and data["varying"] == ["sum"]
    assert [row["name"] for row in data["numbers"]] == ["y", "sum"] and all(r["error"] <= r["allowed"] for r in data["numbers"])
    assert data["not_run"][0]["lines"] == [[6, 6]]


@pytest.mark.nvcc
@pytest.mark.parametrize("words", [("l.py:reverse",), ("l.py:both", "--against", "l.py:sums")], ids=["faulty", "varying"])
def test_tasks_find_what_one_process_finds(check: Command, tmp_path: Path, words: tuple[str, ...]) -> None:
    """Also when the command resumes: findings with their lines, what ran, numbers, and bits."""
    call, path = ("k.cu", "--schedules", "5", "--launch", *words), tmp_path / "journal.jsonl"
    plain, kept = check(*call), check(*call, "--journal", path)
    assert (kept.code, kept.out, kept.err) == (plain.code, plain.out, plain.err)
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 6
    path.write_bytes(b"".join(lines[:3]) + lines[3][:30])
    assert check(*call, "--journal", path, "--json").json == check(*call, "--json").json
    assert [json.loads(line)["id"] for line in path.read_bytes().splitlines()[1:]] == [json.loads(line)["id"] for line in lines[1:]]
    other = check(*call[:-1], "l.py", "--journal", path) if len(words) == 1 else check(*call, "--tolerance", "1", "--journal", path)
    assert other.code == 2 and "U122" in other.err and "--journal" in other.err


@pytest.mark.nvcc
def test_an_interruption_keeps_what_tasks_found(check: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cuir.cli.task_places.make_executor", lambda on, jobs: Shuffled([2, 0], stop=1))
    output = check("k.cu", "--launch", "l.py:reverse", "--journal", tmp_path / "journal.jsonl")
    assert output.code == 130 and "error[R401]" in output.err and "1 schedule to the end" in output.out
    assert f"the same command goes on from {tmp_path}" in output.out


@pytest.mark.nvcc
def test_each_schedule_begins_with_fresh_variables(check: Command, folder: Path) -> None:
    """Values that a schedule leaves in global variables must not reach the next one."""
    text = '__device__ int calls;\nextern "C" __global__ void count(int* y) { y[0] = calls++; }'
    (folder / "count.cu").write_text(text, encoding="utf-8")
    launch = "import torch\nfrom cuir.cuda import KernelCall\ndef launch():\n    y = torch.zeros(1, dtype=torch.int32)\n"
    (folder / "count.py").write_text(f"{launch}    return [KernelCall(1, 1, y), KernelCall(1, 1, y)]\n", encoding="utf-8")
    (folder / "one.py").write_text("def reference(y):\n    return y * 0 + 1\n", encoding="utf-8")
    output = check("count.cu", "--launch", "count.py", "--against", "one.py", "--schedules", "3", "--json")
    assert output.code == 0 and output.json["varying"] == []


@pytest.mark.nvcc
def test_wrong_numbers_are_refused(check: Command) -> None:
    output = check("k.cu", "--launch", "l.py", "--against", "l.py:wrong", "--schedules", "1")
    assert output.code == 1 and "error[V301]: y[17] is " in output.err and "1 of 200 elements" in output.err
    loose = check("k.cu", "--launch", "l.py", "--against", "l.py:wrong", "--tolerance", "1", "--schedules", "1")
    assert loose.code == 0


@pytest.mark.nvcc
def test_without_a_launch_a_template_is_printed_that_runs(check: Command, folder: Path) -> None:
    output = check("k.cu", "-k", "scale")
    assert output.code == 2 and "const float* x, float* y, int n, float factor" in output.err and "--launch mine.py" in output.err
    (folder / "mine.py").write_text(output.out, encoding="utf-8")
    assert check("k.cu", "-k", "scale", "--launch", "mine.py", "--schedules", "1").code == 0
    data = check("k.cu", "-k", "scale", "--json").json
    assert [p["type"] for p in data["parameters"]] == ["const float*", "float*", "int", "float"] and data["template"] == output.out


WRONG = [
    (("none.cu",), "U201", "no file `none.cu`"),
    ((".",), "U202", "is a folder"),
    (("a.cuir",), "U100", "no CUDA"),
    (("bad.cu", "--launch", "l.py"), "O121", "expected a"),
    (("k.cu",), "O124", "3 kernels"),
    (("k.cu", "-k", "nothing", "--launch", "l.py:few"), "U401", "takes 2 arguments, found 1"),
    (("k.cu", "-k", "nothing"), "O124", "no kernels of `k.cu` are called `nothing`"),
    (("k.cu", "--launch", "none.py"), "X111", "no file"),
    (("k.cu", "--launch", "k.cu"), "X110", "FILE.py"),
    (("k.cu", "--launch", "l.py:absent"), "X112", "no function `absent`"),
    (("k.cu", "--launch", "l.py:nothing"), "O120", "returns a KernelCall"),
    (("k.cu", "--launch", "l.py:broken"), "X113", "no such luck"),
    (("k.cu", "--launch", "l.py:strange"), "U401", "found str"),
    (("k.cu", "--launch", "l.py", "--schedule", "odd"), "U111", "no such schedule"),
    (("k.cu", "--launch", "l.py", "--against", "l.py:broken"), "X113", "no such luck"),
    (("k.cu", "--launch", "l.py", "--against", "l.py:two"), "X106", "returns 2 results, the launch writes 1 tensors: y"),
    (("k.cu", "--launch", "l.py", "--against", "l.py:narrow"), "X106", "shape [100]"),
    (("k.cu", "--launch", "l.py", "--against", "l.py:number"), "X106", "int, no tensor"),
    (("k.cu", "-D", "a b"), "U103", "-D takes"),
    (("k.cu", "--against", "l.py"), "U100", "--launch"),
    (("unknown.ptx", "--launch", "p.py"), "O123", "does not know the instruction `frobnicate.b32`"),
    (("text.ptx", "--launch", "p.py"), "O122", "must have a __global__ function"),
    (("binary.ptx", "--launch", "p.py"), "U203", "is not UTF-8"),
]
PTX = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p) {
    .reg .b32 %r<3>;
    mov.u32 %r1, %tid.x;
    frobnicate.b32 %r2, %r1;
    ret;
}
"""


@pytest.mark.nvcc
@pytest.mark.parametrize(("words", "code", "part"), WRONG, ids=[" ".join(w) for w, _, _ in WRONG])
def test_each_wrong_call_says_what_is_wrong(check: Command, folder: Path, words: tuple[str, ...], code: str, part: str) -> None:
    (folder / "bad.cu").write_text("__global__ void f(int* x) { x[0] = 1 }\n", encoding="utf-8")
    (folder / "a.cuir").write_text("", encoding="utf-8")
    (folder / "unknown.ptx").write_text(PTX, encoding="utf-8")
    (folder / "text.ptx").write_text("nothing of PTX\n", encoding="utf-8")
    (folder / "binary.ptx").write_bytes(b"\xff\xfe\x00")
    (folder / "p.py").write_text(
        "import torch, cuir.cuda\nlaunch = lambda: cuir.cuda.KernelCall(1, 32, torch.zeros(32))\n", encoding="utf-8"
    )
    output = check(*words)
    assert output.code == 2 and f"error[{code}]" in output.err and part in output.err
    assert " = hint: " in output.err or code == "X113"  # which shows the line of the user's code
    as_json = check(*words, "--json")
    assert as_json.code == 2 and as_json.json["diagnostics"][0]["code"] == code


@pytest.mark.nvcc
def test_an_address_past_the_end_is_a_finding(check: Command) -> None:
    output = check("k.cu", "--launch", "l.py:short", "--schedules", "2")
    assert output.code == 1 and "error[M402]" in output.err and "bytes behind" in output.err and "0 schedules to the end" in output.out


def test_without_nvcc_it_says_what_to_install_and_ptx_runs(check: Command, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> str:
        raise CuirError.of("U503", "nvcc is needed", hint="install a CUDA toolkit")

    monkeypatch.setattr("cuir.ptx.launch.compile_ptx.find_nvcc", refuse)
    output = check("k.cu", "--launch", "l.py")
    assert output.code == 2 and "error[U503]" in output.err and "install a CUDA toolkit" in output.err
    (folder / "good.ptx").write_text(PTX.replace("frobnicate", "not"), encoding="utf-8")
    (folder / "g.py").write_text(
        "import torch, cuir.cuda\nlaunch = lambda: cuir.cuda.KernelCall(1, 32, torch.zeros(32))\n", encoding="utf-8"
    )
    assert check("good.ptx", "--launch", "g.py", "--schedules", "2").code == 0


@pytest.mark.nvcc
@pytest.mark.parametrize("as_json", [False, True])
def test_ctrl_c_keeps_what_was_found(check: Command, monkeypatch: pytest.MonkeyPatch, as_json: bool) -> None:
    runs, run = [0], Machine.run

    def interrupted(machine: Machine) -> None:
        runs[0] += 1
        if runs[0] == 2:
            raise KeyboardInterrupt
        run(machine)

    monkeypatch.setattr(Machine, "run", interrupted)
    output = check("k.cu", "--launch", "l.py:reverse", *["--json"][: int(as_json)])
    assert output.code == 130
    if as_json:
        assert output.json["interrupted"] and output.json["diagnostics"][0]["code"] == "R401" and not output.json["ok"]
    else:
        assert "error[R401]" in output.err and "interrupted" in output.err and "1 schedule to the end" in output.out


STORE = """.version 8.0
.target sm_90
.address_size 64
.visible .entry save(.param .u64 y) {
    .reg .b32 %r<3>;
    .reg .b64 %d<2>;
    .shared .align 16 .b8 from[16];
    ld.param.u64 %d1, [y];
    mov.u32 %r1, 7;
    st.shared.v4.u32 [from], {%r1, %r1, %r1, %r1};
    fence.proxy.async.shared::cta;
    cp.async.bulk.global.shared::cta.bulk_group [%d1], [from], 16;
    cp.async.bulk.commit_group;
    ret;
}
"""
SAVE = """import torch

from cuir.cuda import KernelCall


def launch():
    return KernelCall(1, 1, torch.zeros(4, dtype=torch.int32))
"""


def test_a_warning_is_shown_and_the_kernel_is_right(check: Command, folder: Path) -> None:
    (folder / "save.ptx").write_text(STORE, encoding="utf-8")
    (folder / "save.py").write_text(SAVE, encoding="utf-8")
    output = check("save.ptx", "--launch", "save.py")
    assert output.code == 0 and output.err.count("warning[M416]") == 1
    assert "ok  save.ptx: 1 warning, 8 launches" in output.out
    data = check("save.ptx", "--launch", "save.py", "--json").json
    assert data["ok"] and not data["diagnostics"] and [d["code"] for d in data["warnings"]] == ["M416"]
