"""Ranges of i32 values: signs, bounds, and values near an end of the 32-bit range."""

from __future__ import annotations

import pytest
from xdsl.ir import SSAValue

from cuir.lowering.analyses.ranges import Ranges, analyse_ranges
from cuir.lowering.ir.ir_text import parse
from cuir.lowering.ir.ops import Kernel
from cuir.ops.meaning.intervals import INF

HEAD = """
tile.kernel "k" arch="sm_90a" cluster=2 cluster_x=2 threads=128 {
  %I = tile.tensor "I" : !tile.tensor<i32, "M">
  %n = tile.parameter "n" : !tile.scalar<i32>
  %j = tile.parameter "j" judged : !tile.scalar<i32>
  %x = tile.parameter "x" : !tile.scalar<f32>
  %M = tile.parameter "M" dim : !tile.scalar<i32>
  %zero = tile.constant 0 : !tile.scalar<i32>
  %one = tile.constant 1 : !tile.scalar<i32>
  %four = tile.constant 4 : !tile.scalar<i32>
  %five = tile.constant 5 : !tile.scalar<i32>
  %most = tile.constant 2147483647 : !tile.scalar<i32>
  %minus = tile.constant -3 : !tile.scalar<i32>
  %work = tile.units "work"(%M) : !tile.units_of_work
  tile.role "r" workers=3 threads=32 registers=0 warpgroup=0 warp=0 {
  ^bb0(%w: !tile.scalar<i32>):
    %e = tile.at %I[%zero] : !tile.element<i32, 0, 0>
    %loaded = tile.perform "element"(place: %e) : !tile.scalar<i32>
"""
TAIL = "    tile.yield()\n  }\n  tile.yield()\n}\n"


def kernel(body: str) -> Kernel:
    return parse(HEAD + body + TAIL)


def find_value(result: Kernel, name: str) -> SSAValue:
    for op in result.walk():
        for value in [*op.results, *(a for r in op.regions for b in r.blocks for a in b.args)]:
            if value.name_hint == name:
                return value
    raise KeyError(name)


def apply(op: str, *args: str, type: str = "scalar<i32>") -> str:
    return f'    %y = tile.apply "{op}"({", ".join("%" + a for a in args)}) : !tile.{type}\n'


def of(op: str, *args: str) -> tuple[Ranges, SSAValue]:
    result = kernel(apply(op, *args))
    return analyse_ranges(result), find_value(result, "y")


@pytest.mark.parametrize(
    ("op", "args", "least", "most"),
    [
        ("+", "w four", 4, 6),
        ("-", "w four", -4, -2),
        ("*", "w minus", -6, 0),
        ("neg", "w", -2, 0),
        ("~", "w", -3, -1),
        ("abs", "minus", 3, 3),
        ("min", "loaded w", -INF, 2),
        ("max", "loaded w", 0, INF),
        ("&", "loaded w", 0, 2),
        ("|", "w four", 0, 7),
        ("%", "loaded five", 0, 4),
        ("%", "w minus", -2, 0),
        ("%", "w five", 0, 2),
        ("//", "w four", 0, 0),
        ("//", "minus four", -1, -1),
        ("cdiv", "w four", 0, 1),
        ("//", "M four", 0, INF),
        ("//", "four M", 0, 4),
        ("*", "M M", 0, INF),
        ("-", "M one", -1, INF),
        ("+", "loaded one", -INF, INF),
        ("+", "most one", -INF, INF),
        ("cast", "x", -INF, INF),
    ],
)
def test_bounds(op: str, args: str, least: int, most: int) -> None:
    result, y = of(op, *args.split())
    assert (result[y].least, result[y].most) == (least, most)
    assert result.nonnegative(y) == (least >= 0)


def test_what_may_be_any_number_is_far_and_a_sum_with_it_may_wrap() -> None:
    for far in ("loaded", "n", "most"):
        result, y = of("+", far, "one")
        assert result.near_ends(y) and not result.fits(y)
    for near in ("M", "j", "w"):
        result, y = of("+", near, "one")
        assert not result.near_ends(y) and result.fits(y)


@pytest.mark.parametrize(
    ("rows", "least", "most", "near"), [("w", 0, 9, True), ("M", 0, INF, True), ("loaded", -INF, INF, False), (None, 0, 7, True)]
)
def test_lines(rows: str | None, least: int, most: int, near: bool) -> None:
    """rows + 1 * column, of eight columns."""
    result = kernel(f"    %y = tile.line %one{f' from %{rows}' if rows else ''} : !tile.reg<i32, 1, 8>\n")
    r, y = analyse_ranges(result), find_value(result, "y")
    assert (r[y].least, r[y].most) == (least, most) and r.near_ends(y) != near


def test_limits_bring_a_value_near() -> None:
    text = apply("min", "loaded", "four").replace("%y", "%a") + apply("max", "a", "zero").replace("%y", "%b") + apply("-", "b", "five")
    result = kernel(text)
    r = analyse_ranges(result)
    assert [r.near_ends(find_value(result, v)) for v in "aby"] == [True, False, False]
    assert r.fits(find_value(result, "y")) and (r[find_value(result, "y")].least, r[find_value(result, "y")].most) == (-5, -1)


def test_a_sum_that_wraps_is_near_neither_end_for_certain() -> None:
    """max(x, 0) + 1 may be -2^31, so that min(that, 5) - 4 may wrap too."""
    text = apply("max", "loaded", "zero").replace("%y", "%a") + apply("+", "a", "one").replace("%y", "%b")
    result = kernel(text + apply("min", "b", "five").replace("%y", "%c") + apply("-", "c", "four"))
    r = analyse_ranges(result)
    assert not r.nonnegative(find_value(result, "b")) and r.near_ends(find_value(result, "c")) and not r.fits(find_value(result, "y"))


def test_a_product_fits_if_one_factor_is_known() -> None:
    for second, fits in (("four", True), ("M", False)):
        result, y = of("*", "M", second)
        assert result.fits(y) == fits


def test_tiles_and_the_place_in_a_cluster() -> None:
    result = kernel(apply("rows", type="reg<i32, 64, 1>") + apply("cta_rank").replace("%y", "%c"))
    r = analyse_ranges(result)
    assert (r[find_value(result, "y")].most, r[find_value(result, "c")].most) == (63, 1) and r.nonnegative(find_value(result, "y"))


def test_a_counter_is_never_negative_and_a_bounded_one_bounded() -> None:
    result = kernel("""
    %a, %b, %c = tile.for_units %t in %work carrying (%u = %zero, %v = %zero, %d = %zero) {
      %u1 = tile.apply "+"(%u, %one) : !tile.scalar<i32>
      %v1 = tile.apply "^"(%v, %one) : !tile.scalar<i32>
      %d1 = tile.apply "-"(%d, %one) : !tile.scalar<i32>
      %last = tile.for %i = %w to %five carrying (%z = %u1) {
        tile.yield(%i)
      }
      tile.yield(%last, %v1, %d1)
    }
""")
    r = analyse_ranges(result)
    assert all(r.nonnegative(find_value(result, v)) for v in ("a", "u", "t", "i", "z", "last"))
    assert (r[find_value(result, "v")].least, r[find_value(result, "v")].most) == (0, 1)
    assert (r[find_value(result, "d")].least, r[find_value(result, "d")].most) == (-INF, 0)
    assert (r[find_value(result, "i")].least, r[find_value(result, "i")].most) == (0, 4)
    assert not any(r.near_ends(find_value(result, v)) for v in "audti")


def test_a_loop_that_counts_down() -> None:
    result = kernel("    tile.for %i = %five to %zero step -1 {\n      tile.yield()\n    }\n")
    r = analyse_ranges(result)
    assert (r[find_value(result, "i")].least, r[find_value(result, "i")].most) == (1, 5)


def test_a_branch_gives_either_side() -> None:
    result = kernel("""
    %c = tile.apply "<"(%w, %four) : !tile.scalar<bool>
    %y = tile.if %c {
      tile.yield(%five)
    } else {
      tile.yield(%minus)
    }
""")
    r = analyse_ranges(result)
    assert (r[find_value(result, "y")].least, r[find_value(result, "y")].most) == (-3, 5)
