"""Objects in a notebook: HTML with its own styles and script, while a repr stays a line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import cuir
from cuir.explore import Exploration
from cuir.lowering.layouts.tile_layouts import Fragment
from cuir.mutation import MutateReport
from cuir.pages.fragment_picture import render_fragment_layout
from cuir.runtime.nvcc import Compiled, Resources
from cuir.verification import VerifyReport
from tests.pages.html_text import OUTSIDE, assert_well_formed, read_text
from tests.pages.ring_programs import HANG, RACE, TEXT, record

PROGRAM = cuir.parse(TEXT)


def make_compiled() -> Compiled:
    return Compiled(cuir.lower(cuir.check(PROGRAM)), b"", Resources("double", 53, 0, 0, 0, 4096, 256, 1.5, "nvcc V13"))


def make_transfer() -> object:
    return cuir.transfer(cuir.load("corpus/programs/flash_fwd.cuir"), make_variant())


def make_variant() -> cuir.Specification:
    return cuir.Specification("window", lambda b, h, q, k: (q - k < 200) & (q >= k), doc="a <window>")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: PROGRAM, ("double", "full[s].expect(nbytes(buf[s]))")),
        (lambda: cuir.check(PROGRAM), ("load (1 of 32 threads)", "full[s].wait(phase)")),
        (lambda: cuir.lower(cuir.check(PROGRAM)), ("CUDA", "extern")),
        (make_compiled, ("registers at launch53", "No SASS")),
        (make_transfer, ("window", "keep", 'class="new"')),
        (make_variant, ("a <window>", "queries 1, keys 0: some")),
        (lambda: record(TEXT)[1], ("full[1]", "phase 1", "step")),
        (lambda: record(HANG)[1], ("deadlock", "is blocked")),
        (lambda: record(RACE)[1], ("is not ordered after", "error[R401]")),
        (lambda: VerifyReport("spec", "double", "quick", {}), ("spec",)),
        (lambda: MutateReport(()), ("0 of 0",)),
        (lambda: Exploration(), ("no deadlock",)),
        (lambda: Fragment(64, 16, 128), ("lane 31 of warp 3, element 6",)),
    ],
)
def test_objects_show_themselves(make: Callable[[], Any], words: tuple[str, ...]) -> None:
    value = make()
    html = value._repr_html_()
    text = read_text(html)
    assert not [word for word in words if word not in text and word not in html]
    assert html.startswith('<div class="cuir">') and "window.cuirPictures" in html and not OUTSIDE.search(html)
    assert "\n" not in repr(value)
    assert_well_formed(html)


def test_a_fragment_has_each_element_once() -> None:
    layout = Fragment(96, 64, 128)
    html = render_fragment_layout(layout)
    assert html.count("<title>row") == 64 * 32 and "1 more slab of 64 rows and the other columns" in html
    assert "row 9, column 3: lane 5 of warp 0, element 3 of the thread" in html
    assert layout.element(5, 3) == (9, 3)
