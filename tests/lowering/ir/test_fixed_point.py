"""The solvers of data flow: paths joined, loops to a fixed point, the least facts that satisfy all rules."""

from __future__ import annotations

from operator import or_

from hypothesis import given
from hypothesis import strategies as st
from xdsl.ir import Operation, SSAValue

from cuir.lowering.ir import ops
from cuir.lowering.ir.fixed_point import Backward, Forward, Rule, ValueFlow
from cuir.lowering.ir.ir_walk import every
from cuir.syntax.types import I32
from tests.lowering.tile_ir import role

LINES = (
    "%one = tile.constant 1 : !tile.scalar<i32>",
    "tile.for %i = %0 to %n {",
    "  %two = tile.constant 2 : !tile.scalar<i32>",
    '  %c = tile.apply "<"(%i, %n) : !tile.scalar<bool>',
    "  tile.if %c {",
    "    %three = tile.constant 3 : !tile.scalar<i32>",
    "    tile.yield()",
    "  } else {",
    "    tile.yield()",
    "  }",
    "  %four = tile.constant 4 : !tile.scalar<i32>",
    "  tile.yield()",
    "}",
    "%five = tile.constant 5 : !tile.scalar<i32>",
)
Seen = frozenset[int]


class Before(Forward[Seen]):
    """Constants that may have been passed."""

    def join(self, a: Seen, b: Seen) -> Seen:
        return a | b

    def transfer(self, op: Operation, state: Seen) -> Seen:
        return state | {int(op.value)} if isinstance(op, ops.Constant) else state


class Behind(Backward[Seen]):
    """Constants that may be passed later."""

    def join(self, a: Seen, b: Seen) -> Seen:
        return a | b

    def transfer(self, op: Operation, state: Seen) -> Seen:
        return state | {int(op.value)} if isinstance(op, ops.Constant) else state


def constants(of: ops.Role) -> dict[int, Operation]:
    return {int(op.value): op for op in every(of) if isinstance(op, ops.Constant)}


def test_forward_states_join_branches_and_pass_around_loops() -> None:
    r = role(*LINES)
    flow = Before()
    end = flow.run(r.body.block, frozenset())
    assert {n: set(flow.before[op]) for n, op in constants(r).items()} == {
        1: set(),
        2: {1, 2, 3, 4},
        3: {1, 2, 3, 4},
        4: {1, 2, 3, 4},
        5: {1, 2, 3, 4},
    }
    assert end == {1, 2, 3, 4, 5}


def test_backward_states_join_branches_and_pass_around_loops() -> None:
    r = role(*LINES)
    flow = Behind()
    start = flow.run(r.body.block, frozenset())
    assert {n: set(flow.after[op]) for n, op in constants(r).items()} == {
        1: {2, 3, 4, 5},
        2: {2, 3, 4, 5},
        3: {2, 3, 4, 5},
        4: {2, 3, 4, 5},
        5: set(),
    }
    assert start == {1, 2, 3, 4, 5}


class Forgetful(Forward[Seen]):
    """Constants passed since the last 4."""

    def join(self, a: Seen, b: Seen) -> Seen:
        return a | b

    def transfer(self, op: Operation, state: Seen) -> Seen:
        if not isinstance(op, ops.Constant):
            return state
        return frozenset() if op.value == 4 else state | {int(op.value)}


def test_the_state_after_a_loop_is_that_before_it_or_that_of_a_turn() -> None:
    r = role(*LINES)
    flow = Forgetful()
    flow.run(r.body.block, frozenset())
    at = constants(r)
    assert flow.before[at[2]] == {1} and flow.before[at[4]] == {1, 2, 3}
    assert flow.before[at[5]] == {1}, "after no turn; a turn ends with nothing"


VALUES = [ops.constant(i, I32).result for i in range(8)]


@given(st.lists(st.tuples(st.integers(0, 7), st.frozensets(st.integers(0, 7), max_size=3), st.booleans()), min_size=1, max_size=20))
def test_facts_are_the_least_that_satisfy_all_rules(rules: list[tuple[int, frozenset[int], bool]]) -> None:
    """A rule (value, sources, whether all of them): the value is a member if one source is, or all are."""
    flow = ValueFlow[bool](or_)
    for value, sources, of_all in rules:
        quantifier = all if of_all else any
        flow.put(VALUES[value], lambda inputs, q=quantifier: q(inputs) or None, [VALUES[s] for s in sorted(sources)])  # type: ignore[misc]
    members: set[int] = set()
    while new := {v for v, sources, of_all in rules if (all if of_all else any)(s in members for s in sources)} - members:
        members |= new
    assert set(flow.solve()) == {VALUES[v] for v in members}


def test_a_carried_value_that_grows_on_is_widened() -> None:
    start, carried, following = VALUES[:3]
    flow = ValueFlow[int](max, lambda old, new: 1000, rounds=2)
    flow.put(start, lambda inputs: 0)
    flow.put(carried, lambda inputs: max((n for n in inputs if n is not None), default=None), [start, following], carried=True)
    flow.put(following, lambda inputs: None if inputs[0] is None else min(inputs[0] + 1, 1000), [carried])
    facts = flow.solve()
    assert facts[carried] == 1000 and facts[following] == 1000


def test_values_are_reached_from_their_roots() -> None:
    a, b, c, d = VALUES[:4]
    sources = {a: [b, c], b: [a], c: [], d: [a]}
    flow = ValueFlow[bool](or_)
    flow.reach([a], lambda v: ((lambda inputs: True) if v is c else (lambda inputs: any(inputs) or None), sources[v]))
    assert set(flow.solve()) == {a, b, c}


def test_values_are_reached_on_demand() -> None:
    a, b, c = VALUES[:3]
    described = list[SSAValue]()

    def describe(value: SSAValue) -> tuple[Rule[int], list[SSAValue]]:
        described.append(value)
        return (lambda inputs: 1 + max((n for n in inputs if n is not None), default=0)), {a: [b], b: [], c: [a, b]}[value]

    flow = ValueFlow[int](max)
    flow.reach([a], describe)
    assert dict(flow.solve()) == {a: 2, b: 1}
    flow.reach([c], describe)
    assert dict(flow.solve()) == {a: 2, b: 1, c: 3} and described == [a, b, c]
