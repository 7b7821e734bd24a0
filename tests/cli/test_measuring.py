"""tune and bench without a GPU: what they say, how they end; and what of them needs none."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from cuir.cli.measuring import _command
from cuir.performance.search.compiling import BuildResult
from cuir.performance.suites.suites import cell
from cuir.performance.timing.worker import WorkerLost

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="what is said where there is no GPU")


def test_dry_run_lists_what_fits_and_why_others_do_not(cuir: Callable) -> None:
    shown = cuir(
        "tune", "prefix_lm", "--shape", "1,8,8,512,512,128", "-c", "BM=128,DYNAMIC=false,PINGPONG=false,L2=1", "--dry-run", "--json"
    )
    assert shown.code == 0 and not shown.err
    (report,) = shown.json["tuned"]
    status = {(c["consts"]["BN"], c["consts"]["QBUF"], c["consts"]["STAGES"]): c["status"] for c in report["candidates"]}
    assert set(status.values()) == {"fits", "pruned"} and shown.json["missing"] is None
    assert all("M301" in c["why"] for c in report["candidates"] if c["status"] == "pruned")
    assert all("BM" not in c["consts"] for c in report["candidates"]), "what is given is not a candidate"


def test_a_dry_run_tells_what_goes_on(cuir: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cuir.cli.measuring_view.SILENCE", 0.0)
    shown = cuir(
        "tune",
        "full",
        "--shape",
        "1,8,8,512,512,64",
        "-c",
        "BM=64,QBUF=1,STAGES=2,STAGED=true,AHEAD=true,DYNAMIC=false,PINGPONG=false",
        "--dry-run",
    )
    assert shown.code == 0 and "check 1 of 16: BN=64,CLUSTER=1" in shown.err and "check 16 of 16" in shown.err
    assert all(sum(map(int, re.findall(r"(\d+) (?:fit|pruned|not checked yet)", line))) == 16 for line in shown.err.splitlines()[1:])
    assert re.search(r"^\d+ fit", shown.out)


def test_ctrl_c_ends_it_with_a_line(cuir: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*of: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cuir.performance.search.search.find_violation", interrupted)
    shown = cuir("tune", "causal", "--dry-run")
    assert shown.code == 130 and shown.err.endswith("\ninterrupted\n")


def test_without_a_gpu_the_static_part_runs_and_says_what_is_missing(cuir: Callable) -> None:
    shown = cuir("tune", "flash_fwd_sm90", "--shape", "1,8,8,512,512,64", "-c", "BM=64,QBUF=1,STAGES=2,DYNAMIC=false,PINGPONG=false,L2=1")
    assert shown.code == 0 and "BN=64" in shown.out
    assert "a Hopper GPU would" in " ".join(shown.err.split()).replace("A Hopper", "a Hopper")


@pytest.mark.parametrize(("call", "code"), [
    (("tune", "causal", "--shape", "1,2,3"), "U116"),
    (("tune", "causal", "--shape", "1,2,2,64,64,264"), "U110"),
    (("tune", "causal", "--dtype", "i32"), "U109"),
    (("tune", "nothing_of_that_name"), "U102"),
    (("tune", "nothing.cuir"), "U201"),
    (("tune", "causal", "--origin", "nothing"), "U101"),
    (("tune", "causal", "--origin", "gemm"), "U115"),
    (("tune", "flash_fwd_sm90", "--variant", "nothing_of_that_name", "--dry-run"), "U102"),
    (("tune", "flash_fwd_sm90", "--variant", "flash_fwd_sm90", "--dry-run"), "U102"),
    (("tune", "flash_fwd_sm90", "flash_fwd_sm80", "--variant", "causal", "--dry-run"), "U100"),
    (("tune", "flash_fwd_sm90", "--origin", "flash_fwd", "--variant", "causal", "--dry-run"), "U100"),
    (("tune", "causal", "--space", "nothing.json"), "U115"),
    (("bench", "nothing"), "U117"),
    (("bench", "smoke", "--peer", "nothing"), "U118"),
    (("bench", "smoke", "--only", "nothing"), "U100"),
    (("bench", "flash", "--peer", "deterministic"), "U118"),
    (("bench", "backward", "-c", "BM=64"), "U100"),
    (("bench", "backward", "--reference", "nothing"), "U100"),
    (("bench", "backward"), "U501"),
    (("bench", "smoke", "--show"), "U100"),
    (("bench", "smoke", "--show", "--out", "nothing.jsonl", "--fresh"), "U100"),
    (("bench", "smoke", "--show", "--out", "nothing.jsonl"), "U119"),
    (("bench", "smoke", "--rounds", "0"), "U100"),
    (("bench", "smoke", "--limit", "-3"), "U100"),
    (("tune", "causal", "--jobs", "0", "--dry-run"), "U100"),
    (("bench", "smoke", "--out", "results.svg"), "U108"),
    (("bench", "smoke"), "U501"),
    (("bench", "smoke", "-c", "D=96"), "U103"),
    (("bench", "smoke", "-c", "T=bf16"), "U103"),
    (("tune", "causal", "-c", "D=64", "--dry-run"), "U103"),
    (("tune", "causal", "-c", "T=bf16", "--dry-run"), "U103"),
])  # fmt: skip
def test_calls_that_are_wrong(cuir: Callable, call: tuple[str, ...], code: str) -> None:
    shown = cuir(*call, "--json")
    assert shown.code == 2 and [d["code"] for d in shown.json["diagnostics"]] == [code]


def test_without_a_gpu_bench_says_what_it_needs(cuir: Callable) -> None:
    shown = cuir("bench", "smoke")
    assert "Hopper GPU and nvcc" in shown.err and "--show" in shown.err and "--run" not in shown.err and "--on" not in shown.err


def test_a_space_of_ones_own(cuir: Callable, tmp_path: Path) -> None:
    space = tmp_path / "own.json"
    space.write_text('{"axes": [{"BM": [64, 128]}]}', encoding="utf-8")
    shown = cuir("tune", "full", "--shape", "1,8,8,512,512,64", "--space", space, "--dry-run", "--json")
    assert [c["consts"] for c in shown.json["tuned"][0]["candidates"]] == [{"BM": 64}, {"BM": 128}]
    assert (
        cuir("tune", "flash_fwd_sm90", "--space", space, "--json").json["diagnostics"][0]["code"] == "U115"
    )  # it does not say what the kernel computes


def test_a_kernel_is_tuned_for_variants(cuir: Callable, tmp_path: Path) -> None:
    """Kernel first, or variant first: one meaning."""
    space = tmp_path / "own.json"
    space.write_text('{"axes": [{"BM": [64, 128]}]}', encoding="utf-8")
    rest = ("--shape", "1,8,8,512,512,64", "--space", space, "--dry-run", "--json")
    shown = cuir("tune", "flash_fwd", "--variant", "causal", "--variant", "alibi", *rest).json
    other = cuir("tune", "causal", "alibi", "--origin", "flash_fwd", *rest).json
    assert [t["target"] for t in shown["tuned"]] == ["causal", "alibi"]
    assert all(len(t["candidates"]) == 2 for t in shown["tuned"])
    for t in (*shown["tuned"], *other["tuned"]):
        t["seconds"] = 0
    assert shown == other


def test_show_makes_table_and_plot_of_results(cuir: Callable, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    row = {
        **cell("causal", "llama2-7b", 1024).as_json(),
        "contenders": {"cuir BM=64": {"tflops": 450.0, "consts": {}}, "cudnn": {"tflops": 400.0}},
    }
    path.write_text("\n".join(map(json.dumps, ({"suite": "smoke", "device": "a GPU"}, row))), encoding="utf-8")
    shown = cuir("bench", "smoke", "--show", "--out", path)
    assert shown.code == 0 and "1.12 x" in shown.out and "cuir / cudnn: 1.12" in shown.out
    assert "| 450 | 400 | 1.12 | BM=64 |" in path.with_suffix(".md").read_text(encoding="utf-8")
    path.with_suffix(".md").write_text("a table that someone has kept", encoding="utf-8")
    assert cuir("bench", "smoke", "--show", "--out", path).code == 0
    assert path.with_suffix(".md").read_text(encoding="utf-8") == "a table that someone has kept"
    other = cuir("bench", "flash", "--show", "--out", path)
    assert other.code == 2 and "the suite smoke, not of flash" in other.err
    row["contenders"]["cuir BM=64"] = {"wrong": "relative error 1"}
    path.write_text("\n".join(map(json.dumps, ({"suite": "smoke"}, row))), encoding="utf-8")
    assert cuir("bench", "smoke", "--show", "--out", path, "--json").code == 1


@pytest.mark.parametrize("text", ["no JSON\n", '{"else": 1}\n', None])
def test_show_of_another_file_gives_no_advice_for_a_run(cuir: Callable, tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "bad.jsonl"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    shown = cuir("bench", "smoke", "--show", "--out", path)
    assert (
        shown.code == 2
        and "a file that `cuir bench --out` has written" in shown.err
        and "--fresh" not in shown.err
        and "Errno" not in shown.err
    )


def test_the_recorded_command_names_no_place() -> None:
    assert (
        _command(["bench", "flash", "--out", "/somewhere/r.jsonl", "--only", "causal", "--json", "--out=x"])
        == "cuir bench flash --only causal"
    )
    assert _command(["bench", "flash", "--reference", "/some/where"]) == _command(["bench", "flash", "--reference=/some/where"])


class Answers:
    """Stands for the processes of a machine with a GPU."""

    asked: ClassVar[list[dict]] = []

    def __init__(self, command: object) -> None:
        pass

    def __enter__(self) -> Answers:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ask(self, request: dict, seconds: float) -> dict:
        Answers.asked.append(json.loads(json.dumps(request)))
        if request["do"] != "cell":
            return {}
        settings = {f"cuir BM={s['BM']}": {"consts": s, "tflops": 400.0 + s["BM"]} for s in request["settings"]}
        others = {p: {"tflops": 264.0} for p in request["peers"]} | ({"reference A": {"tflops": 528.0}} if request["reference"] else {})
        return {**cell(request["variant"], request["model"], request["shape"][3]).as_json(), "contenders": settings | others}

    def close(self) -> None:
        pass


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Answers.asked.clear()
    monkeypatch.setattr("cuir.performance.timing.gpu.require_gpu", lambda *_: None)
    monkeypatch.setattr("cuir.performance.timing.worker.Worker", Answers)
    monkeypatch.setattr("cuir.performance.search.compile_all", lambda work, jobs: ((i, BuildResult()) for i, _ in enumerate(work)))
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("gpu")
def test_a_suite_from_the_command_line(cuir: Callable, tmp_path: Path) -> None:
    shown = cuir("bench", "masks", "--only", "softcap_causal", "--only", "1024", "--jobs", "2", "--out", "r.jsonl")
    assert shown.code == 0 and "cuir / flex: 2.77 in the geometric mean of 4 rows, smallest 2.24" in shown.out
    assert (
        shown.err.count("flex 264 (2.97 x)") == 3
        and shown.err.count("flex 264 (2.24 x)") == 1
        and "8 kernels" not in shown.out
        and "4 of 4  softcap_causal" in shown.err
    )
    primed, timed = ([r for r in Answers.asked if r["do"] == kind] for kind in ("prime", "cell"))
    assert len(primed) == len(timed) == 4 and Answers.asked.index(timed[0]) == 4, "all else is compiled before the first is timed"
    assert {tuple(s["BM"] for s in r["settings"]) for r in timed} == {(128, 192, 384), (128, 192)}, "the starts of the kernel's space"
    assert "| all | 2.77 (2.24) |" in (tmp_path / "r.md").read_text(encoding="utf-8")
    assert cuir("bench", "masks", "--only", "softcap_causal", "--only", "1024", "--out", "r.jsonl").code == 0
    assert len(Answers.asked) == 8, "what was measured is not measured again"


@pytest.mark.usefixtures("gpu")
def test_a_contender_that_hangs_is_told_and_costs_its_entry(cuir: Callable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Hanging(Answers):
        def ask(self, request: dict, seconds: float) -> dict:
            answer = super().ask(request, seconds)
            if request["do"] == "cell" and "flex" not in request["lost"]:
                raise WorkerLost("hangs", "no answer within 30 s", "flex")
            if request["do"] == "cell":
                answer["contenders"]["flex"] = {"failed": request["lost"]["flex"]}
            return answer

    monkeypatch.setattr("cuir.performance.timing.worker.Worker", Hanging)
    monkeypatch.setattr("cuir.cli.measuring_view.SILENCE", 0.0)
    shown = cuir("bench", "masks", "--only", "softcap_causal", "--only", "1024", "--only", "hd64", "--out", "r.jsonl")
    assert shown.code == 0 and "failed: softcap_causal hd64 1024: flex: hangs: no answer within 30 s" in shown.out
    assert shown.err.count("softcap_causal hd64 1024: flex: hangs: no answer within 30 s; once more without it\n") == 1
    (row,) = [line for line in (tmp_path / "r.md").read_text(encoding="utf-8").splitlines() if line.startswith("| softcap_causal")]
    assert "| hangs: no answer within 30 s |" in row


@pytest.mark.usefixtures("gpu")
def test_an_interrupted_suite_says_where_its_rows_are(cuir: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*of: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cuir.performance.suites.running.run_cells", interrupted)
    shown = cuir("bench", "smoke", "--out", "r.jsonl")
    assert shown.code == 130 and shown.err.endswith("\ninterrupted; the same command goes on from r.jsonl\n")


@pytest.mark.usefixtures("gpu")
def test_a_reference_from_the_command_line(cuir: Callable, tmp_path: Path) -> None:
    (tmp_path / "bench_ref.py").write_text(
        "SETS = {'golden': {'A': {'D': 64}, 'B': {'D': 64, 'CAUSAL': 1}, 'C': {'D': 128}}}\nKernel = print\n"
    )
    call = ("bench", "flash", "--only", "full", "--only", "hd64", "--only", "2048", "--reference", tmp_path, "--out", "r.jsonl", "--json")
    report = cuir(*call).json
    assert [(r["do"], r.get("name")) for r in Answers.asked] == [("prime_reference", "A"), ("cell", None)], (
        "what no cell needs is not built"
    )
    assert report["means"]["all"]["reference"]["smallest"] == (400 + 192) / 528 and report["rows"][0]["asked"] == [
        "cudnn",
        "fa2",
        "reference",
    ]
    (wrong,) = cuir("bench", "flash", "--reference", "nowhere", "--json").json["diagnostics"]
    assert wrong["code"] == "U121"
