"""The order of blocks: a loop before what follows it, both sides of a branch before their post-dominator."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cuir.ptx.machine.block_order import find_components, order_blocks


def test_what_follows_a_loop_comes_behind_it() -> None:
    # 0 -> 1 (head) -> 2 | 4 (exit); 2 -> 3 | 4 (break); 3 -> 1
    places = order_blocks(5, {0: [1], 1: [4, 2], 2: [4, 3], 3: [1], 4: []})
    assert places[4] == 4 and places[0] == 0 and places[1] == 1


def test_inner_loops_come_before_the_rest_of_the_outer() -> None:
    # outer 0..3 with the inner loop 1; 3 goes back to 0 or to 4
    places = order_blocks(5, {0: [2, 1], 1: [1, 2], 2: [3], 3: [0, 4], 4: []})
    assert places[1] < places[2] < places[3] < places[4]


@given(st.integers(1, 9), st.data())
def test_components_are_those_that_reach_each_other(count: int, data: st.DataObject) -> None:
    edges = {n: data.draw(st.lists(st.integers(0, count - 1), max_size=3)) for n in range(count)}
    reach = {n: {n} for n in range(count)}
    for _ in range(count):
        for n, targets in edges.items():
            reach[n] |= set().union(*(reach[t] for t in targets))
    parts = find_components(range(count), edges)
    assert sorted(n for p in parts for n in p) == list(range(count))
    for i, part in enumerate(parts):
        assert all((b in reach[a]) == (b in part) for a in part for b in part)
        assert all(b not in reach[a] for later in parts[i + 1 :] for a in later for b in part)  # topological
    assert sorted(order_blocks(count, edges)) == list(range(count))
