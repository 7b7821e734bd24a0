"""Choices by line: in the order of the program, once for roles that agree, with the notes of passes."""

from __future__ import annotations

import pytest

from cuir.lowering.compiler import explain
from cuir.lowering.ir import ops
from cuir.lowering.ir.build_ir import build
from cuir.lowering.ir.ir_types import is_tile
from cuir.lowering.ir.ir_walk import every
from cuir.lowering.passes.pipeline import optimise
from cuir.lowering.select.explanation import explain_kernel
from cuir.lowering.select.ways import Selection
from tests.lowering.kernels import NAMES, corpus_kernel
from tests.lowering.tile_ir import program

PROGRAM = """
@kernel(arch="sm_90a")
def k(X: Global[f16, M, 64], Y: Global[f16, M, 64]):
    s = shared(f16, [64, 64])
    with role("first", warpgroups=1):
        for i in range(2):
            store(s, load(X[i * 64 : i * 64 + 64, :]))
    with role("second", warpgroups=1):
        store(Y[0:64, :], load(s))
"""


def test_choices_stand_in_the_order_of_lines() -> None:
    choices = [(c.span.line, c.operation, c.selection.way, c.roles) for c in explain(program(PROGRAM))]
    assert choices == [
        (5, "role", "all lanes", ()),
        (6, "for", "rolled", ("first",)),
        (7, "load", "elements", ("first",)),
        (7, "join", "__syncwarp", ("first",)),
        (7, "store", "stmatrix", ("first",)),
        (8, "role", "all lanes", ()),
        (9, "load", "ldmatrix", ("second",)),
        (9, "store", "vectors if aligned", ("second",)),
    ]


def test_roles_that_agree_are_named_together() -> None:
    text = PROGRAM.replace('role("second", warpgroups=1):', 'role("second", warpgroups=1):\n        n = same(s)').replace(
        'role("first", warpgroups=1):', 'role("first", warpgroups=1):\n        n = same(s)'
    )
    function = "@func\ndef same(s):\n    store(s, full(f16, [64, 64], 0.0))\n    return 0\n"
    both = [c for c in explain(program(function + text)) if c.span.line == 3]
    assert {c.selection.way: c.roles for c in both} == dict.fromkeys(("in registers", "stmatrix"), ("first", "second"))


def test_data_names_the_place() -> None:
    data = explain(program(PROGRAM))[-1].as_json()
    assert (data["file"], data["line"], data["operation"], data["way"]) == ("k.cuir", 9, "store", "vectors if aligned")
    assert data["rejected"] == ["vectors: a launch may pass a tensor that is not aligned"]


def test_each_line_says_where_its_tiles_are() -> None:
    """In registers, or computed in the loop of their reader; the reason is the pass's."""
    lines = (
        "x = cast(load(X[0:64, :]), f32)",
        "z = exp2(x * 2.0)",
        "w = x + 1.0",
        "store(Y[0:64, :], cast(z + w, f16))",
    )
    checked = program(
        PROGRAM[: PROGRAM.index("    with")] + "    with role('all', warpgroups=1):\n" + "".join(f"        {x}\n" for x in lines)
    )
    tiles = [(c.span.line, c.operation, c.selection.way, c.selection.because) for c in explain(checked) if " re" in c.selection.way]
    assert tiles == [
        (6, "cast", "in registers", "2 operations read it"),
        (7, "*", "in its reader", "one operation reads it"),
        (7, "exp2", "in its reader", "one operation reads it"),
        (8, "+", "in its reader", "one operation reads it"),
        (9, "+", "in its reader", "one operation reads it"),
        (9, "cast", "in registers", "`store` reads it as a whole"),
    ]


@pytest.mark.sweep(32)
@pytest.mark.parametrize("name", NAMES)
def test_each_line_with_a_tile_or_an_access_is_explained(name: str) -> None:
    """Waits, votes and branches are done in one way alone."""
    checked = corpus_kernel(name)
    kernel = build(checked)
    optimise(kernel)
    assert kernel.places is not None
    spans = {op: kernel.places.find(op) or checked.origin.span for op in every(kernel)}
    explained = {c.span.line for c in explain_kernel(kernel, spans.__getitem__)}
    for op, span in spans.items():
        if isinstance(op, ops.Perform):
            chosen = bool(op.entry.effects.accesses) and not op.entry.effects.drains
        else:
            chosen = any(is_tile(r) for r in op.results) and not op.regions and not (isinstance(op, ops.Apply) and op.op == "warp_any")
        assert not chosen or span.line in explained, f"{op.name} in line {span.line}"


def test_what_a_pass_made_of_a_line_is_explained() -> None:
    lines = ("y = zeros(f32, [64, 1])", "for i in range(4):", "    y = y + row_sum(cast(load(X[i * 64 : i * 64 + 64, :]), f32))")
    store = "store(Y[0:64, :], cast(y + zeros(f32, [64, 64]), f16))"
    checked = program(
        PROGRAM[: PROGRAM.index("    with")] + "    with role('all', warpgroups=1):\n" + "".join(f"        {x}\n" for x in (*lines, store))
    )
    parts = [(c.span.line, c.selection) for c in explain(checked) if c.operation == "row_part"]
    assert parts == [(8, Selection("", "the sum of a thread's elements of each row"))]
