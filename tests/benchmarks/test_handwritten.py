"""Kernels that people wrote from the pages alone: the index, the judging, and those that passed, or were refused, wrongly at first."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.handwritten.judge import CLASSES, programs, sources, summary
from cuir.cli import run

ENTRIES = {e["file"]: e for e in programs(sources())}
AT_FIRST = (
    "c2_segment_sums_empty_segment_releases_a_stage.cuir",  # no problem had a step without blocks before several rounds of the ring
    "c5_running_maximum_starts_at_zero.cuir",  # no row lay far below 0
    "ok_mlp_hidden_in_registers.cuir",  # an operand of a product overflowed, as it does in PyTorch
    "ok_workspace_with_tensor_fence.cuir",
    "ok_workspace_tensors.cuir",
    "c2_cumsum_backwards.cuir",  # no dim was longer than nine steps
    "ok_token_lse.cuir",  # the interpreter's exp2 hung on how many CTAs it computed at once
    "ok_embedding_grad.cuir",  # a problem with D = 0
    "ok_gemm_bf16x3.cuir",  # products of 16 bits in a kernel whose tensors have 32
    "decide_capacity_in_half.cuir",  # no count grew beyond the format that it passed through
    "sizes_place_in_half.cuir",
    "grad_norm_floor.cuir",  # no row lay below a floor
    "special_entropy_floor.cuir",  # small elements were judged beside large ones
    "special_clamp_nan_to_low.cuir",  # NaN had to reach elements of one input only
    "special_log_of_one_plus.cuir",  # log1p was allowed an absolute error
    "special_log_of_quotient.cuir",  # vast and tiny numbers did not meet
    "special_merge_by_a.cuir",  # what `inputs` draws stayed near each other
    "special_shares_unscaled.cuir",  # no sum of a row left f32
    "special_scan_by_weights.cuir",  # no infinity entered a running sum
    "right_sizes_column_moments.cuir",  # a variance of 70,001 rows had no error of their order
)


def test_the_index_is_whole() -> None:
    for e in ENTRIES.values():
        assert (e["folder"] / e["file"]).is_file() and (e["folder"] / e["against"]).is_file()
        assert e["right"] == (e["class"] is None) and (e["right"] or e["fault"])
    count = Counter(e["class"] for e in ENTRIES.values())
    assert all(count[c] >= 15 for c in CLASSES) and count[None] >= 40 and sum(count.values()) - count[None] >= 120


@pytest.mark.sweep
@pytest.mark.parametrize("name", AT_FIRST)
def test_what_was_judged_wrongly_at_first(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    e = ENTRIES[name]
    consts = [x for n, v in e["consts"].items() for x in ("-c", f"{n}={v}")]
    code = run(["verify", str(e["folder"] / e["file"]), "--against", str(e["folder"] / e["against"]), *consts, "--json"])
    message = json.loads(capsys.readouterr().out)
    assert code == (0 if e["right"] else 1), message
    assert not any(d["code"].startswith("U9") for d in message.get("diagnostics", []))


def test_the_table_counts_what_is_refused() -> None:
    verdicts = [
        {"class": 1, "right": False, "level": "quick", "verdict": "refused"},
        {"class": 1, "right": False, "level": "quick", "verdict": "passed"},
        {"class": None, "right": True, "level": "quick", "verdict": "passed"},
        {"class": None, "right": True, "level": "quick", "verdict": "out of time"},
    ]
    lines = summary(verdicts)
    assert (
        "| 1/2 |" in lines[2] and lines[-2].endswith("| 1/2 |") and lines[-1].endswith("| 1/2 |") and len(lines) == 5
    )  # one class was judged


def test_nothing_is_judged_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks.handwritten import judge

    out = tmp_path / "verdicts.jsonl"
    expected_values = [
        {"program": f"{e['folder'].name}/{e['file']}", "class": e["class"], "right": e["right"], "level": "quick", "verdict": "refused"}
        for e in ENTRIES.values()
    ]
    out.write_text("\n".join(map(json.dumps, expected_values)) + "\n")
    monkeypatch.setattr("sys.argv", ["judge", "--out", str(out)])
    monkeypatch.setattr(judge, "judge", lambda *arguments: pytest.fail("judged again"))
    judge.main()
    assert f"{sum(not e['right'] for e in ENTRIES.values())}/" in capsys.readouterr().out
