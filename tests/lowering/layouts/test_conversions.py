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
