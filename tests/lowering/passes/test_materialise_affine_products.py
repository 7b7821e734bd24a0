"""The place where slope * column is computed: kept in registers, or late."""

from __future__ import annotations

import re

import pytest

from cuir.lowering.ir.build_ir import build
from cuir.lowering.ir.ir_text import show
from tests.lowering.conftest import HEAD, kernel
from tests.lowering.passes.lowering import BIAS, after, cuda, materialise
from tests.lowering.passes.test_split_row_bias import BEGIN

ROOMY = HEAD.replace("warpgroups=1)", "warpgroups=1, registers=232)")
TIGHT = HEAD.replace("warpgroups=1)", "warpgroups=1, registers=128)")


def ir(body: str, head: str = ROOMY) -> str:
    return show(after(build(kernel(BEGIN + body, head)), [*BIAS, materialise]))


def loop(*lines: str) -> str:
    return "\n".join(
        ["T = zeros(f32, [64, 64])", "for i in range(n):", *(f"    {x}" for x in lines), "    m = row_max(T)", "    store(Y[rows(64)], m)"]
    )


@pytest.mark.parametrize(
    ("body", "retained"),
    [
        (loop("T = S + cast(k - q, f32) * scale"), 1),
        (loop("T = S - cast(k - q, f32) * scale"), 1),
        (loop("T = S + cast(q - k, f32) * scale"), 1),
        (loop("T = S + cast(k * 2 + i, f32)"), 1),
        (loop("T = S + (scale * cast(k, f32) * 0.5 - cast(q, f32))"), 1),
        (loop("T = S + (cast(k, f32) * scale + cast(k, f32))"), 1),
        (loop("T = S + cast(k, f32) * scale", "store(Y[rows(64)], row_max(T))", "T = S + cast(k - i, f32) * scale"), 1),  # one for both
        ("f = exp2(scale)\n" + loop("T = S + cast(k, f32) * f"), 1),
        (loop("T = S + cast(k, f32) * exp2(scale)"), 1),  # the same number in each turn
        (loop("f = exp2(cast(i, f32))", "T = S + cast(k, f32) * f"), 0),  # another slope each turn
        ("f = scale\n" + loop("T = S + cast(k, f32) * f", "f = f * 2.0"), 0),
        ("T = S + cast(k, f32) * scale\nm = row_max(T)\nstore(Y[rows(64)], m)", 0),  # nothing is computed twice
    ],
)
def test_products_that_stay_the_same_are_kept_in_registers(body: str, retained: int) -> None:
    result = ir(body)
    assert len(re.findall(r"tile\.pin\(.*\) : !tile.reg<f32, 1, 64>", result)) == retained
    assert retained or "tile.after" in result


def test_products_are_computed_as_soon_as_the_slope_is_known() -> None:
    inner = "\n".join("    " + x for x in loop("T = S + cast(k, f32) * f").split("\n"))
    lines = ir("for j in range(n):\n    f = exp2(cast(j, f32))\n" + inner).split("\n")
    (at,) = [i for i, line in enumerate(lines) if "tile.pin" in line]
    before = "\n".join(lines[:at])
    assert before.count("tile.for ") == 1 and "tile.for " in "\n".join(lines[at:])


def test_a_role_without_room_computes_products_anew_and_late() -> None:
    body = loop("T = S + cast(k, f32) * scale")
    for head in (TIGHT, HEAD):
        result = ir(body, head)
        assert "tile.pin" not in result
        late = re.search(r"(%\w+) = tile.after\(%scale, (%\w+)\) : !tile.scalar<f32>", result)
        assert late is not None and f"tile.line {late[1]} :" in result
        assert re.search(rf'"mma_wait"\(x0: %\w+\)|{late[2]} = tile.perform "mma_wait"', result)
    assert "cuir::after(scale, " in cuda(kernel(BEGIN + body, TIGHT)).source


def test_tiles_that_a_loop_keeps_take_room() -> None:
    assert "tile.reg<f32, 1, 64>" in ir(loop("T = S + cast(k, f32) * scale"))
    contents = (
        "A = S * 2.0\nB = S * 3.0\nC = S * 5.0\n" + loop("T = S + cast(k, f32) * scale") + "\nstore(Z[rows(64), cols(64)], A * B * C)"
    )
    assert not re.search(r"tile\.pin\(.*<f32, 1, 64>", ir(contents, HEAD.replace("warpgroups=1)", "warpgroups=1, registers=168)")))
    assert re.search(r"tile\.pin\(.*<f32, 1, 64>", ir(contents))


def test_the_choice_is_told() -> None:
    result = cuda(kernel(BEGIN + loop("T = S + cast(k - q, f32) * scale"), ROOMY)).choices
    assert any("as one number a row" in c for c in result) and any("registers" in c for c in result)
