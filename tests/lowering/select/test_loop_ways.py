"""Ways of loops: when turns are written out, and the number that decides it."""

from __future__ import annotations

import pytest

from cuir.lowering.ir import ops
from cuir.lowering.ir.ir_walk import every
from cuir.lowering.select.loop_ways import MAX_UNROLLED_TURNS
from cuir.lowering.select.ways import Selection, find_selection
from tests.lowering.tile_ir import clean, program

HEAD = """
@kernel(arch="sm_90a")
def k(X: Global[f32, M, 64], Y: Global[f32, M, 64], n: i32):
    s = shared(f32, [64, 64])
    full = mbarrier(1)
"""


def select(body: str, role: str = 'role("all", warpgroups=1)') -> Selection:
    """The way of the innermost loop."""
    kernel = clean(program(HEAD + f"    with {role}:\n" + "".join(f"        {line}\n" for line in body.splitlines())))
    loops = [op for op in every(kernel) if isinstance(op, ops.For)]
    found = find_selection(loops[-1])
    assert found is not None
    return found


SUM = "t = load(X[0:64, 0:{width}])\nfor i in range({turns}):\n    t = t + load(X[i * 64 : i * 64 + 64, 0:{width}])\nstore(Y[0:64, 0:{width}], t)"


def test_a_short_loop_of_reads_is_unrolled() -> None:
    assert select(SUM.format(width=16, turns=4)) == Selection(
        "unrolled", "4 turns that only read and compute; tiles take 40 of 255 registers"
    )


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (SUM.format(width=16, turns="n"), "the number of turns is no constant"),
        (SUM.format(width=16, turns=MAX_UNROLLED_TURNS + 1), "17 turns, and at most 16 are written out"),
        (SUM.format(width=64, turns=8), "its turns would take 288 registers, and a thread has 255"),
        ("for i in range(4):\n    store(Y[i * 64 : i * 64 + 64, :], load(X[0:64, :]))", "its body has `store`"),
        ("for i in range(4):\n    full.wait(i % 2)", "its body has `bar.wait`"),
    ],
)
def test_why_a_loop_is_not_unrolled(body: str, reason: str) -> None:
    selection = select(body)
    assert selection.way == "rolled" and selection.rejected == (f"unrolled: {reason}",)


def test_the_loop_of_a_single_lane_is_left_to_nvcc() -> None:
    body = "for i in range(4):\n    full.wait(i % 2)"
    assert select(body, 'role("load", warps=1)') == Selection("nvcc's choice", "a single lane runs it")
    few = select(body, 'role("load", warpgroups=1, registers=24)')
    assert few.way == "rolled" and few.rejected == ("unrolled: a thread of the role has 24 registers, fewer than 32",)
