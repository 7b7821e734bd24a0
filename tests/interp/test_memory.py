"""Geometry of shared memory: the bytes of a view, against its elements one by one."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from cuir.checking.checked import SharedAlloc
from cuir.interp.memory import compute_view_intervals
from cuir.sync.byte_ranges import covers, is_overlapping
from cuir.syntax.nodes import NOWHERE
from cuir.syntax.types import BF16, F16, F32, I32

allocs = st.builds(
    lambda dtype, lead, rows, cols, offset: SharedAlloc("a", dtype, (*lead, rows, cols), offset * 1024, None, NOWHERE),
    st.sampled_from([F16, BF16, F32, I32]),
    st.lists(st.integers(1, 3), max_size=2),
    st.integers(1, 24),
    st.sampled_from([1, 3, 8, 32, 64, 128]),
    st.integers(0, 3),
)


@st.composite
def views(draw, alloc):
    index = []
    for dim in alloc.dims:
        start = draw(st.integers(0, dim - 1))
        index.append(slice(start, draw(st.integers(start + 1, dim))) if draw(st.booleans()) else start)
    return tuple(index)


def cells(alloc: SharedAlloc, index: tuple[int | slice, ...]) -> set[tuple[int, ...]]:
    ranges = [range(i.start, i.stop) if isinstance(i, slice) else range(i, i + 1) for i in index]
    return set(itertools.product(*ranges))


@given(st.data())
def test_intervals_are_the_bytes_of_the_elements(data) -> None:
    """Disjoint, merged, inside the array, and as long as the view's elements; views share bytes iff they share elements."""
    alloc = data.draw(allocs)
    a, b = data.draw(views(alloc)), data.draw(views(alloc))
    for index in (a, b):
        result = compute_view_intervals(alloc, index)
        assert sum(hi - lo for lo, hi in result) == len(cells(alloc, index)) * alloc.dtype.itemsize
        assert all(x[1] < y[0] for x, y in itertools.pairwise(result))
        assert result[0][0] >= alloc.offset and result[-1][1] <= alloc.offset + alloc.nbytes
    ia, ib = compute_view_intervals(alloc, a), compute_view_intervals(alloc, b)
    assert is_overlapping(ia, ib) == bool(cells(alloc, a) & cells(alloc, b))
    assert covers(ia, ib) == (cells(alloc, a) >= cells(alloc, b))
