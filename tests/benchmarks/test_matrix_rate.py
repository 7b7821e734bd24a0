"""The rate of products alone: what is counted, and what is said without a GPU."""

from __future__ import annotations

import pytest
import torch

from benchmarks import matrix_rate
from cuir.performance.timing.timing_protocol import Call


def test_operations_of_a_product_are_counted() -> None:
    shapes = []

    def measure(call: Call) -> float:
        shapes.append(call().shape)
        return 0.5

    results = dict(matrix_rate.rates("cpu", (16, 32), torch.float32, measure))
    assert results == {16: 2 * 16**3 / 0.5 / 1e9, 32: 2 * 32**3 / 0.5 / 1e9} and shapes == [(16, 16), (32, 32)]


def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix_rate, "explain_missing_gpu", lambda *_: "no CUDA device")
    assert matrix_rate.main() == 1 and capsys.readouterr().err == "nothing measured: no CUDA device\n"
