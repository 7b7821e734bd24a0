"""Choices by line: in the order of the program, once for roles that agree, with the notes of passes."""

from __future__ import annotations

from cuir.lowering.compiler import explain
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
        (6, "for", "rolled", ("first",)),
        (7, "load", "elements", ("first",)),
        (7, "join", "__syncwarp", ("first",)),
        (7, "store", "stmatrix", ("first",)),
        (9, "load", "ldmatrix", ("second",)),
        (9, "store", "vectors if aligned", ("second",)),
    ]


def test_roles_that_agree_are_named_together() -> None:
    text = PROGRAM.replace('role("second", warpgroups=1):', 'role("second", warpgroups=1):\n        n = same(s)').replace(
        'role("first", warpgroups=1):', 'role("first", warpgroups=1):\n        n = same(s)'
    )
    function = "@func\ndef same(s):\n    store(s, full(f16, [64, 64], 0.0))\n    return 0\n"
    both = [c for c in explain(program(function + text)) if c.span.line == 3]
    assert [c.roles for c in both] == [("first", "second")] and both[0].selection.way == "stmatrix"


def test_data_names_the_place() -> None:
    data = explain(program(PROGRAM))[-1].as_json()
    assert (data["file"], data["line"], data["operation"], data["way"]) == ("k.cuir", 9, "store", "vectors if aligned")
    assert data["rejected"] == ["vectors: a launch may pass a tensor that is not aligned"]
