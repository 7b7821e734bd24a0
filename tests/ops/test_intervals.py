"""Intervals of operations hold every result, for whatever is known of the operands."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cuir.ops import OPERATORS, TABLE
from cuir.ops.meaning import DivisionByZero
from cuir.ops.meaning.intervals import INTERVALS, ON_THE_WAY, Bounds, is_half_open, make_hull
from cuir.syntax.types import I32

ENTRIES = {**TABLE, **OPERATORS}
_ENDS = st.tuples(st.integers(-90, 90), st.integers(0, 60)).map(lambda x: (x[0], x[0] + x[1]))


@given(st.data(), st.sampled_from(sorted(INTERVALS)))
def test_no_result_lies_outside(data: st.DataObject, name: str) -> None:
    op = ENTRIES[name]
    assert op.evaluate is not None
    run = op.evaluate.scalar(I32)
    assert run is not None
    given_bounds: list[Bounds] = []
    values: list[int | bool] = []
    for p in (*op.params, *op.params[: op.params[0].variadic]):
        condition = p.name == op.traits.chooses
        lo, hi = data.draw(_ENDS)
        values.append(data.draw(st.booleans()) if condition else data.draw(st.integers(lo, hi)))
        given_bounds.append(None if condition or data.draw(st.integers(0, 4)) == 0 else (lo, hi))
    actual, way = op.evaluate.interval(*given_bounds), op.evaluate.on_the_way(*given_bounds)
    try:
        result = run(*values)
    except DivisionByZero:
        return
    assert actual is None or actual[0] <= result <= actual[1]
    assert is_half_open(actual) <= (None in given_bounds)
    if way is not None:
        a, b = values
        assert way[0] <= a + b - 1 <= way[1]


def test_every_operation_that_gives_i32_says_so() -> None:
    silent = {n for n, op in ENTRIES.items() if op.evaluate is not None and op.evaluate.scalar(I32) is not None} - set(INTERVALS)
    assert not silent and set(ON_THE_WAY) <= set(INTERVALS)


def test_known_ends_are_the_nearest() -> None:
    def of(name: str, *args: Bounds) -> Bounds:
        evaluate = ENTRIES[name].evaluate
        assert evaluate is not None
        return evaluate.interval(*args)

    assert of("%", (0, 5), (7, 9)) == (0, 5) and of("%", (0, 50), (7, 9)) == (0, 8) and of("%", None, (7, 9)) == (0, 8)
    assert of("//", (-5, 5), (2, 2)) == (-3, 2) and of("//", (1, 2), (0, 2)) == (0, 2) and of("cdiv", (0, 9), (4, 4)) == (0, 3)
    assert of("&", None, (0, 6)) == (0, 6) and of("|", (0, 4), (0, 3)) == (0, 7) and of("|", None, (0, 3)) is None
    assert is_half_open(of("min", None, (0, 6))) and of("min", None, (0, 6))[1] == 6  # type: ignore[index]
    assert of("abs", (-3, 2)) == (0, 3) and of("exp2", (0, 1)) is None
    assert make_hull((0, 1), None) is None and make_hull((0, 1), (5, 6)) == (0, 6)
