"""Forms of instructions in the machine against what an H200 gave: the same bits, or within the bound beside the form."""

from __future__ import annotations

import base64
import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from cuir.cuda import LoadedModule, tensor_map
from cuir.ptx.isa.float_formats import decode
from cuir.ptx.module import read_module
from cuir.text.diagnostics import CuirError
from tests.ptx.card.forms import Array, Box, Form, get_dtype, write_module
from tests.ptx.card.record import FAMILIES, read_results, run_families
from tests.ptx.card.tensor_forms import make_load, make_tensor

TENSORS = {"u8": torch.uint8, "u16": torch.int16, "u32": torch.int32, "s32": torch.int32, "u64": torch.int64} | {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
}
WAITING = {"tensors"}  # families with forms that no card has run yet
GROUPS = sorted({(family, form.group) for family, list_forms in FAMILIES.items() for form in list_forms()})
recorded = functools.cache(read_results)


@functools.cache
def list_group(family: str, group: str) -> list[Form]:
    return [f for f in FAMILIES[family]() if f.group == group]


def make_map(box: Box, buffers: list[torch.Tensor]) -> object:
    """The tensor map of a box of one of the buffers."""
    dtype = TENSORS[box.type]
    flat = buffers[box.written].view(dtype)
    strides = [1, *(s // dtype.itemsize for s in box.strides)]
    tensor = flat.as_strided(box.sizes[::-1], strides[::-1], box.offset // dtype.itemsize)
    return tensor_map(tensor, box.box[::-1], box.swizzle, box.steps[::-1])


def run_in_machine(module: LoadedModule, form: Form) -> Array:
    """The bytes that a form writes in the machine, which finds nothing."""
    buffers = [torch.from_numpy(np.ascontiguousarray(form.draw())), torch.zeros(form.nbytes, dtype=torch.uint8)]
    arguments = [*buffers, *([make_map(form.box, buffers)] if form.box is not None else [])]
    module[form.entry](1, form.threads, *arguments)  # type: ignore[arg-type]
    return buffers[1].numpy()


def find_difference(form: Form, output: Array, card: Array) -> str:
    """Tell how all results of a form differ, given as bytes; "" if they are the same, or within the bound."""
    dtype = get_dtype(form.unit)
    return compare_elements(form, output.view(dtype), card.view(dtype))


def compare_elements(form: Form, found: Array, expected: Array) -> str:
    """Tell how elements differ."""
    unit = form.unit
    if unit[0] in "fb" and unit.endswith("x2"):
        unit, found, expected = unit[:-2], found.view(np.uint16), expected.view(np.uint16)
    unequal = found != expected
    if form.bound is not None:
        own, card = (decode(x.view({"f16": np.float16, "f32": np.float32}.get(unit, x.dtype)), unit) for x in (found, expected))
        with np.errstate(invalid="ignore"):
            unequal &= ~(np.abs(own - card) <= form.bound.absolute + form.bound.relative * np.abs(own))
    if not unequal.any():
        return ""
    first = int(np.flatnonzero(unequal)[0])
    values = f"{int(found[first]):#x}, on the card {int(expected[first]):#x}"
    return f"{form.name}: {np.count_nonzero(unequal)} of {len(found)} differ, the first is {values} (number {first})"


@pytest.mark.parametrize(("family", "group"), GROUPS, ids=["-".join(g).replace(" ", "-") for g in GROUPS])
def test_the_machine_gives_what_the_card_gave(family: str, group: str, seeded_quarter: Callable[[list[Form]], list[Form]]) -> None:
    forms = seeded_quarter([f for f in list_group(family, group) if family not in WAITING or (family, f.name) in recorded()])
    module = LoadedModule(read_module(write_module(forms)), Path("forms.ptx"))
    pairs = ((f, f.choose(run_in_machine(module, f)), np.frombuffer(recorded()[family, f.name], get_dtype(f.unit))) for f in forms)
    assert not [d for f, found, expected in pairs if (d := compare_elements(f, found, expected))]


def test_many_forms_are_recorded() -> None:
    names = {(family, form.name) for family, list_forms in FAMILIES.items() for form in list_forms()}
    assert set(recorded()) <= names and {family for family, _ in names - set(recorded())} <= WAITING
    assert len(recorded()) > 1500


def test_a_box_that_begins_between_chunks_is_refused() -> None:
    tensor = make_tensor("f16", (64, 40), (32, 16), 64, (1, 1))
    form = make_load(tensor, (5, 3), "between chunks")
    module = LoadedModule(read_module(write_module([form])), Path("forms.ptx"))
    with pytest.raises(CuirError, match="from element 5 of the innermost dim, which must lie at a multiple of 16 bytes"):
        run_in_machine(module, form)


def test_another_bit_is_a_difference() -> None:
    form = list_group("floats", "add")[0]
    results = np.frombuffer(recorded()["floats", form.name], get_dtype(form.unit)).copy()
    assert not compare_elements(form, results, results)
    other = results.copy()
    other[7] ^= 1
    assert "number 7" in compare_elements(form, other, results)


@pytest.mark.gpu
@pytest.mark.nvcc
@pytest.mark.parametrize("family", FAMILIES)
def test_the_card_gives_what_it_gave(family: str) -> None:
    forms = {f.name: f for f in FAMILIES[family]()}
    lines = list(run_families([family]))
    assert not [line for line in lines if "error" in line]
    found = {line["form"]: np.frombuffer(base64.b64decode(line["output"]), np.uint8) for line in lines}
    before = {n: recorded()[family, n] for n in forms if (family, n) in recorded()}
    assert not [n for n, kept in before.items() if forms[n].choose(found[n]).tobytes() != kept]
    module = LoadedModule(read_module(write_module(list(forms.values()))), Path("forms.ptx"))
    everything = ((f, run_in_machine(module, f), found[n]) for n, f in forms.items())
    assert not [d for f, own, card in everything if (d := find_difference(f, own, card))]
