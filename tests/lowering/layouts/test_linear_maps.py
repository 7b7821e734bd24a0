"""Linear maps over GF(2): composition, inversion, equality, and their text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuir.lowering.layouts.linear_maps import LinearMap, Span, count_bits, identity, join, read_map, show_map, split

DIMS = [(("register", 3), ("lane", 2)), (("row", 2), ("column", 3)), (("cell", 5),), (("row", 1), ("part", 4))]


@st.composite
def maps(draw: st.DrawFn, inputs: int, outputs: int) -> LinearMap:
    columns = draw(st.lists(st.integers(0, (1 << count_bits(DIMS[outputs])) - 1), min_size=5, max_size=5))
    return LinearMap(DIMS[inputs], DIMS[outputs], tuple(columns))


@given(maps(0, 1), maps(1, 2), maps(2, 3), st.integers(0, 31), st.integers(0, 31))
def test_composition_applies_one_after_the_other_and_is_associative(a: LinearMap, b: LinearMap, c: LinearMap, x: int, y: int) -> None:
    assert a.apply(x ^ y) == a.apply(x) ^ a.apply(y)
    assert a.then(b).apply(x) == b.apply(a.apply(x))
    assert a.then(b).then(c) == a.then(b.then(c))
    assert identity(a.inputs).then(a) == a == a.then(identity(a.outputs))


@given(maps(0, 1))
def test_an_inverse_leads_back(a: LinearMap) -> None:
    images = {a.apply(x) for x in range(32)}
    assert len(images) == 1 << a.rank
    assert a.is_surjective == (len(images) == 32) == a.is_injective
    if not a.is_surjective:
        with pytest.raises(ValueError, match="not surjective"):
            a.invert()
        return
    assert a.invert().then(a) == identity(a.outputs) and a.then(a.invert()) == identity(a.inputs)


@given(st.lists(st.integers(0, 63), max_size=8), st.integers(0, 63))
def test_a_span_says_of_which_vectors_a_member_is_the_sum(vectors: list[int], vector: int) -> None:
    sums = {0}
    for v in vectors:
        sums |= {s ^ v for s in sums}
    span, total = Span(vectors), 0
    chosen = span.solve(vector)
    assert (chosen is not None) == (vector in sums) and 1 << span.rank == len(sums)
    for i, v in enumerate(vectors):
        total ^= v if chosen and chosen >> i & 1 else 0
    assert chosen is None or total == vector


@given(maps(0, 1))
def test_the_text_of_a_map_is_read_back(a: LinearMap) -> None:
    again = read_map(show_map(a)).with_outputs("row", "column")  # which has only as many bits as the text names
    assert all(again.at(register=x % 8, lane=x // 8) == a.at(register=x % 8, lane=x // 8) for x in range(32))


def test_a_text_names_bits_of_outputs() -> None:
    a = read_map("register: c0 r3 | lane: . r0+c1")
    assert a.inputs == (("register", 2), ("lane", 2)) and a.outputs == (("row", 4), ("column", 2))
    assert [split(a.outputs, c) for c in a.columns] == [{"row": r, "column": c} for r, c in ((0, 1), (8, 0), (0, 0), (1, 2))]
    assert a.at(register=3, lane=2) == {"row": 9, "column": 3} and join(a.outputs, {"column": 3}) == 48


@given(maps(0, 1), st.integers(0, 31), st.sampled_from(["register", "lane", "warp"]))
def test_a_further_bit_adds_its_image(a: LinearMap, x: int, name: str) -> None:
    more, point = a.extend(name, {"row": 8, "column": 1}), {"register": x % 8, "lane": x // 8}
    far = {**point, name: point.get(name, 0) | 1 << dict(a.inputs).get(name, 0)}
    assert more.at(**point) == a.at(**point)
    assert more.at(**far) == {"row": a.at(**point)["row"] ^ 8, "column": a.at(**point)["column"] ^ 1}
