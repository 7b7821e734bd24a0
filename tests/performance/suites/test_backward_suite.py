"""Cells of backward passes on a CPU: ours in the interpreter beside PyTorch's, gradients checked, the clock given; the suites as the command asks for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from cuir.cli.command_inputs import read_variant
from cuir.performance.suites import Results
from cuir.performance.suites import backward_suite as backward
from cuir.performance.suites.cell_benchmark import Cell, Timing
from cuir.performance.suites.results import markdown, ratios
from cuir.performance.suites.suite_run import SuiteRun, run_calls
from cuir.performance.timing.problem import Shape, compute_expected_gradients, make_tensors

CELL = Cell("causal", {}, "small", Shape(1, 2, 1, 60, 60, 64))


def call_once(call: Callable[[], Any]) -> float:
    call()
    return 1e-4


def test_a_row_of_ours_and_of_a_peer(tmp_path: Path) -> None:
    row = backward.measure_backward(
        CELL, read_variant("causal", ()), "f16", ["dense", "deterministic"], Timing(2, measure=call_once), device="cpu"
    )
    assert list(row["contenders"]) == ["cuir", "deterministic", "dense"]
    assert all("wrong" not in c and 0 < c["error"] <= row["bound"] and c["rounds"] == 2 for c in row["contenders"].values())
    assert row["flops"] == 10 * 64 * 2 * (60 * 61 // 2) and ratios(row) == {"deterministic": 1.0, "dense": 1.0}
    results = Results(tmp_path / "r.jsonl", {"suite": "backward", "pass": "backward", "date": "today"})
    requests: list[Any] = []

    def ask(request: Any, seconds: float) -> Any:
        requests.append(request)
        return row

    assert run_calls(SuiteRun([CELL], results, "f16", ["dense"], rounds=2, limit=9.0), "backward", ask, lambda text: None)
    assert requests[0]["do"] == "backward" and requests[0]["peers"] == ["dense"] and not results.missing([CELL], ["dense"])
    assert "(10 x head dim each), backward;" in markdown(results.head, results.rows)


def test_wrong_gradients_are_told() -> None:
    problem = make_tensors(CELL.shape, torch.float16, "cpu")
    inputs = [problem[n].requires_grad_() for n in "QKV"]
    q, k, v = inputs
    do = torch.ones_like(q)
    expected = compute_expected_gradients(read_variant("causal", ()), q, k, v, do, 0.125)
    s = (q.double() @ k.double().mT * 0.125).masked_fill(~torch.ones(60, 60).tril().bool(), -torch.inf)
    right = list(torch.autograd.grad(s.softmax(-1) @ v.double(), inputs, do.double()))
    assert not expected.judge(right)
    for i, name in enumerate(("dQ", "dK", "dV")):
        assert f"relative error of {name}" in expected.judge([1.01 * x if i == j else x for j, x in enumerate(right)])
    assert expected.judge([right[0], right[1] * torch.nan, right[2]])
