"""The recorded sums of products that are not exact, against the model of how an H200 sums: bit by bit."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from cuir.ptx.isa.instruction_table import split_opcode
from cuir.ptx.isa.matrices import decode_registers, find_operand, find_result_places, read_shape
from cuir.ptx.isa.warpgroup_matrices import Descriptor, arrange, find_chunks, read_form
from cuir.ptx.isa.warpgroup_matrices import find_result_places as find_warpgroup_places
from tests.ptx.card.forms import Array, Form, get_dtype
from tests.ptx.card.product_forms import BITS, lay_out, list_roundings, list_warp_products
from tests.ptx.card.record import read_results
from tests.ptx.card.sums import NARROW, NARROW_TO_F16, WIDE, add_by_halves, add_products

BYTES = ("e4m3", "e5m2")
WARPS = [f for f in list_warp_products() if f.name.endswith(" any") and not f.group.endswith("f64")]
WARPGROUPS = [f for f in list_roundings() if f.name.endswith(" any")]
recorded = functools.cache(read_results)


def list_elements(words: Array, unit: str) -> Array:
    """The numbers of registers [registers, threads], by register, element and thread."""
    if unit == "f16":
        halves = np.ascontiguousarray(words.T).view(np.float16).reshape(len(words.T), -1)
        return halves.T.astype(np.float64)
    return words.view(np.float32).astype(np.float64)


def place_elements(elements: Array, places: Array, shape: tuple[int, int]) -> Array:
    matrix = np.zeros(shape[0] * shape[1])
    matrix[places.reshape(-1)] = elements.reshape(-1)
    return matrix.reshape(shape)


def compare_with_card(form: Form, total: Array, places: Array, threads: int) -> None:
    """Compare the elements of a matrix that are recorded."""
    dtype = np.float16 if form.unit == "f16" else np.float32
    with np.errstate(over="ignore"):
        by_thread = total.reshape(-1)[places.reshape(-1)].reshape(-1, threads).T
    found = np.ascontiguousarray(by_thread).astype(dtype).reshape(-1)[form.find_kept()]
    expected = np.frombuffer(recorded()["products", form.name], get_dtype(form.unit)).view(dtype)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("form", WARPS, ids=[f.entry for f in WARPS])
def test_a_warps_sums_are_those_of_the_model(form: Form) -> None:
    op = split_opcode(form.name.split()[0])
    m, n, k = read_shape(op)
    result, first, second, _ = op.types
    data, sizes = form.draw(), [m * k * BITS[first] // 8, k * n * BITS[second] // 8]
    parts = [p.view(np.uint32).reshape(32, -1).T for p in np.split(data, np.cumsum(sizes))]
    a, b = (
        decode_registers(part, t)[find_operand(rows, k, len(part), 1, 32 // BITS[t], is_second)][0]
        for part, t, rows, is_second in ((parts[0], first, m, False), (parts[1], second, n, True))
    )
    places = find_result_places(m)
    c = place_elements(list_elements(np.ascontiguousarray(parts[2]), form.unit), places, (m, n))
    total = add_by_halves(a, b, c, np.float16 if result == "f16" else np.float32) if first in BYTES else add_products(a, b, c, WIDE)
    compare_with_card(form, total, places, 32)


@pytest.mark.parametrize("form", WARPGROUPS, ids=[f.entry for f in WARPGROUPS])
def test_a_warpgroups_sums_are_those_of_the_model(form: Form) -> None:
    shape = read_form(split_opcode(form.name.split()[0]))
    *layouts, nbytes = lay_out(shape.first, shape.columns, (128, 128))
    data = form.draw()
    chunks = data[:nbytes].reshape(-1, 16)
    a, b = (
        arrange(chunks[find_chunks(Descriptor(*layout[:4]), rows, shape.inner, False) // 16], shape.first, False)
        for layout, rows in zip(layouts, (64, shape.columns))
    )
    places = find_warpgroup_places(shape.columns)
    words = np.ascontiguousarray(data[nbytes : nbytes + form.nbytes].view(np.uint32).reshape(128, -1).T)
    total = place_elements(list_elements(words, form.unit), places, (64, shape.columns))
    total = np.zeros_like(total) if "from zero" in form.name else total
    narrow = NARROW_TO_F16 if form.unit == "f16" else NARROW
    for _ in range(4 if "four steps" in form.name else 1):
        total = add_products(a, b, total, narrow if shape.first in BYTES else WIDE)
    compare_with_card(form, total, places, 128)
