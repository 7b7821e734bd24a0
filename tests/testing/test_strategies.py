"""Strategies draw what they say, and shrink to small things."""

from __future__ import annotations

import importlib
import sys

import pytest
import torch
from hypothesis import find, given, settings
from hypothesis import strategies as st

import cuir
from cuir.interp import Schedule
from cuir.testing import strategies
from cuir.testing.strategies import Rule
from cuir.text.diagnostics import CuirError
from tests.testing.programs import SCALE


@given(n=strategies.lengths(200, tile=64))
def test_lengths_lie_within_bounds(n: int) -> None:
    assert 1 <= n <= 200


@given(dims=strategies.dims(cuir.check(SCALE), most=5), name=strategies.schedules(), dtype=strategies.dtypes())
def test_dims_schedules_and_dtypes(dims: dict[str, int], name: str, dtype: cuir.Tile) -> None:
    assert dims.keys() == {"M"} and 1 <= dims["M"] <= 5
    assert str(Schedule.parse(name)) == name.replace("starve", "starve:0") and dtype.name in ("f16", "bf16", "f32")


@given(x=strategies.tensors((3, 5, 8), torch.bfloat16, strategies.kinds(), strided=True))
def test_tensors_have_shape_and_dtype(x: torch.Tensor) -> None:
    assert x.shape == (3, 5, 8) and x.dtype == torch.bfloat16 and not x.isnan().any()


@given(seed=st.integers(0, 9), data=st.data())
def test_strides_keep_the_values(seed: int, data: st.DataObject) -> None:
    x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(data.draw(strategies.strides(x)), x)


def test_other_strides_are_drawn() -> None:
    x = torch.randn(2, 3, 4)
    assert find(strategies.strides(x), lambda y: y.stride() not in (x.stride(), (24, 8, 1), (24, 12, 1)) or y.stride(0) == 4) is not None


@settings(max_examples=30)
@given(rule=strategies.mask_mods(50))
def test_masks_give_a_boolean_for_each_pair(rule: Rule) -> None:
    i = torch.arange(20)
    retained = torch.as_tensor(rule.mod(torch.tensor(0), torch.tensor(1), i[:, None], i))
    assert retained.dtype == torch.bool and retained.broadcast_to(20, 20).shape == (20, 20)
    assert repr(rule) == rule.text


@settings(max_examples=30)
@given(rule=strategies.score_mods(50))
def test_scores_are_finite(rule: Rule) -> None:
    i = torch.arange(20)
    assert bool(torch.as_tensor(rule.mod(torch.randn(20, 20), torch.tensor(0), torch.tensor(1), i[:, None], i)).isfinite().all())


def test_a_dtype_without_values_is_an_error() -> None:
    with pytest.raises(CuirError, match=r"f16, bf16 and f32, found torch\.int32"):
        find(strategies.tensors((3,), torch.int32), lambda x: True)


def test_without_hypothesis_an_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    monkeypatch.delitem(sys.modules, "cuir.testing.strategies")
    with pytest.raises(CuirError, match=r"cubridge\[testing\]") as error:
        importlib.import_module("cuir.testing.strategies")
    assert error.value.diagnostics[0].code == "U513"
