"""tune and bench without a GPU: what they say, how they end; and what of them needs none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cuir.bench.suites import cell
from cuir.cli.measuring import _command

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="what is said where there is no GPU")


def test_dry_run_lists_what_fits_and_why_others_do_not(cuir: Callable) -> None:
    shown = cuir(
        "tune", "prefix_lm", "--shape", "1,8,8,512,512,128", "-c", "BM=128,DYNAMIC=false,PINGPONG=false,L2=1", "--dry-run", "--json"
    )
    assert shown.code == 0 and not shown.err
    (report,) = shown.json["tuned"]
    status = {(c["consts"]["BN"], c["consts"]["QBUF"], c["consts"]["STAGES"]): c["status"] for c in report["candidates"]}
    assert set(status.values()) == {"waiting", "pruned"} and shown.json["missing"] is None
    assert all("M301" in c["why"] for c in report["candidates"] if c["status"] == "pruned")
    assert all("BM" not in c["consts"] for c in report["candidates"]), "what is given is not a candidate"


def test_without_a_gpu_the_static_part_runs_and_says_what_is_missing(cuir: Callable) -> None:
    shown = cuir("tune", "flash_fwd_sm90", "--shape", "1,8,8,512,512,64", "-c", "BM=64,QBUF=1,STAGES=2,DYNAMIC=false,PINGPONG=false,L2=1")
    assert shown.code == 0 and "BN=64" in shown.out
    assert "a Hopper GPU would" in " ".join(shown.err.split()).replace("A Hopper", "a Hopper")


@pytest.mark.parametrize(("call", "code"), [
    (("tune", "causal", "--shape", "1,2,3"), "U116"),
    (("tune", "causal", "--shape", "1,2,2,64,64,96"), "U110"),
    (("tune", "causal", "--dtype", "f32"), "U109"),
    (("tune", "nothing_of_that_name"), "U102"),
    (("tune", "nothing.cuir"), "U115"),
    (("tune", "causal", "--space", "nothing.json"), "U115"),
    (("bench", "nothing"), "U117"),
    (("bench", "smoke", "--peer", "nothing"), "U118"),
    (("bench", "smoke", "--only", "nothing"), "U100"),
    (("bench", "smoke", "--show"), "U100"),
    (("bench", "smoke", "--show", "--out", "nothing.jsonl"), "U119"),
    (("bench", "smoke", "--rounds", "0"), "U100"),
    (("bench", "smoke"), "U501"),
])  # fmt: skip
def test_calls_that_are_wrong(cuir: Callable, call: tuple[str, ...], code: str) -> None:
    shown = cuir(*call, "--json")
    assert shown.code == 2 and [d["code"] for d in shown.json["diagnostics"]] == [code]


def test_a_space_of_ones_own(cuir: Callable, tmp_path: Path) -> None:
    space = tmp_path / "own.json"
    space.write_text('{"axes": [{"BM": [64, 128]}]}', encoding="utf-8")
    shown = cuir("tune", "full", "--shape", "1,8,8,512,512,64", "--space", space, "--dry-run", "--json")
    assert [c["consts"] for c in shown.json["tuned"][0]["candidates"]] == [{"BM": 64}, {"BM": 128}]
    assert (
        cuir("tune", "flash_fwd_sm90", "--space", space, "--json").json["diagnostics"][0]["code"] == "U115"
    )  # it does not say what the kernel computes


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
    row["contenders"]["cuir BM=64"] = {"wrong": "relative error 1"}
    path.write_text("\n".join(map(json.dumps, ({"suite": "smoke"}, row))), encoding="utf-8")
    assert cuir("bench", "smoke", "--show", "--out", path, "--json").code == 1


def test_the_recorded_command_names_no_place() -> None:
    assert (
        _command(["bench", "flash", "--out", "/somewhere/r.jsonl", "--only", "causal", "--json", "--out=x"])
        == "cuir bench flash --only causal"
    )
