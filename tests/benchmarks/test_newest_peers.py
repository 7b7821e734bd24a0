"""benchmarks/newest_peers.py on a CPU: rows of small problems by the interpreter, and what files of rows show."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import newest_peers, shown
from benchmarks.newest_peers import GROUPS, MAKERS, Row, list_ratios, list_rows, make_table, measure
from cuir.performance.timing.problem import Shape
from cuir.performance.timing.timing_protocol import Call


def call_once(call: Call) -> float:
    call()
    return 2.0


SMALL = [
    Row("backward", "backward", "documents", Shape(1, 2, 1, 64, 64, 64), ("cudnn_flex", "fa3")),
    Row("packed", "packed backward", "equal_40", Shape(1, 1, 1, 80, 80, 64), ()),
    Row("packed", "packed", "equal_40", Shape(1, 2, 1, 80, 80, 64), ("fa3",)),
    Row("documents", "forward", "captured_documents", Shape(1, 1, 1, 64, 64, 64), ()),
    Row("decode", "decode", "pages_16", Shape(1, 8, 1, 1, 64, 64), ()),
    Row("latent", "latent", "causal", Shape(2, 8, 1, 1, 128, 576), ("flash_mla", "fa3")),
    Row("selected", "selected", "40_tokens", Shape(1, 16, 1, 3, 128, 576), ("flash_mla",)),
    Row("latent", "latent", "causal_8_bits", Shape(2, 8, 1, 1, 128, 576), ("flash_mla", "fa3")),
]


@pytest.mark.sweep
@pytest.mark.parametrize("row", SMALL, ids=lambda row: f"{row.mode}, {row.variant}")
def test_each_kind_of_row_is_right_and_names_absent_peers(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest_peers, "find_spec", lambda name: None)
    monkeypatch.setattr(newest_peers, "not_installed", lambda peer, kind: (f"no {peer}", f"install for {kind}"))
    protocols = {"bursts": call_once, "sustained": call_once}
    result = measure(row, 1, "cpu", protocols)
    ours = result["contenders"].pop("cuir")
    unit = "gbs" if row.mode in ("decode", "latent") else "tflops"
    assert 0 < ours["error"] < 1e-2 and "wrong" not in ours
    assert ours["bursts"] == ours["sustained"] == {"milliseconds": 2.0, unit: round(result["work"] / 2, 1)}
    assert set(result["contenders"]) == set(row.peers) and all("install" in entry["failed"] for entry in result["contenders"].values())


@pytest.mark.parametrize("row", SMALL[:2], ids=lambda row: f"{row.mode}, {row.variant}")
def test_wrong_gradients_are_refused(row: Row) -> None:
    problem = MAKERS[row.mode](row, (), "cpu")
    dq, dk, dv = problem.calls["cuir"]()  # type: ignore[misc]
    assert problem.judge((dq, dk, dv))[1] == ""
    assert "dV" in problem.judge((dq, dk, dv * 1.1))[1]


def test_peers_outside_of_events_have_no_bursts(monkeypatch: pytest.MonkeyPatch) -> None:
    row = SMALL[0]
    problem = MAKERS[row.mode](row, (), "cpu")
    result = problem.calls["cuir"]()
    slow: dict[str, Callable[[], Any]] = {"cuir": lambda: result, "fa3": lambda: result}
    monkeypatch.setattr(newest_peers, "find_spec", lambda name: True)
    monkeypatch.setattr(newest_peers, "not_installed", lambda peer, kind: None)
    monkeypatch.setitem(MAKERS, row.mode, lambda row, peers, device: newest_peers.Problem(slow, problem.judge, "tflops", 1.0))
    entries = measure(row, 1, "cpu", {"bursts": call_once, "sustained": call_once})["contenders"]
    assert "bursts" in entries["cuir"] and "bursts" not in entries["fa3"] and "sustained" in entries["fa3"]


def test_calls_in_flight_end_with_the_arrays_of_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Array:
        def block_until_ready(self) -> None:
            waits.append(len(calls))

    calls: list[Array] = []
    waits: list[int] = []

    def call() -> tuple[Array, ...]:
        calls.append(Array())
        return calls[-1], torch.zeros(1)  # type: ignore[return-value]

    monkeypatch.setattr(newest_peers, "MILLISECONDS", 1e-9)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert newest_peers.in_flight_ms(call) > 0
    assert waits == [1, 4, 7]  # of one call, of three, and of as many as take the time, at least three


def test_rows_of_all_groups() -> None:
    rows = list(list_rows())
    assert {row.group for row in rows} == set(GROUPS) and len(set(rows)) == len(rows)


def test_masks_within_documents() -> None:
    i, j = torch.arange(64)[:, None], torch.arange(64)[None]
    by_tensor, by_number = (newest_peers.make_mask(v, 64, "cpu")(i, i, i, j) for v in ("captured_documents", "documents"))
    assert torch.equal(by_tensor, by_number) and int(by_number.sum()) == 8 * 36


def test_files_have_a_table_and_a_plot(tmp_path: Path) -> None:
    head = {
        "suite": "newest_peers",
        "command": "python -m benchmarks.newest_peers",
        **dict.fromkeys(("device", "driver", "cuda", "torch", "date"), "x"),
    }
    fast, slow = {"milliseconds": 1.0, "tflops": 500.0}, {"milliseconds": 1.25, "tflops": 400.0}
    rows = [
        {
            **newest_peers.as_json(SMALL[0]),
            "contenders": {
                "cuir": {"error": 0.0, "bursts": fast, "sustained": slow},
                "cudnn_flex": {"error": 0.0, "bursts": slow, "sustained": fast},
                "fa3": {"failed": "not here"},
            },
        },
    ]
    assert list_ratios(rows[0]) == {("cudnn_flex", "bursts"): 1.25, ("cudnn_flex", "sustained"): 0.8}
    assert make_table(rows)[-1].endswith("| 500 / 400 | cudnn_flex: 1.25 / 0.80; fa3: not here |")
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in (head, *rows)), encoding="utf-8")
    shown.draw(path, tmp_path)
    assert "cudnn_flex: 1.25 / 0.80" in (tmp_path / "rows.md").read_text(encoding="utf-8")
    assert (tmp_path / "rows.svg").read_text(encoding="utf-8").count("<path") > 10
