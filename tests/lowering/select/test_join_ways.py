"""Ways of joins: which lanes meet, and in which function."""

from __future__ import annotations

import pytest

from cuir.lowering.ir.build_ir import build
from cuir.lowering.ir.ir_walk import every
from cuir.lowering.ir.synchronisation import CtaSync, Join
from cuir.lowering.passes.pipeline import optimise
from cuir.lowering.select.ways import find_selection
from tests.lowering.analyses.test_arrivals import decoding
from tests.lowering.kernels import queues
from tests.lowering.tile_ir import program

PROGRAM = """
@kernel(arch="sm_90a")
def k(X: Global[f32, 64, 64], Y: Global[f32, 64, 64]):
    s, full = shared(f32, [64, 64]), mbarrier({count})
    with role("all", {workers}):
        {statement}
"""


def list_joins(statement: str, workers: str = "warpgroups=1", count: int = 1) -> list[tuple[str, str]]:
    """The ways of a program's joins, with the operations that follow."""
    kernel = build(program(PROGRAM.format(statement=statement, workers=workers, count=count)))
    optimise(kernel)
    joins = [op for op in every(kernel) if isinstance(op, Join)]
    return [(s.way, getattr(op.next_op, "op", "")) for op in joins if (s := find_selection(op)) is not None]


@pytest.mark.parametrize(
    ("statement", "workers", "expected"),
    [
        ("full.arrive()", "warpgroups=1", [("with the arrival", "mbarrier.arrive")]),
        ("full.arrive()", "warps=1", [("elided", "mbarrier.arrive")]),  # one lane runs it
        ("store(s[0, 0], 1.0)", "warps=1", [("__syncwarp", "store"), ("__syncwarp", "")]),
        ("full.expect(0)", "warpgroups=1", [("__syncwarp", "mbarrier.expect")]),
        ("store(s[0, 0], 1.0)", "warpgroups=1", [("bar.sync", "store"), ("bar.sync", "")]),
        ("store(s, load(X[0:64, :]))\n        store(Y[0:64, :], load(s.T))", "warpgroups=1", [("bar.sync", "load")]),
    ],
)
def test_where_lanes_meet(statement: str, workers: str, expected: list[tuple[str, str]]) -> None:
    assert list_joins(statement, workers) == expected


def test_a_warp_joins_while_it_takes_a_work_item() -> None:
    kernel = build(queues()[0])
    optimise(kernel)
    ways = {s.way for op in every(kernel) if op.name in ("tile.for_units", "tile.join") and (s := find_selection(op)) is not None}
    assert {"one lane", "a joined warp", "with the work item"} <= ways


@pytest.mark.parametrize(("cluster", "way"), [(1, "__syncthreads"), (2, "arrive early")])
def test_ctas_of_a_cluster_compute_while_others_arrive(cluster: int, way: str) -> None:
    kernel = build(decoding(cluster, dynamic=False))
    optimise(kernel)
    (selection,) = (find_selection(op) for op in kernel.body.block.ops if isinstance(op, CtaSync))
    assert selection is not None and selection.way == way


def test_without_joins_arrivals_say_so() -> None:
    kernel = build(queues()[0])
    optimise(kernel, {"insert_synchronisation"})
    assert [s.way for op in every(kernel) if op.name == "tile.for_units" and (s := find_selection(op)) is not None] == [
        "one lane",
        "a warp",
    ]


@pytest.mark.parametrize(
    ("statement", "workers", "arch", "expected"),
    [
        ("full.arrive()", "warps=1", "sm_90a", ("one lane", ())),
        ("store(Y[0, 0], 1.0)", "warps=1", "sm_90a", ("all lanes", ("one lane: an operation takes all lanes",))),
        ("full.arrive()", "warpgroups=1", "sm_90a", ("all lanes", ("one lane: its workers are warpgroups",))),
        ("sync()", "warps=1", "sm_80", ("all lanes", ("one lane: sm_80 runs roles on all lanes",))),
    ],
)
def test_a_role_says_who_runs_it(statement: str, workers: str, arch: str, expected: tuple[str, tuple[str, ...]]) -> None:
    text = PROGRAM.format(statement=statement, workers=workers, count=1).replace("sm_90a", arch)
    kernel = build(
        program(text.replace(", full = shared(f32, [64, 64]), mbarrier(1)", " = shared(f32, [64, 64])") if arch == "sm_80" else text)
    )
    optimise(kernel)
    selection = find_selection(kernel.roles[0])
    assert selection is not None and (selection.way, selection.rejected) == expected
