"""Lists of threads: each number once, none of an empty list, and slices in place of dense lists."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cuir.ptx.machine.groups import find_slice, list_distinct

NUMBERS = st.lists(st.integers(0, 9)).map(sorted)


@given(NUMBERS)
def test_each_number_of_a_list_in_order_is_given_once(numbers: list[int]) -> None:
    assert list_distinct(np.array(numbers, np.int64)) == sorted(set(numbers))


@given(st.lists(st.integers(0, 9)))
def test_no_number_of_another_list_is_lost(numbers: list[int]) -> None:
    assert set(list_distinct(np.array(numbers, np.int64))) == set(numbers)


@given(st.sets(st.integers(0, 9), min_size=1).map(sorted))
def test_a_slice_takes_the_same_elements(slots: list[int]) -> None:
    values = np.arange(10, 20)
    assert values[find_slice(np.array(slots))].tolist() == values[slots].tolist()
