"""benchmarks/ptx_experts.py: cases and their expected results, captured arguments, rows, and an expert made of a small kernel."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import ptx_experts, shown
from benchmarks.expert_cases import Case, Expert, list_experts, make_gradients, make_varlen
from benchmarks.ptx_experts import CapturedLaunch, Outcome, list_schedules, main, measure_error, summarise
from cuir.cuda import KernelCall
from tests.campaigns.calls import Shuffled

RESULTS = Path(__file__).parents[2] / "benchmarks/results"
TWICE = """.version 8.0
.target sm_90
.address_size 64
.visible .entry twice(.param .u64 x)
{
.reg .b32 %r<4>;
.reg .b64 %d<4>;
ld.param.u64 %d0, [x];
mov.u32 %r0, %tid.x;
mul.wide.u32 %d1, %r0, 4;
add.u64 %d2, %d0, %d1;
ld.global.u32 %r1, [%d2];
add.u32 %r2, %r1, %r1;
STORE
ret;
}
"""


def make_twice() -> Case:
    x = torch.arange(64, dtype=torch.int32)
    before = x.clone()
    return Case((64,), (x,), lambda: [(x, 2 * before)], KernelCall(1, 64, x))


def write_expert(folder: Path, store: str, known: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a kernel where the benchmark keeps those that are built."""
    kept = folder / "built/twice.keep"
    kept.mkdir(parents=True)
    (kept / "twice.ptx").write_text(TWICE.replace("STORE", store), encoding="utf-8")
    (folder / "built/twice").touch()
    monkeypatch.setattr(ptx_experts, "list_experts", lambda: [Expert("twice", "twice.py", "90", (), (make_twice, make_twice), known=known)])


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> list[dict[str, object]]:
    """Run the benchmark, and return its rows."""
    out = folder / "rows.jsonl"
    ptx_experts._load.cache_clear()
    monkeypatch.setattr("sys.argv", ["ptx_experts", str(folder), "--schedules", "4", "--out", str(out), *options])
    main()
    head, *rows = map(json.loads, out.read_text(encoding="utf-8").splitlines())
    assert head["schedules"] == "4"
    return rows


def test_a_right_kernel_has_rows_without_findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_expert(tmp_path, "st.global.u32 [%d2], %r2;", {}, monkeypatch)
    rows = run(tmp_path, monkeypatch, "--jobs", "1")
    assert len(rows) == 2 and all((r["error"], r["findings"], r["schedules"]) == (0.0, {}, 4) for r in rows)
    assert len(run(tmp_path, monkeypatch, "--small")) == 1


def test_findings_are_told_apart_from_known_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_expert(tmp_path, "st.global.u32 [%d0], %r2;", {}, monkeypatch)
    (row,) = run(tmp_path, monkeypatch, "--small")
    assert row["findings"] == {"R402": 4} and row["error"] != 0 and "error[R402]" in capsys.readouterr().out
    monkeypatch.setattr(
        ptx_experts, "list_experts", lambda: [Expert("twice", "twice.py", "90", (), (make_twice,), known={"R402": "one place"})]
    )
    (row,) = run(tmp_path, monkeypatch, "--small")
    assert (row["findings"], row["known"]) == ({}, {"R402": 4}) and "error[R402]" not in capsys.readouterr().out


def test_words_of_captured_arguments_point_into_tensors() -> None:
    word = (0x5EED0001 << 32) + 24
    launch = CapturedLaunch("k", (1, 1, 1), (32, 1, 1), (1, 1, 1), 0, (word.to_bytes(8, "little") + (7).to_bytes(8, "little"),))
    tensors = torch.zeros(4), torch.zeros(8)
    struct = ptx_experts._point(launch.arguments[0], tensors)
    assert struct.data == (24).to_bytes(8, "little") + (7).to_bytes(8, "little")
    assert [(offset, t is tensors[1]) for offset, t in struct.pointers] == [(0, True)]


def test_expected_results_are_those_of_dense_attention() -> None:
    packed, paged = (make_varlen((3, 2), (5, 6), 2, 1, 8, page)() for page in (0, 4))
    for case in (packed, paged):
        q, k, v = (t.float() for t in case.tensors[:3])
        keys = torch.arange(5, 11) if case is packed else (case.tensors[8][1].long()[:, None] * 4 + torch.arange(4)).reshape(-1)[:6]
        k, v = (t.reshape(-1, 1, 8)[keys].expand(-1, 2, -1).transpose(0, 1) for t in (k, v))
        kept = torch.ones(2, 6, dtype=torch.bool).tril(4)
        expected = torch.nn.functional.scaled_dot_product_attention(q[3:].transpose(0, 1), k, v, attn_mask=kept)
        torch.testing.assert_close(case.results()[2][1], expected.transpose(0, 1))
    gradients = make_gradients(1, 2, 4, 6, 8, True)()
    assert all(t.is_contiguous() for t in gradients.tensors) and [tuple(e.shape) for _, e in gradients.results()] == [(1, 4, 2, 8)] + 2 * [
        (1, 6, 2, 8)
    ]


def test_schedules_are_counted_or_named() -> None:
    assert list_schedules("2") == ["together", "first"] and list_schedules("first,random:7") == ["first", "random:7"]
    assert len(set(list_schedules("50"))) == 50


def test_a_row_keeps_the_worst_of_its_outcomes() -> None:
    outcomes = [Outcome("first", e, f, (), 2_000_000, 0.5, 0.75) for e, f in ((1e-3, {}), (2e-3, {"R401": 3, "R403": 1}))]
    row = summarise(Expert("twice", "", "90", (), (make_twice,), known={"R403": "why"}), 0, outcomes)
    assert (row.error, row.findings, row.known, row.rate) == (2e-3, {"R401": 1}, {"R403": 1}, 4.0)
    assert measure_error(torch.tensor([torch.nan]), torch.zeros(1)) > 1e9


def test_the_recorded_run_shows_every_expert_without_findings(tmp_path: Path) -> None:
    (path,) = RESULTS.glob("ptx-experts-*.jsonl")
    _, *rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    assert {r["expert"] for r in rows} == {e.name for e in list_experts()}
    assert all(not r["findings"] and r["error"] < 1e-2 and r["schedules"] >= 50 for r in rows)
    shown.draw(path, tmp_path)
    page = (tmp_path / f"{path.stem}.md").read_text(encoding="utf-8")
    assert page.count("\n| ") > len(rows) and all(f"| {r['expert']} |" in page for r in rows)


def test_an_interruption_keeps_what_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_expert(tmp_path, "st.global.u32 [%d2], %r2;", {}, monkeypatch)
    monkeypatch.setattr(ptx_experts, "make_executor", lambda on, jobs: Shuffled([2, 0], stop=1))
    with pytest.raises(SystemExit) as ended:
        run(tmp_path, monkeypatch, "--small")
    assert ended.value.code == 130
    _, row = map(json.loads, (tmp_path / "rows.jsonl").read_text(encoding="utf-8").splitlines())
    assert row["schedules"] == 1 and not row["findings"]
