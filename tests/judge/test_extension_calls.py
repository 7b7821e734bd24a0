"""Values between Python and an extension: each kind passes the border both ways, and errors come back in words."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from cuir.judge.arena_tensors import DeviceArena
from cuir.judge.extension_calls import ExtensionHost, Value


@pytest.fixture
def host() -> ExtensionHost:
    return ExtensionHost(cast(DeviceArena, SimpleNamespace(holds=lambda x: False)), lambda: 7)


def box(host: ExtensionHost, *values: object) -> tuple[ctypes.Array[Value], list[object]]:
    boxes, kept = (Value * len(values))(), list[object]()
    for b, v in zip(boxes, values):
        host._box(v, b, kept)
    return boxes, kept


def test_each_kind_of_value_comes_back(host: ExtensionHost) -> None:
    x = torch.ones(2)
    values = (None, 3, True, 2.5, "a word", torch.bfloat16, [4, 5], [], x, [x, x])
    boxes, _kept = box(host, *values)
    for b, v in zip(boxes, values):
        back = host._unbox(b)
        assert type(back) is type(v) and (back is v if isinstance(v, torch.Tensor) else str(back) == str(v))
    with pytest.raises(TypeError, match="dict"):
        box(host, {})


def test_operations_run_by_name_and_errors_are_told(host: ExtensionHost) -> None:
    boxes, _kept = box(host, torch.full((2,), 3.0), 2)
    result = Value()
    assert host._call(b"mul", boxes, 2, ctypes.pointer(result)) == 0
    assert cast(torch.Tensor, host._unbox(result)).tolist() == [6.0, 6.0]
    handle = result.integer
    host._release(handle)
    assert handle not in host.tensors
    assert host._call(b"torch.no_such_function", boxes, 2, ctypes.pointer(result)) == 1
    assert b"no_such_function" in host.error.value
