"""`cuir bench` without a GPU: what it says, how it ends; and what of it needs none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from cuir.cli.commands.bench import _command
from cuir.performance.search.compiling import BuildResult
from cuir.performance.suites.suites import cell
from cuir.performance.timing.worker import WorkerLost
from cuir.runtime.cards import CARDS
from cuir.text.diagnostics import CuirError
from tests.stand_in_cards import stand_in

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="what is said where there is no GPU")


@pytest.mark.parametrize(
    ("call", "code"),
    [
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
        (("bench", "smoke", "--out", "results.svg"), "U108"),
        (("bench", "smoke"), "U501"),
        (("bench", "smoke", "-c", "D=96"), "U103"),
        (("bench", "smoke", "-c", "T=bf16"), "U103"),
    ],
)
def test_wrong_calls_of_bench(cuir: Callable, call: tuple[str, ...], code: str) -> None:
    output = cuir(*call, "--json")
    assert output.code == 2 and [d["code"] for d in output.json["diagnostics"]] == [code]


def test_without_a_gpu_bench_says_what_it_needs(cuir: Callable) -> None:
    output = cuir("bench", "smoke")
    assert (
        "a GPU that `cuir doctor` names kernels for" in output.err
        and "--show" in output.err
        and "--run" not in output.err
        and "--on" not in output.err
    )


@pytest.mark.parametrize(("capability", "arch"), [((8, 6), "sm_80"), ((9, 0), "sm_90a")])
def test_bench_asks_for_the_kernels_of_the_card(
    capability: tuple[int, int], arch: str, cuir: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def refuse(otherwise: str, arch: str) -> None:
        asked.append(arch)
        raise CuirError.of("U501", "no GPU", hint=otherwise)

    monkeypatch.setattr("cuir.performance.timing.gpu.require_gpu", refuse)
    with stand_in(CARDS[capability]):
        assert cuir("bench", "smoke").code == 2
    assert asked == [arch]


def test_show_makes_table_and_plot_of_results(cuir: Callable, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    row = {
        **cell("causal", "llama2-7b", 1024).as_json(),
        "contenders": {"cuir BM=64": {"tflops": 450.0, "consts": {}}, "cudnn": {"tflops": 400.0}},
    }
    head = {"suite": "smoke", "device": "a GPU", "dtype": "f16", "origin": "flash_fwd_sm90"}
    path.write_text("\n".join(map(json.dumps, (head, row))), encoding="utf-8")
    output = cuir("bench", "smoke", "--show", "--out", path)
    assert (
        output.code == 0
        and "flash_fwd_sm90 with T=f16 and D=128;" in output.out
        and "1.12 x" in output.out
        and "cuir / cudnn: 1.12" in output.out
    )
    assert "| 450 | 400 | 1.12 | BM=64 |" in path.with_suffix(".md").read_text(encoding="utf-8")
    path.with_suffix(".md").write_text("a table that someone has kept", encoding="utf-8")
    assert cuir("bench", "smoke", "--show", "--out", path).code == 0
    assert path.with_suffix(".md").read_text(encoding="utf-8") == "a table that someone has kept"
    second = cuir("bench", "flash", "--show", "--out", path)
    assert second.code == 2 and "the suite smoke, not of flash" in second.err
    row["contenders"]["cuir BM=64"] = {"wrong": "relative error 1"}
    path.write_text("\n".join(map(json.dumps, ({"suite": "smoke"}, row))), encoding="utf-8")
    assert cuir("bench", "smoke", "--show", "--out", path, "--json").code == 1


@pytest.mark.parametrize("text", ["no JSON\n", '{"else": 1}\n', None])
def test_show_of_another_file_gives_no_advice_for_a_run(cuir: Callable, tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "bad.jsonl"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    output = cuir("bench", "smoke", "--show", "--out", path)
    assert (
        output.code == 2
        and "a file that `cuir bench --out` has written" in output.err
        and "--fresh" not in output.err
        and "Errno" not in output.err
    )


def test_the_recorded_command_names_no_place() -> None:
    assert (
        _command(["bench", "flash", "--out", "/somewhere/r.jsonl", "--only", "causal", "--json", "--out=x"])
        == "cuir bench flash --only causal"
    )
    assert _command(["bench", "flash", "--reference", "/some/where"]) == _command(["bench", "flash", "--reference=/some/where"])


class Answers:
    """Stands for the processes of a machine with a GPU."""

    requests: ClassVar[list[dict]] = []

    def __init__(self, command: object) -> None:
        pass

    def __enter__(self) -> Answers:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ask(self, request: dict, seconds: float) -> dict:
        Answers.requests.append(json.loads(json.dumps(request)))
        if request["do"] != "cell":
            return {}
        settings = {f"cuir BM={s['BM']}": {"consts": s, "tflops": 400.0 + s["BM"]} for s in request["settings"]}
        rest = {p: {"tflops": 264.0} for p in request["peers"]} | ({"reference A": {"tflops": 528.0}} if request["reference"] else {})
        return {**cell(request["variant"], request["model"], request["shape"][3]).as_json(), "contenders": settings | rest}

    def close(self) -> None:
        pass


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Answers.requests.clear()
    monkeypatch.setattr("cuir.performance.timing.gpu.require_gpu", lambda *_: None)
    monkeypatch.setattr("cuir.performance.timing.worker.Worker", Answers)
    monkeypatch.setattr("cuir.performance.search.compile_all", lambda work, jobs: ((i, BuildResult()) for i, _ in enumerate(work)))
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("gpu")
def test_a_suite_from_the_command_line(cuir: Callable, tmp_path: Path) -> None:
    output = cuir("bench", "masks", "--only", "softcap_causal", "--only", "1024", "--jobs", "2", "--out", "r.jsonl")
    assert output.code == 0 and "cuir / flex: 2.77 in the geometric mean of 4 rows, smallest 2.24" in output.out
    assert output.out.count("flex 264 (2.97 x)") == 3 and output.out.count("flex 264 (2.24 x)") == 1
    assert "8 kernels" not in output.out + output.err and "softcap_causal" not in output.err, "no progress where there is no terminal"
    primed, timed = ([r for r in Answers.requests if r["do"] == kind] for kind in ("prime", "cell"))
    assert len(primed) == len(timed) == 4 and Answers.requests.index(timed[0]) == 4, "all else is compiled before the first is timed"
    assert {tuple(s["BM"] for s in r["settings"]) for r in timed} == {(128, 192, 384), (128, 192)}, "the starts of the kernel's space"
    assert "| all | 2.77 (2.24) |" in (tmp_path / "r.md").read_text(encoding="utf-8")
    assert cuir("bench", "masks", "--only", "softcap_causal", "--only", "1024", "--out", "r.jsonl").code == 0
    assert len(Answers.requests) == 8, "what was measured is not measured again"


@pytest.mark.usefixtures("gpu", "terminal")
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
    output = cuir("bench", "masks", "--only", "softcap_causal", "--only", "1024", "--only", "hd64", "--out", "r.jsonl")
    assert output.code == 0 and "failed: softcap_causal hd64 1024: flex: hangs: no answer within 30 s" in output.out
    assert output.err.count("softcap_causal hd64 1024: flex: hangs: no answer within 30 s; once more without it\n") == 1
    (row,) = [line for line in (tmp_path / "r.md").read_text(encoding="utf-8").splitlines() if line.startswith("| softcap_causal")]
    assert "| hangs: no answer within 30 s |" in row


@pytest.mark.usefixtures("gpu")
def test_an_interrupted_suite_says_where_its_rows_are(cuir: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*of: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cuir.performance.suites.suite_run.run_cells", interrupt)
    output = cuir("bench", "smoke", "--out", "r.jsonl")
    assert output.code == 130 and output.err.endswith("\ninterrupted; the same command goes on from r.jsonl\n")


@pytest.mark.usefixtures("gpu")
def test_a_reference_from_the_command_line(cuir: Callable, tmp_path: Path) -> None:
    (tmp_path / "bench_ref.py").write_text(
        "SETS = {'golden': {'A': {'D': 64}, 'B': {'D': 64, 'CAUSAL': 1}, 'C': {'D': 128}}}\nKernel = print\n"
    )
    call = ("bench", "flash", "--only", "full", "--only", "hd64", "--only", "2048", "--reference", tmp_path, "--out", "r.jsonl", "--json")
    report = cuir(*call).json
    assert [(r["do"], r.get("name")) for r in Answers.requests] == [("prime_reference", "A"), ("cell", None)], (
        "what no cell needs is not built"
    )
    assert report["means"]["all"]["reference"]["smallest"] == (400 + 192) / 528 and report["rows"][0]["asked"] == [
        "cudnn",
        "fa2",
        "reference",
    ]
    (wrong,) = cuir("bench", "flash", "--reference", "nowhere", "--json").json["diagnostics"]
    assert wrong["code"] == "U121"
