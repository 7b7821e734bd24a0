"""Ways of loads, stores and reads: IR text to the way that is chosen, with its reason and those of the ways that do not fit."""

from __future__ import annotations

import pytest

from cuir.lowering.ir import ops
from cuir.lowering.ir.ir_text import parse, show
from cuir.lowering.ir.ir_walk import every
from cuir.lowering.passes import select_instructions
from cuir.lowering.select.ways import Selection, find_selection

FRAME = """\
tile.kernel "k" arch="%ARCH" cluster=1 cluster_x=1 threads=128 {
  %Y = tile.tensor "Y" written : !tile.tensor<f32, 256, 64>
  %H = tile.tensor "H" written : !tile.tensor<f16, 256, "N">
  %O = tile.tensor "O" written : !tile.tensor<f32, 256, 33>
  %P = tile.tensor "P" written scratch : !tile.tensor<f32, 256, 64>
  %n = tile.parameter "n" : !tile.scalar<i32>
  %s = tile.parameter "s" : !tile.scalar<f32>
  %a = tile.shared "a" offset=0 : !tile.shared<f32, 64, 64>
  %h = tile.shared "h" offset=16384 : !tile.shared<f16, 64, 64>
  %narrow = tile.shared "narrow" offset=32768 : !tile.shared<f16, 64, 40>
  %q = tile.shared "q" offset=49152 : !tile.shared<f8e4m3, 64, 128>
  %line = tile.shared "line" offset=65536 : !tile.shared<f32, 1, 64>
  %0 = tile.constant 0 : !tile.scalar<i32>
  tile.role "all" workers=1 threads=128 registers=0 warpgroup=0 warp=0 {
  ^bb0(%w: !tile.scalar<i32>):
"""


def select(*lines: str, arch: str = "sm_90a") -> Selection:
    """The way of the last operation that has one; the IR's text shows it and reads it back."""
    text = FRAME.replace("%ARCH", arch) + "".join(f"    {line}\n" for line in lines) + "    tile.yield()\n  }\n  tile.yield()\n}\n"
    kernel = parse(text)
    select_instructions.run(kernel)
    assert show(parse(show(kernel))) == show(kernel)
    found = [s for op in every(kernel) if (s := find_selection(op)) is not None]
    assert all(op.attributes == {} for op in every(kernel) if isinstance(op, ops.Apply | ops.Constant))
    return found[-1]


def load(view: str, tile: str, arch: str = "sm_90a") -> Selection:
    return select(f'%x = tile.perform "load"(view: {view}) : !tile.reg<{tile}>', arch=arch)


def store(place: str, tile: str, *, more: str = "", mask: str = "", arch: str = "sm_90a") -> Selection:
    """A store of a tile of zeros, behind operations that make its place."""
    zero = f'%z = tile.apply "full"(%s) : !tile.reg<{tile}>'
    masks = [f'%m = tile.apply "full"(%t) : !tile.reg<{mask}>'] if mask else []
    truth = ["%t = tile.constant True : !tile.scalar<bool>"] if mask else []
    given = f"place: {place}, tile: %z" + (", mask: %m" if mask else "")
    return select(*more.splitlines(), zero, *truth, *masks, f'tile.perform "store"({given})', arch=arch)


@pytest.mark.parametrize(
    ("view", "tile", "way", "because"),
    [
        ("%h", "f16, 64, 64", "ldmatrix", "rows lie in whole panels of 128 bytes, pairs of 16 bits, 64 columns are a multiple of 16"),
        ("%a", "f32, 64, 64", "pairs", "64 columns of f32 are whole panels: odd rows begin with the other half, so that no two lanes meet in a bank"),
        ("%narrow", "f16, 64, 40", "elements", "a thread's f16 are loaded one by one"),
        ("%line", "f32, 1, 64", "columns", "one row of f32, not swizzled, 64 columns are a multiple of 8"),
        ("%q", "f8e4m3, 64, 128", "byte pairs", "8-bit numbers of whole panels, one slab of 64 rows"),
        ("%q", "f16, 64, 128", "widened pairs", "memory holds f8e4m3, registers f16, rows in whole panels"),
        ("%q", "f16, 64, 128, chunks", "chunks", "the tile is widened and stored again alone, so that lanes may hold whole chunks"),
        ("%a", "f32, 64, 64, eights", "eights as TF32", "the tile is the left operand of TF32 products alone, whose right operands lie column by column, and all take one TF32 part"),
        ("%h", "f16, 64, 64, fours", "fours", "the tile is the left operand of products by 8-bit floats alone, which lie column by column"),
    ],
)  # fmt: skip
def test_a_load_from_shared_memory(view: str, tile: str, way: str, because: str) -> None:
    selection = load(view, tile)
    assert (selection.way, selection.because) == (way, because)


def test_a_load_says_why_others_do_not_fit() -> None:
    assert load("%narrow", "f16, 64, 40").rejected == (
        "ldmatrix: the array's rows are no whole panels of 128 bytes",
        "pairs: elements are f16, not f32",
    )
    assert load("%a", "f32, 64, 64").rejected == ("ldmatrix: registers hold one f32 each, no pairs of 16 bits",)
    assert load("%line", "f32, 1, 64").rejected == ()  # no way of whole matrices is named


def test_a_transposed_view_is_loaded_element_by_element() -> None:
    view = "%t = tile.at %h[: 64, : 64] : !tile.shared<f16, 64, 64, transposed>"
    selection = select(view, '%x = tile.perform "load"(view: %t) : !tile.reg<f16, 64, 64>')
    assert (selection.way, selection.because) == ("elements", "rows of the tile are columns of the array")
    assert "ldmatrix: rows of the tile are columns of the array" in selection.rejected


@pytest.mark.parametrize(
    ("place", "tile", "arch", "way"),
    [
        ("%h", "f16, 64, 64", "sm_90a", "stmatrix"),
        ("%h", "f16, 64, 64", "sm_80", "pairs of halves"),
        ("%a", "f32, 64, 64", "sm_90a", "pairs"),
        ("%a", "f32, 64, 64, dealt", "sm_90a", "dealt pairs"),
        ("%narrow", "f16, 64, 40", "sm_90a", "elements"),
        ("%h", "f16, 64, 64, chunks", "sm_90a", "chunks"),
    ],
)
def test_a_store_to_shared_memory(place: str, tile: str, arch: str, way: str) -> None:
    assert store(place, tile, arch=arch).way == way


def test_a_mask_leaves_elements() -> None:
    selection = store("%h", "f16, 64, 64", mask="bool, 64, 64")
    assert (selection.way, selection.because) == ("elements", "a mask selects elements")
    ways = ("stmatrix", "pairs of halves", "pairs")
    assert selection.rejected == tuple(f"{way}: a mask selects elements" for way in ways)


BOX = "%p = tile.at {}[%n : 64, {}] : !tile.tensor<{}, 64, {}>"


@pytest.mark.parametrize(
    ("box", "tile", "way", "reason"),
    [
        (BOX.format("%Y", ": 64", "f32", 64), "f32, 64, 64", "vectors if aligned", "2 f32 of 8 bytes are neighbours of a row"),
        (BOX.format("%H", ": 64", "f16", 64), "f16, 64, 64", "vectors if aligned", "8 f16 of 16 bytes are neighbours of a row"),
        (BOX.format("%P", ": 64", "f32", 64), "f32, 64, 64", "vectors", "scratch memory is aligned"),
        (BOX.format("%O", ": 32", "f32", 32), "f32, 64, 32", "elements", "rows of 33 elements are no whole vectors of 2"),
        (BOX.format("%Y", "%n : 32", "f32", 32), "f32, 64, 32", "elements", "its first column is not known to be a multiple of 2"),
        (BOX.format("%Y", ": 12", "f32", 12), "f32, 64, 12", "elements", "12 columns are no multiple of 8"),
    ],
)
def test_a_store_to_a_tensor(box: str, tile: str, way: str, reason: str) -> None:
    selection = store("%p", tile, more=box)
    assert selection.way == way and reason in "; ".join([selection.because, *selection.rejected])


def test_reads_of_single_elements() -> None:
    rows, columns = '%r = tile.apply "rows"() : !tile.reg<i32, 64, 1>', '%c = tile.apply "cols"() : !tile.reg<i32, 1, 64>'
    gather = '%x = tile.perform "gather"(place: %p) : !tile.reg<f32, 64, 64>'
    assert select(rows, columns, "%p = tile.at %P[%r, %c] : !tile.element<f32, 64, 64>", gather).way == "pairs"
    selection = select(rows, columns, "%p = tile.at %Y[%r, %c] : !tile.element<f32, 64, 64>", gather)
    assert selection.way == "elements" and len(selection.rejected) == 1
    one = select("%p = tile.at %Y[%n, %n] : !tile.element<f32, 1, 1>", '%x = tile.perform "element"(place: %p) : !tile.scalar<f32>')
    assert one.way == "one number"
