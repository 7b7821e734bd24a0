"""Layouts of tiles: repeats of an atom, fragments against the tables of CUTLASS, tensor memory."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuir.lowering.layouts.layouts import FRAGMENTS, Layout, fragment_map, read_tensor_memory, repeat
from cuir.lowering.layouts.linear_maps import LinearMap, read_map

ATOMS = (
    "register: c0 r3 | lane: c1 c2 r0 r1 r2",
    "register: c0 c1 | lane: c2+r1 r0 r1",
    "register: | lane: c0 r0",
    "register: r0 c0 | lane: r1+c0",
)
REPEATS = st.lists(st.tuples(st.sampled_from(["row", "column"]), st.sampled_from([1, 2, 3, 4, 6, 12])), max_size=3)


def table(layout: Layout, warps: int = 1) -> dict[tuple[int, int, int], tuple[int, ...]]:
    return {at: tuple(layout.place(*at).values()) for at in layout.iterate(warps)}


@given(st.sampled_from(ATOMS), REPEATS, st.sampled_from([1, 2, 4]))
def test_a_repeated_atom_covers_its_extent_and_says_where_an_element_is(text: str, repeats: list[tuple[str, int]], turns: int) -> None:
    total = 1
    for _, count in repeats:
        total *= count
    turns = turns if total % turns == 0 else 1
    layout = repeat(read_map(text), *repeats, turns=turns)
    places = table(layout, turns)
    rows, columns = layout.extent("row"), layout.extent("column")
    assert set(places.values()) == {(r, c) for r in range(rows) for c in range(columns)}
    assert layout.is_bijective == (len(places) == rows * columns)
    for row in range(rows):
        for column in range(columns):
            assert places[layout.find(row=row, column=column)] == (row, column)


@given(st.sampled_from(ATOMS[:2]), REPEATS, REPEATS)
def test_layouts_are_equal_if_they_place_everything_alike(text: str, a: list[tuple[str, int]], b: list[tuple[str, int]]) -> None:
    first, second = repeat(read_map(text), *a), repeat(read_map(text), *b)
    same = table(first) == table(second) and all(first.extent(n) == second.extent(n) for n in ("row", "column"))
    assert (first == second) == same


def test_repeats_by_two_become_part_of_the_atom() -> None:
    layout = repeat(read_map(ATOMS[0]), ("column", 12), ("row", 2))  # 96 columns, 32 rows
    assert layout.repeats == (("column", 3), ("row", 2)) and layout.atom == read_map("register: c0 r3 c3 c4 | lane: c1 c2 r0 r1 r2")
    assert layout.count == 96 and layout.place(95, 31) == {"row": 31, "column": 95}
    assert repeat(read_map(ATOMS[0]), ("column", 4), ("column", 3)) == repeat(read_map(ATOMS[0]), ("column", 12))


# ---- against CUTLASS, whose tables follow the PTX ISA: (thread, value) -> row + rows * column, or a bit of memory
SOURCES = {
    "mma m16n8 D": ("mma_traits_sm80.hpp", "SM80_16x8_Row", 16),
    "mma m16n8k8 tf32 A": ("mma_traits_sm80.hpp", "MMA_Traits<SM80_16x8x8_F32TF32TF32F32_TN>.ALayout", 16),
    "mma m16n8k8 tf32 B": ("mma_traits_sm80.hpp", "MMA_Traits<SM80_16x8x8_F32TF32TF32F32_TN>.BLayout", 8),
    "mma m16n8k8 A": ("mma_traits_sm80.hpp", "SM80_16x8_Row", 16),
    "mma m16n8k8 B": ("mma_traits_sm80.hpp", "SM80_8x8_Row", 8),
    "mma m16n8k16 A": ("mma_traits_sm80.hpp", "MMA_Traits<SM80_16x8x16_F16F16F16F16_TN>.ALayout", 16),
    "mma m16n8k16 B": ("mma_traits_sm80.hpp", "MMA_Traits<SM80_16x8x16_F16F16F16F16_TN>.BLayout", 8),
    "mma m16n8k32 A": ("mma_traits_sm89.hpp", "MMA_Traits<SM89_16x8x32_F32E4M3E4M3F32_TN>.ALayout", 16),
    "mma m16n8k32 B": ("mma_traits_sm89.hpp", "MMA_Traits<SM89_16x8x32_F32E4M3E4M3F32_TN>.BLayout", 8),
    "wgmma m64k8 A": ("mma_traits_sm90_gmma.hpp", "ALayout_64x8 ", 64),
    "wgmma m64k16 A": ("mma_traits_sm90_gmma.hpp", "ALayout_64x16 ", 64),
    "wgmma m64k32 A": ("mma_traits_sm90_gmma.hpp", "ALayout_64x32 ", 64),
}
# destinations of copies, in bits: name, bits of a number, bits of a row
COPIES = {
    "tcgen05 32x32b": ("copy_traits_sm100.hpp", "Copy_Traits<SM100_TMEM_LOAD_32dp32b1x>.DstLayout", 32, 32),
    "tcgen05 16x64b": ("copy_traits_sm100.hpp", "Copy_Traits<SM100_TMEM_LOAD_16dp64b1x>.DstLayout", 32, 64),
    "tcgen05 16x128b": ("copy_traits_sm100.hpp", "Copy_Traits<SM100_TMEM_LOAD_16dp128b1x>.DstLayout", 32, 128),
    "tcgen05 16x256b": ("copy_traits_sm100.hpp", "Copy_Traits<SM100_TMEM_LOAD_16dp256b1x>.DstLayout", 32, 256),
    "ldmatrix x4": ("copy_traits_sm75.hpp", "Copy_Traits<SM75_U32x4_LDSM_N>.DstLayout", 16, 128),
    "ldmatrix x4 trans": ("copy_traits_sm75.hpp", "Copy_Traits<SM75_U16x8_LDSM_T>.DstLayout", 16, 128),
}
Nested = int | tuple["Nested", ...]


def read_cutlass(file: str, name: str) -> tuple[list[list[int]], list[list[int]]]:
    """The sizes and strides of the modes of threads and of values."""
    spec = importlib.util.find_spec("cutlass_library")
    if spec is None or spec.origin is None:
        pytest.skip("needs CUTLASS, of the extra [gpu]")
    text = (Path(spec.origin).parent / "source/include/cute/atom" / file).read_text(encoding="utf-8")
    struct, _, member = name.rpartition(".")
    if struct:
        text = text[text.index(f"struct {struct}") :]
        name = member
    match = re.search(rf"using {name}\s*=\s*Layout<Shape\s*(<[^;]*?>)\s*,\s*Stride\s*(<[^;]*>)>;", text)
    assert match, name
    return tuple(list(map(flatten, parse(group))) for group in match.groups())  # type: ignore[return-value]


def parse(text: str) -> tuple[Nested, ...]:
    inner = re.sub(r"Shape|Stride|_|\s", "", text).replace("<", "(").replace(">", ",)")
    result = ast.literal_eval(inner)
    return result[0] if isinstance(result[0], tuple) and len(result) == 1 else result


def flatten(x: Nested) -> list[int]:
    return [x] if isinstance(x, int) else [n for part in x for n in flatten(part)]


def offsets(sizes: list[int], strides: list[int]) -> Iterator[int]:
    """The offsets of a mode, its first part fastest."""
    total = 1
    for size in sizes:
        total *= size
    for i in range(total):
        offset = 0
        for size, stride in zip(sizes, strides, strict=True):
            offset, i = offset + i % size * stride, i // size
        yield offset


def places(linear: LinearMap) -> Iterator[tuple[int, int, dict[str, int]]]:
    layout = Layout(linear)
    return (
        (32 * warp + lane, i, layout.place(i, lane, warp)) for i, lane, warp in layout.iterate(4 if "warp" in dict(linear.inputs) else 1)
    )


@pytest.mark.parametrize("name", SOURCES)
def test_fragments_are_those_of_cutlass(name: str) -> None:
    file, source, outer = SOURCES[name]
    (threads, values), (of_threads, of_values) = read_cutlass(file, source)
    by_thread, by_value = list(offsets(threads, of_threads)), list(offsets(values, of_values))
    linear = fragment_map(name)
    assert len(by_value) == Layout(linear).count and linear.is_injective and linear.is_surjective
    for thread, i, place in places(linear):  # operand B is transposed there: its columns are the outer dim
        first, second = (place["column"], place["row"]) if name.endswith(" B") else (place["row"], place["column"])
        assert by_thread[thread] + by_value[i] == first + outer * second


@pytest.mark.parametrize("name", COPIES)
def test_copies_fill_the_registers_that_cutlass_says(name: str) -> None:
    file, source, bits, row_bits = COPIES[name]
    (threads, values), (of_threads, of_values) = read_cutlass(file, source)
    by_thread, by_value = list(offsets(threads, of_threads)), list(offsets(values, of_values))
    for thread, i, place in places(fragment_map(name)):
        bit = 1024 * place.get("part", 0) + row_bits * place["row"] + bits * place.get("column", 0)
        assert by_thread[thread] + by_value[i * bits] == bit


def test_every_fragment_is_held_against_a_table() -> None:
    assert set(FRAGMENTS) - SOURCES.keys() - COPIES.keys() == {"wgmma m64n8 D", "ldmatrix x4 rows"}  # the next test; test_shared_memory.py


def test_an_accumulator_of_a_warpgroup_is_the_next_left_operand() -> None:
    (threads, values), (of_threads, of_values) = read_cutlass("mma_traits_sm90_gmma.hpp", "ALayout_64x16 ")
    layout, by_thread, by_value = (
        repeat(fragment_map("wgmma m64n8 D"), ("column", 2)),
        list(offsets(threads, of_threads)),
        list(offsets(values, of_values)),
    )
    for i, lane, warp in layout.iterate(4):
        place = layout.place(i, lane, warp)
        assert (
            by_thread[32 * warp + lane] + by_value[i] == place["row"] + 64 * place["column"]
        )  # an accumulator is operand A of the next product


def test_a_warpgroup_reads_tensor_memory_row_by_row() -> None:
    layout = read_tensor_memory(96)
    assert (layout.count, layout.extent("row"), layout.extent("column"), layout.is_bijective) == (96, 128, 96, True)
    assert all(layout.place(i, lane, warp) == {"row": 32 * warp + lane, "column": i} for i, lane, warp in layout.iterate(4))
