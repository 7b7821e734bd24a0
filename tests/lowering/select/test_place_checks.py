"""Places that no card can address: which they are, and where the error that refuses them is."""

from __future__ import annotations

import pytest

from cuir.lowering.ir import ops
from cuir.lowering.ir.build_ir import build
from cuir.lowering.ir.ir_walk import every
from cuir.lowering.passes.pipeline import optimise
from cuir.lowering.select.place_checks import find_misplaced
from cuir.text.diagnostics import CuirError
from tests.lowering.tile_ir import program, role

INDICES = ('%r = tile.apply "rows"() : !tile.reg<i32, 64, 1>', '%c = tile.apply "cols"() : !tile.reg<i32, 1, 64>')


def find(*lines: str) -> tuple[str, str] | None:
    """What is wrong with the last operation of IR texts, and which operation is to blame."""
    *_, last = (op for op in every(role(*lines)) if isinstance(op, ops.Perform))
    found = find_misplaced(last)
    return None if found is None else (found.because, found.op.name)


@pytest.mark.parametrize(
    ("array", "expected"), [("%a", ("a gather from shared memory", "tile.perform")), ("%X", None)], ids=["shared memory", "a tensor"]
)
def test_gathers(array: str, expected: tuple[str, str] | None) -> None:
    place = f"%p = tile.at {array}[%r, %c] : !tile.element<f32, 64, 64>"
    assert find(*INDICES, place, '%g = tile.perform "gather"(place: %p) : !tile.reg<f32, 64, 64>') == expected


@pytest.mark.parametrize(
    ("parts", "sizes", "expected"),
    [
        (": 64, : 64", "64, 64", None),
        (": 64, %n", "64", ("a box whose columns are no slice of the innermost dim", "tile.at")),
    ],
)
def test_boxes(parts: str, sizes: str, expected: tuple[str, str] | None) -> None:
    place = f"%p = tile.at %X[{parts}] : !tile.tensor<f32, {sizes}>"
    assert find(place, '%x = tile.perform "load"(view: %p) : !tile.reg<f32, 64, 1>') == expected


def test_the_error_is_at_the_place_in_the_program() -> None:
    text = (
        '\n@kernel(arch="sm_90a")\ndef k(X: Global[f32, M, N], Z: Global[f32, M, N], n: i32):\n'
        '    with role("all", warpgroups=1):\n        store(Z[n, 0:64], load(X[0:64, n]))\n'
    )
    with pytest.raises(CuirError) as caught:
        optimise(build(program(text.replace("Z[n, 0:64]", "Z[0:64, n]"))))
    (result,) = caught.value.diagnostics
    assert result.code == "L002" and result.span is not None and result.span.line == 5 and result.hint == "slice the last dim"
