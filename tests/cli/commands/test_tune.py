"""`cuir tune` without a GPU: candidates that fit, what is missing, and how it ends."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cuir.runtime.cards import CARDS
from tests.stand_in_cards import stand_in

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="what is said where there is no GPU")


@pytest.mark.thorough
def test_dry_run_lists_what_fits_and_why_others_do_not(cuir: Callable) -> None:
    output = cuir(
        "tune", "prefix_lm", "--shape", "1,8,8,512,512,128", "-c", "BM=128,DYNAMIC=false,PINGPONG=false,L2=1", "--dry-run", "--json"
    )
    assert output.code == 0 and not output.err
    (report,) = output.json["tuned"]
    status = {(c["consts"]["BN"], c["consts"]["QBUF"], c["consts"]["STAGES"]): c["status"] for c in report["candidates"]}
    assert set(status.values()) == {"fits", "pruned"} and output.json["missing"] is None
    assert all("M301" in c["why"] for c in report["candidates"] if c["status"] == "pruned")
    assert all("BM" not in c["consts"] for c in report["candidates"]), "what is given is not a candidate"


def test_a_dry_run_tells_what_goes_on(cuir: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []
    shares: list[float | None] = []
    monkeypatch.setattr(
        "cuir.cli.measurement_views.TuneView.update", lambda self, text, share=None: (texts.append(text), shares.append(share))
    )
    output = cuir(
        "tune",
        "full",
        "--shape",
        "1,8,8,512,512,64",
        "-c",
        "BM=64,QBUF=1,STAGES=2,STAGED=true,AHEAD=true,DYNAMIC=false,PINGPONG=false",
        "--dry-run",
    )
    assert output.code == 0 and output.err == ""
    assert "check 1 of 16: BN=64,CLUSTER=1" in texts[0] and "check 16 of 16" in texts[-1]
    assert shares == [n / 16 for n in range(16)]
    assert all(sum(map(int, re.findall(r"(\d+) (?:fit|pruned|not checked yet)", text))) == 16 for text in texts)
    assert re.search(r"^\d+ fit", output.out)


def test_ctrl_c_ends_it_with_a_line(cuir: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*of: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cuir.performance.search.search.find_violation", interrupt)
    output = cuir("tune", "causal", "--dry-run")
    assert output.code == 130 and output.err.endswith("\ninterrupted\n")


def test_a_gpu_that_does_not_run_the_kernel_times_nothing(cuir: Callable) -> None:
    with stand_in(CARDS[8, 0]):
        output = cuir(
            "tune", "flash_fwd_sm90", "--shape", "1,8,8,512,512,64", "-c", "BM=64,QBUF=1,STAGES=2,DYNAMIC=false,PINGPONG=false,L2=1"
        )
    assert output.code == 0 and "BN=64" in output.out
    assert "kernels are for sm_90a, this device has compute capability 8.0" in " ".join(output.err.split())


def test_without_a_gpu_the_static_part_runs_and_says_what_is_missing(cuir: Callable) -> None:
    output = cuir("tune", "flash_fwd_sm90", "--shape", "1,8,8,512,512,64", "-c", "BM=64,QBUF=1,STAGES=2,DYNAMIC=false,PINGPONG=false,L2=1")
    assert output.code == 0 and "BN=64" in output.out
    assert "A GPU that runs the kernel would" in " ".join(output.err.split())


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (("tune", "causal", "--shape", "1,2,3"), "U116"),
        (("tune", "causal", "--shape", "1,2,2,64,64,584"), "U110"),
        (("tune", "causal", "--dtype", "i32"), "U109"),
        (("tune", "nothing_of_that_name"), "U102"),
        (("tune", "nothing.cuir"), "U201"),
        (("tune", "causal", "--origin", "nothing"), "U101"),
        (("tune", "causal", "--origin", "gemm"), "U115"),
        (("tune", "flash_fwd_sm90", "--variant", "nothing_of_that_name", "--dry-run"), "U102"),
        (("tune", "flash_fwd_sm90", "--variant", "flash_fwd_sm90", "--dry-run"), "U102"),
        (("tune", "flash_fwd_sm90", "flash_fwd_warps", "--variant", "causal", "--dry-run"), "U100"),
        (("tune", "flash_fwd_sm90", "--origin", "flash_fwd", "--variant", "causal", "--dry-run"), "U100"),
        (("tune", "causal", "--space", "nothing.json"), "U115"),
        (("tune", "causal", "--jobs", "0", "--dry-run"), "U100"),
        (("tune", "causal", "-c", "D=64", "--dry-run"), "U103"),
        (("tune", "causal", "-c", "T=bf16", "--dry-run"), "U103"),
    ],
)
def test_wrong_calls_of_tune(cuir: Callable, call: tuple[str, ...], code: str) -> None:
    output = cuir(*call, "--json")
    assert output.code == 2 and [d["code"] for d in output.json["diagnostics"]] == [code]


def test_a_kernel_of_no_attention_is_refused_with_what_to_do(cuir: Callable, tmp_path: Path) -> None:
    ours = tmp_path / "own.cuir"
    ours.write_text(Path("corpus/programs/gemm.cuir").read_text(encoding="utf-8"), encoding="utf-8")
    (result,) = cuir("tune", ours, "--dry-run", "--json").json["diagnostics"]
    assert result["code"] == "U115" and "attention kernels" in result["message"] and "first_kernel.md" in result["hint"]


def test_a_space_of_ones_own(cuir: Callable, tmp_path: Path) -> None:
    space = tmp_path / "own.json"
    space.write_text('{"axes": [{"BM": [64, 128]}]}', encoding="utf-8")
    output = cuir("tune", "full", "--shape", "1,8,8,512,512,64", "--space", space, "--dry-run", "--json")
    assert [c["consts"] for c in output.json["tuned"][0]["candidates"]] == [{"BM": 64}, {"BM": 128}]
    assert (
        cuir("tune", "flash_fwd_sm90", "--space", space, "--json").json["diagnostics"][0]["code"] == "U115"
    )  # it does not say what the kernel computes


def test_a_kernel_is_tuned_for_variants(cuir: Callable, tmp_path: Path) -> None:
    """Kernel first, or variant first: one meaning."""
    space = tmp_path / "own.json"
    space.write_text('{"axes": [{"BM": [64, 128]}]}', encoding="utf-8")
    rest = ("--shape", "1,8,8,512,512,64", "--space", space, "--dry-run", "--json")
    output = cuir("tune", "flash_fwd", "--variant", "causal", "--variant", "alibi", *rest).json
    second = cuir("tune", "causal", "alibi", "--origin", "flash_fwd", *rest).json
    assert [t["target"] for t in output["tuned"]] == ["causal", "alibi"]
    assert all(len(t["candidates"]) == 2 for t in output["tuned"])
    for t in (*output["tuned"], *second["tuned"]):
        t["seconds"] = 0
    assert output == second
