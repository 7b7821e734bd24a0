"""Costs of conversions, against the device functions that make them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuir.lowering.cuda.prelude import COMMON
from cuir.lowering.layouts.conversions import Conversion, plan_conversion
from cuir.lowering.layouts.layouts import ACCUMULATOR, Layout, repeat
from cuir.lowering.layouts.linear_maps import read_map
from cuir.lowering.layouts.tile_layouts import BY_LANE, CHUNKS, COLUMNS, DEALT, FULL, ONE, ROWS, natural_layout

TWISTED = "register: c0 r3 c3 c4 | lane: c1 c2 r0+c4 r1 r2"


def lay_out(text: str, rows: int, columns: int) -> Layout:
    atom = read_map(text)
    sizes = dict(atom.outputs)
    return repeat(atom, ("column", columns >> sizes["column"]), ("row", rows >> sizes["row"]))


@given(st.sampled_from([ACCUMULATOR, DEALT.text, TWISTED]), st.sampled_from([16, 48, 64]), st.sampled_from([32, 96, 128]))
def test_a_layout_needs_no_conversion_to_itself(text: str, rows: int, columns: int) -> None:
    layout = lay_out(text, rows, columns)
    assert plan_conversion(layout, layout) == plan_conversion(layout, layout, 2) == Conversion("none")


@pytest.mark.parametrize("columns", [16, 96, 128])
def test_dealt_columns_take_the_shuffles_of_the_device_function(columns: int) -> None:
    """For 8 numbers `in_order` shuffles twice each, and selects once."""
    text, count = COMMON["in_order"].text, columns // 2
    assert text.count("__shfl_sync(") == 2 and text.count("second ?") == 1
    assert plan_conversion(lay_out(DEALT.text, 16, columns), lay_out(ACCUMULATOR, 16, columns)) == Conversion("shuffles", 2 * count, count)


def test_pairs_of_rows_that_meet_in_no_bank_take_selects_alone() -> None:
    """`store_accumulator` exchanges two pairs of each four, `odd ?` of rows, before it stores."""
    assert COMMON["store_accumulator"].text.count("odd ?") == 2  # of pairs
    plan = plan_conversion(lay_out(ACCUMULATOR, 16, 64), lay_out(TWISTED, 16, 64))
    assert plan == Conversion("registers", selects=32) and plan.instructions == 32


@pytest.mark.parametrize("columns", [32, 64, 96])
def test_columns_by_lane_take_a_shuffle_each(columns: int) -> None:
    shape = (1, columns)
    plan = plan_conversion(BY_LANE.of(shape, 128), COLUMNS.of(shape, 128))
    # 96 columns repeat 32 thrice by lane, and 8 twelve times by column: atoms of the same 32 columns
    assert plan == Conversion("shuffles", columns // 4)


def test_other_warps_are_reached_through_shared_memory() -> None:
    plan = plan_conversion(FULL.of((64, 64), 128), CHUNKS.of((64, 64), 128), 2)
    assert plan == Conversion("shared memory", stores=16, loads=4, barriers=1)


def test_numbers_of_all_lanes_are_there_already() -> None:
    source, target = ROWS.of((64, 1), 32), ROWS.of((64, 1), 32)
    assert plan_conversion(source, target).way == "none" and natural_layout(1, 1) == ONE


def test_halves_that_change_their_register_are_permuted() -> None:
    a, b = lay_out(ACCUMULATOR, 16, 16), lay_out("register: r3 c0 c3 | lane: c1 c2 r0 r1 r2", 16, 16)
    assert plan_conversion(a, b, 2) == Conversion("registers", permutes=4)
    assert plan_conversion(a, b, 4).way == "registers" and plan_conversion(a, b, 4).instructions == 0
    c = lay_out("register: c0 c3 r3 | lane: c1 c2 r0 r1 r2", 16, 16)
    assert plan_conversion(a, c, 2) == Conversion("registers")


@st.composite
def any_layouts(draw: st.DrawFn) -> Layout:
    """A layout of 8 x 8 elements over 8 lanes of 2 warps, whose bits stand in any order; lanes may hold what others hold."""
    bits = draw(st.permutations(["r0", "r1", "r2", "c0", "c1", "c2"]))
    lane = [*bits[2:5]] if draw(st.booleans()) else [bits[2], bits[3], "."]
    register = [*bits[:2], *([] if len(set(lane)) == 3 and "." not in lane else [bits[4]])]
    return Layout(read_map(f"register: {' '.join(register)} | lane: {' '.join(lane)} | warp: {bits[5]}"))


@given(any_layouts(), any_layouts())
def test_the_way_is_the_nearest_place_that_holds_each_element(source: Layout, target: Layout) -> None:
    """Against every element: whether the thread itself, or a lane of the warp, holds it already."""
    held = dict[tuple[int, int], set[tuple[int, int, int]]]()
    for first in range(source.count):
        for lane in range(8):
            for warp in range(2):
                place = source.place(first, lane, warp)
                held.setdefault((place["row"], place["column"]), set()).add((first, lane, warp))
    needed = {
        (first, lane, warp): (place["row"], place["column"])
        for first in range(target.count)
        for lane in range(8)
        for warp in range(2)
        for place in [target.place(first, lane, warp)]
    }
    by_thread = all(any(at[1:] == holder[1:] for holder in held[element]) for at, element in needed.items())
    by_warp = all(any(at[2] == holder[2] for holder in held[element]) for at, element in needed.items())
    plan = plan_conversion(source, target)
    assert plan.way in (("none", "registers") if by_thread else ("shuffles",) if by_warp else ("shared memory",))
    assert (plan.way == "none") == all(at in held[element] for at, element in needed.items())
    assert plan.shuffles >= target.count if plan.way == "shuffles" else plan.shuffles == 0
