"""The quick look at addresses: whatever it lets pass shares no memory with a tensor that is written."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cuir.arguments.aliasing import Place, are_disjoint

places = st.builds(
    lambda dims, start: Place(4 * start, tuple(n for n, _ in dims), tuple(s for _, s in dims), 4),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), min_size=1, max_size=3),
    st.integers(0, 90),
)


@given(st.lists(st.tuples(places, st.booleans()), max_size=4))
def test_what_is_apart_shares_no_memory(tensors: list[tuple[Place, bool]]) -> None:
    reaches = [(0 if 0 in p.shape else p.reach, written) for p, written in tensors]
    if are_disjoint(reaches, [p.address for p, _ in tensors]):
        for i, (place, written) in enumerate(tensors):
            assert not (written and any(place.overlaps(second) for j, (second, _) in enumerate(tensors) if j != i))


def test_only_what_is_written_must_be_apart() -> None:
    reads, writes = [(64, False), (64, False)], [(64, False), (64, True)]
    assert are_disjoint(reads, [256, 256 + 32]) and are_disjoint(writes, [256, 256 + 64])
    assert not are_disjoint(writes, [256, 256 + 63]) and not are_disjoint(writes, [256 + 63, 256])
    assert are_disjoint([(0, True), (64, True)], [256, 256])
