"""Tensors that are made once."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch

from cuir.attn.capture import device_tensors
from cuir.attn.capture.device_tensors import constant
from cuir.caching import Memo

CPU = {"dtype": torch.int32, "device": torch.device("cpu")}


def test_what_a_captured_graph_would_write_is_nobody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_tensors, "_CACHE", OrderedDict())
    monkeypatch.setattr(device_tensors, "capturing", lambda: True)
    captured = constant(torch.arange, 4, **CPU)
    assert captured.tolist() == [0, 1, 2, 3] and constant(torch.arange, 4, **CPU) is not captured
    monkeypatch.setattr(device_tensors, "capturing", lambda: False)
    retained = constant(torch.arange, 4, **CPU)
    monkeypatch.setattr(device_tensors, "capturing", lambda: True)
    assert constant(torch.arange, 4, **CPU) is retained


def test_other_sizes_and_dtypes_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_tensors, "_CACHE", Memo("test.constants", key="any", invalidation="never", limit=2))
    tensor = constant(torch.ones, 1, 3, 1, dtype=torch.float32, device=torch.device("cpu"))
    assert tensor.shape == (1, 3, 1) and tensor.dtype == torch.float32
    assert constant(torch.ones, 1, 2, 1, **CPU).dtype == torch.int32
    constant(torch.arange, 3, **CPU)
    assert len(device_tensors._CACHE) == 2 and constant(torch.ones, 1, 3, 1, dtype=torch.float32, device=torch.device("cpu")) is not tensor
