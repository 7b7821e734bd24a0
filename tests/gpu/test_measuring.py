"""Tuning and benchmarks on a GPU: a small search from the command line to the kept setting, a candidate that is wrong, one cell of a suite.

The main job's last step on a GPU: numbers checked against float64, times beside PyTorch's kernels.
"""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import pytest

import corpus
from cuir import Program, check, parse, transfer, tuned
from cuir.attn.splicing.splice import TransferResult
from cuir.cli import run as command
from cuir.cli.command_inputs import read_variant
from cuir.performance.search.candidate_runs import LocalDevice
from cuir.performance.suites import contest as module
from cuir.performance.suites.cell_benchmark import Cell, Contenders, Timing, measure_cell
from cuir.performance.timing.problem import Shape
from cuir.spec.loading import as_specification
from cuir.syntax.types import F16
from tests.gpu import priming_cases
from tests.gpu.isolation import run_isolated

pytestmark = pytest.mark.gpu
SHAPE = Shape(2, 8, 2, 1024, 1024, 64)
SETTING = {"T": F16, "D": 64, "BM": 128, "BN": 128}


def origin() -> Program:
    return parse(corpus.kernels()["flash_fwd_sm90"].read_text(encoding="utf-8"), "flash_fwd_sm90.cuir")


def transfer_variant(variant: str) -> TransferResult:
    return transfer(origin(), read_variant(variant, ()))


def test_a_small_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setenv("CUIR_CACHE", str(tmp_path))
    space = tmp_path / "space.json"
    space.write_text('{"axes": [{"BM": [64, 128]}, {"BN": [64, 128]}], "starts": [{"BM": 64, "BN": 64}]}', encoding="utf-8")
    call = ["tune", "prefix_lm", "--shape", str(SHAPE), "--space", str(space), "--json"]
    assert command(call) == 0
    (report,) = json.loads(capsys.readouterr().out)["tuned"]
    assert report["complete"] and {c["status"] for c in report["candidates"]} <= {"timed", "flawed"}
    assert {k: report["best"]["consts"][k] for k in ("BM", "BN")} == tuned(transfer_variant("prefix_lm").program, SHAPE)
    assert command(call) == 0
    assert json.loads(capsys.readouterr().out)["tuned"][0]["seconds"] < report["seconds"], "the second goes on where the first ended"


def test_programs_compete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """A start of small tiles; the kernel as it stands is faster, and with one stage it is slower than that."""
    monkeypatch.setenv("CUIR_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    Path("space.json").write_text('{"axes": [{"BM": [64]}], "starts": [{"BM": 64, "BN": 64}]}', encoding="utf-8")
    text = corpus.kernels()["flash_fwd_sm90"].read_text(encoding="utf-8")
    Path("slow.cuir").write_text(text.replace("STAGES: const = 2", "STAGES: const = 1"), encoding="utf-8")
    Path("wrong.cuir").write_text(text.replace("k_empty[s].wait(phase ^ 1)", "k_empty[s].wait(phase)"), encoding="utf-8")
    words = [w for name in ("flash_fwd_sm90", "slow.cuir", "wrong.cuir") for w in ("--proposal", name)]
    assert command(["tune", "causal", "--shape", "2,16,16,4096,4096,128", "--space", "space.json", *words, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [e["status"] for e in data["entries"]] == ["faster", "slower"] and data["speedup"] > 1.1
    assert [p["stage"] for p in data["proposals"]] == ["passed", "speed", "schedules"]
    assert "BM: const = 128" in Path(data["files"]["tuned.cuir"]).read_text(encoding="utf-8")


def test_a_wrong_candidate_is_seen() -> None:
    right, second = transfer_variant("causal"), transfer_variant("full")
    assert LocalDevice(right, None, SHAPE, "f16").check(SETTING) == ("right", "")

    device = LocalDevice(right, None, SHAPE, "f16")
    device.transferred = second
    status, why = device.check(SETTING)
    assert status == "wrong" and "relative error" in why


@pytest.mark.parametrize("variant", ["causal", "causal_document", "softcap"])
def test_a_cell(variant: str) -> None:
    peers = ("cudnn", "fa2", "flex", "compiled")
    row = measure_cell(Cell(variant, {}, "small", SHAPE), transfer_variant(variant), "f16", Contenders([SETTING], peers), Timing(rounds=1))
    expected = {"cuir BM=128,BN=128", "flex", "compiled"} | ({"cudnn", "fa2"} if variant == "causal" else set())
    assert set(row["contenders"]) == expected
    assert all(c["tflops"] > 0 and c["error"] <= row["bound"] for c in row["contenders"].values())


def test_what_one_process_compiles_the_next_finds(tmp_path: Path) -> None:
    assert run_isolated(priming_cases.prime, str(tmp_path)) == ""
    assert run_isolated(priming_cases.hits_and_misses, str(tmp_path)) == [2, 0]


@pytest.mark.parametrize(
    ("variant", "peers"),
    [
        ("full", {"cudnn", "fa2", "flex"}),
        ("causal", {"cudnn", "fa2", "dense", "flex"}),
        ("prefix_lm", {"dense", "flex"}),
        ("softcap", {"flex"}),
    ],
)
def test_compare(monkeypatch: pytest.MonkeyPatch, variant: str, peers: set[str]) -> None:
    monkeypatch.setattr(module, "LENGTH", 1024)
    monkeypatch.setattr(module, "HEADS", 4)
    origin = parse((files("corpus") / "kernels" / "flash_fwd_sm90.cuir").read_text(encoding="utf-8"))
    transferred = transfer(origin, as_specification(corpus.variant(variant), variant))
    result = module.compare(check(transferred.program, consts={"T": F16, "D": 128}), transferred)
    assert {r["what"] for r in result["rows"]} == {"this kernel"} | peers
    assert all(r["milliseconds"] > 0 and r["tflops"] > 0 for r in result["rows"])
    assert result["error"] <= 1.5 * result["yardstick"] + 2e-5
