"""The order in which sequences are begun: the longest first, kept until the lengths are written to."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from cuir.attn.serving.longest_first import as_they_stand, longest_first


@given(st.lists(st.integers(0, 100), min_size=1, max_size=80), st.sampled_from([torch.int32, torch.int64]))
def test_every_sequence_once_and_the_longest_first(lengths: list[int], dtype: torch.dtype) -> None:
    order = longest_first(torch.tensor(lengths, dtype=dtype))
    assert order.dtype == torch.int32 and sorted(order.tolist()) == list(range(len(lengths)))
    assert [lengths[b] for b in order.tolist()] == sorted(lengths, reverse=True)


def test_kept_until_the_lengths_are_written_to() -> None:
    lengths = torch.tensor([3, 9, 5], dtype=torch.int32)
    order = longest_first(lengths)
    assert longest_first(lengths) is order
    lengths[0] = 7
    assert longest_first(lengths).tolist() == [1, 0, 2]


def test_another_tensor_in_the_same_place_is_another_one() -> None:
    storage = torch.tensor([3, 9], dtype=torch.int32)
    first = longest_first(storage.view(2))
    assert longest_first(storage.view(2)) is not first


def test_lengths_whose_writes_are_not_counted() -> None:
    with torch.inference_mode():
        lengths = torch.tensor([3, 9], dtype=torch.int32)
        assert longest_first(lengths).tolist() == [1, 0]
        lengths[0] = 10
        assert longest_first(lengths).tolist() == [0, 1]


def test_as_they_stand() -> None:
    assert as_they_stand(4, torch.device("cpu")).tolist() == [0, 1, 2, 3]
