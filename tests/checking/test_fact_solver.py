"""The solver of facts: least facts, widening, and keys that are reached on demand."""

from __future__ import annotations

from operator import or_

from hypothesis import given
from hypothesis import strategies as st

from cuir.checking.fact_solver import Rule, ValueFlow, reach

GRAPHS = st.dictionaries(st.integers(0, 7), st.lists(st.integers(0, 7), max_size=3))


@given(GRAPHS, st.lists(st.integers(0, 7), max_size=2))
def test_what_is_reached_is_the_least_set_with_the_roots_that_is_closed(graph: dict[int, list[int]], roots: list[int]) -> None:
    members = set(roots)
    while new := {k for m in members for k in graph.get(m, [])} - members:
        members |= new
    assert reach(roots, lambda k: graph.get(k, [])) == members


@given(st.lists(st.tuples(st.integers(0, 7), st.frozensets(st.integers(0, 7), max_size=3), st.booleans()), min_size=1, max_size=20))
def test_facts_are_the_least_that_satisfy_all_rules(rules: list[tuple[int, frozenset[int], bool]]) -> None:
    """A rule (value, sources, whether all of them): the value is a member if one source is, or all are."""
    flow = ValueFlow[int, bool](or_)
    for value, sources, of_all in rules:
        quantifier = all if of_all else any
        flow.put(value, lambda inputs, q=quantifier: q(inputs) or None, sorted(sources))  # type: ignore[misc]
    members: set[int] = set()
    while new := {v for v, sources, of_all in rules if (all if of_all else any)(s in members for s in sources)} - members:
        members |= new
    assert set(flow.solve()) == members


def test_a_carried_value_that_grows_on_is_widened() -> None:
    start, carried, following = range(3)
    flow = ValueFlow[int, int](max, lambda old, new: 1000, rounds=2)
    flow.put(start, lambda inputs: 0)
    flow.put(carried, lambda inputs: max((n for n in inputs if n is not None), default=None), [start, following], carried=True)
    flow.put(following, lambda inputs: None if inputs[0] is None else min(inputs[0] + 1, 1000), [carried])
    facts = flow.solve()
    assert facts[carried] == 1000 and facts[following] == 1000


def test_values_are_reached_from_their_roots() -> None:
    a, b, c, d = range(4)
    sources = {a: [b, c], b: [a], c: [], d: [a]}
    flow = ValueFlow[int, bool](or_)
    flow.reach([a], lambda v: ((lambda inputs: True) if v is c else (lambda inputs: any(inputs) or None), sources[v]))
    assert set(flow.solve()) == {a, b, c}


def test_values_are_reached_on_demand() -> None:
    a, b, c = range(3)
    described = list[int]()

    def describe(value: int) -> tuple[Rule[int], list[int]]:
        described.append(value)
        return (lambda inputs: 1 + max((n for n in inputs if n is not None), default=0)), {a: [b], b: [], c: [a, b]}[value]

    flow = ValueFlow[int, int](max)
    flow.reach([a], describe)
    assert dict(flow.solve()) == {a: 2, b: 1}
    flow.reach([c], describe)
    assert dict(flow.solve()) == {a: 2, b: 1, c: 3} and described == [a, b, c]
