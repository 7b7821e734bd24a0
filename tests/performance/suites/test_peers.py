"""Masks as runs of keys: those of random masks give the mask back, in both forms that peers take; windows are told from what is none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cuir.cli.command_inputs import read_variant
from cuir.performance.suites.peers import MOST, as_functions, find_kept_runs, window_of
from cuir.spec.specification import Specification


def tensors(B: int, H: int, M: int, N: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(B, H, M, 8), torch.zeros(B, 1, N, 8)


def make_mask(table: torch.Tensor) -> Specification:
    """The mask of a table [B or 1, H or 1, M, N]."""

    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return table[b if table.shape[0] > 1 else 0, h if table.shape[1] > 1 else 0, q_idx, kv_idx]

    return Specification("table", mask)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_runs_and_functions_give_the_mask_back(data: st.DataObject) -> None:
    B, H, M, N = (data.draw(st.integers(1, n)) for n in (2, 3, 5, 12))
    shape = (data.draw(st.sampled_from([1, B])), data.draw(st.sampled_from([1, H])), M, N)
    table = torch.rand(shape, generator=torch.Generator().manual_seed(data.draw(st.integers(0, 99)))) < data.draw(st.floats(0, 1))
    table[..., 0] |= data.draw(st.booleans())
    runs = find_kept_runs(make_mask(table), *tensors(B, H, M, N))
    assert runs is not None and runs.dtype == torch.int32
    at = torch.arange(N)
    whole = table.expand(B, H, M, N)
    assert torch.equal(((runs[..., :1] <= at) & (at < runs[..., 1:])).any(-2).expand(B, H, M, N), whole)
    functions = as_functions(runs, B)
    assert functions.is_contiguous() and functions.shape[1] % 2 == 1 and functions.shape[2] == B * M and functions.shape[0] in (1, H)
    retained = at < functions[:, 0, :, None]
    for first in range(1, functions.shape[1], 2):
        retained = retained | ((functions[:, first, :, None] <= at) & (at < functions[:, first + 1, :, None]))
    assert torch.equal(retained.unflatten(1, (B, M)).transpose(0, 1).expand(B, H, M, N), whole)


def test_a_mask_of_many_runs_is_none_of_intervals() -> None:
    q, k = tensors(1, 1, 2, 2 * MOST + 2)
    even = torch.arange(2 * MOST + 2) % 2 == 0
    assert find_kept_runs(make_mask(even.expand(1, 1, 2, -1)), q, k) is None
    assert find_kept_runs(make_mask((even & (torch.arange(2 * MOST + 2) > 0)).expand(1, 1, 2, -1)), q, k) is not None


@pytest.mark.parametrize(
    ("variant", "parameters", "window"),
    [
        ("full", (), (None, None)),
        ("causal", (), (None, 0)),
        ("sliding_window", ("window=5",), (5, 0)),
        ("local", ("left=3", "right=4"), (3, 4)),
        ("prefix_lm", ("prefix=7",), None),
        ("causal_document", ("length=10", "stagger=0"), None),
        ("sliding_window_global", ("window=5", "tokens=2"), None),
    ],
)
def test_windows(variant: str, parameters: tuple[str, ...], window: tuple[int | None, int | None] | None) -> None:
    runs = find_kept_runs(read_variant(variant, parameters), *tensors(2, 2, 30, 30))
    assert runs is not None and window_of(runs, 30) == window
    assert window_of(runs[:, :, :20], 30) is None, "fewer queries than keys"


def test_a_window_of_nothing_and_one_that_moves_are_none() -> None:
    at = torch.arange(9)
    for mask in (at[:, None] > at, (at[:, None] // 2 >= at), (at[:, None] <= at) & (at[:, None] > at)):
        runs = find_kept_runs(make_mask(mask[None, None]), *tensors(1, 1, 9, 9))
        assert runs is not None and window_of(runs, 9) is None
    later = find_kept_runs(make_mask((at[:, None] <= at)[None, None]), *tensors(1, 1, 9, 9))
    assert later is not None and window_of(later, 9) == (0, None)
