"""The solvers of data flow: paths joined, loops to a fixed point, the least facts that satisfy all rules."""

from __future__ import annotations

from xdsl.ir import Operation

from cuir.lowering.ir import ops
from cuir.lowering.ir.fixed_point import Backward, Forward
from cuir.lowering.ir.ir_walk import every
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
