"""The choice among ways: the first that fits, what is said of the others, and its record on an operation."""

from __future__ import annotations

import pytest

from cuir.lowering.ir import ops
from cuir.lowering.select.ways import Selection, Verdict, Ways, because_of, choose, find_selection, fits, is_selected, misfits, way_of
from cuir.syntax.types import I32


def make_ways() -> Ways:
    ways = Ways()

    @ways.way("count", "odd")
    def odd(n: int) -> Verdict:
        return fits(f"{n} is odd") if n % 2 else misfits(f"{n} is even")

    @ways.way("count", "of threes")
    def threes(n: int) -> Verdict | None:
        return fits("a multiple of 3") if n % 3 == 0 else None

    @ways.way("count", "small")
    def small(n: int) -> Verdict:
        return fits("below 10") if n < 10 else misfits("10 or more")

    return ways


@pytest.mark.parametrize(
    ("n", "selection"),
    [
        (3, Selection("odd", "3 is odd")),
        (6, Selection("of threes", "a multiple of 3", ("odd: 6 is even",))),
        (4, Selection("small", "below 10", ("odd: 4 is even",))),
    ],
)
def test_the_first_way_that_fits_is_chosen(n: int, selection: Selection) -> None:
    assert choose(make_ways().list_ways("count"), n) == selection


def test_no_way_says_why() -> None:
    with pytest.raises(LookupError, match="odd: 20 is even; small: 10 or more"):
        choose(make_ways().list_ways("count"), 20)


def test_a_name_is_registered_once() -> None:
    with pytest.raises(ValueError, match="two ways to count are called odd"):
        make_ways().way("count", "odd")(lambda n: None)
    assert make_ways().list_ways("weigh") == []


def test_a_record_replaces_the_one_before() -> None:
    op = ops.constant(1, I32)
    assert find_selection(op) is None and not is_selected(op, "a")
    with pytest.raises(LookupError, match=r"no way is selected for tile\.constant"):
        way_of(op)
    Selection("a", "it fits", ("b: it does not",)).record(op)
    assert find_selection(op) == Selection("a", "it fits", ("b: it does not",))
    Selection("c", "it fits better").record(op)
    assert find_selection(op) == Selection("c", "it fits better") and (way_of(op), because_of(op)) == ("c", "it fits better")
