"""Ways of arrivals: whose lanes arrive, and whether a barrier orders what other CTAs of a cluster do to tensors."""

from __future__ import annotations

import pytest

from cuir.checking.checker import check
from cuir.lowering.compiler import print_kernel
from cuir.lowering.ir import ops
from cuir.lowering.ir.build_ir import build
from cuir.lowering.ir.ir_walk import every
from cuir.lowering.ir.synchronisation import Join
from cuir.lowering.passes.pipeline import optimise
from cuir.lowering.select.hardware_barriers import find_barrier
from cuir.lowering.select.ways import SCOPE, Selection, find_selection
from cuir.syntax.parser import parse
from tests.gpu.test_exchange import EXCHANGE


def list_scopes(**consts: int) -> dict[tuple[str, str], set[str]]:
    """The scopes of a kernel's arrivals and waits, by operation and barrier."""
    kernel = build(check(parse(EXCHANGE, "k.cuir"), None, consts))
    optimise(kernel)
    found: dict[tuple[str, str], set[str]] = {}
    for op in every(kernel):
        if isinstance(op, ops.Perform) and "bar" in op.args and (scope := find_selection(op, SCOPE)) is not None:
            found.setdefault((op.op, find_barrier(op.arg("bar")).symbol.data), set()).add(scope.way)
    return found


def test_a_barrier_of_the_cluster_orders_what_other_ctas_did_to_tensors() -> None:
    scopes = list_scopes()
    assert scopes["mbarrier.arrive", "there"] == scopes["mbarrier.wait", "there"] == {"cluster"}
    assert {way for (_, name), ways in scopes.items() if name != "there" for way in ways} == {"CTA"}


def test_without_a_cluster_nothing_is_chosen() -> None:
    assert list_scopes(CLUSTER=1) == {}


ARRIVALS = """
@kernel(arch="sm_90a")
def k(X: Global[f32, 64, 64]):
    a = mbarrier(1)
    with role("all", {workers}):
        a.arrive()
"""


@pytest.mark.parametrize(
    ("workers", "without", "way"),
    [("warps=1", (), "one lane"), ("warpgroups=1", (), "a joined warp"), ("warpgroups=1", ("insert_synchronisation",), "a warp")],
)
def test_who_arrives(workers: str, without: tuple[str, ...], way: str) -> None:
    kernel = build(check(parse(ARRIVALS.format(workers=workers))))
    optimise(kernel, without)
    chosen: list[Selection | None] = [find_selection(op) for op in every(kernel) if isinstance(op, ops.Perform)]
    assert [s.way for s in chosen if s is not None] == [way]


HANDED_OVER = """
@kernel(arch="sm_90a")
def k(X: Global[i32, 64], Y: Global[f16, 64, 64]):
    a, b = mbarrier(1), mbarrier(1)
    s = shared(f16, [64, 64])
    with role("one", warps=1):
        for i in range(X[0]):
            b.{arrival}
        a.arrive()
    with role("all", warpgroups=1):
        a.wait(0)
        store(X[0], 1)
"""


@pytest.mark.parametrize("arrival", ["arrive()", "expect(nbytes(s))"])
def test_nvcc_moves_no_read_of_one_lane_behind_its_arrival(arrival: str) -> None:
    kernel = build(check(parse(HANDED_OVER.format(arrival=arrival))))
    optimise(kernel)
    joins = [op for op in every(kernel.roles[0]) if isinstance(op, Join)]
    assert [op.lanes.data for op in joins] == ["none", "none"]
    assert [s.way for s in map(find_selection, joins) if s is not None] == ["compiler barrier", "compiler barrier"]
    body = print_kernel(kernel).source.partition("// ---- role one")[2].partition("// ---- role all")[0]
    kept = [line.strip() for line in body.split("\n") if "cuir::arrive" in line or "cuir::expect" in line or "asm" in line]
    assert kept[::2] == ['asm volatile("" ::: "memory");'] * 2 and len(kept) == 4


def test_a_lane_that_hands_over_nothing_needs_no_barrier_of_nvcc() -> None:
    kernel = build(check(parse(HANDED_OVER.format(arrival="arrive()").replace("        store(X[0], 1)\n", ""))))
    optimise(kernel)
    assert {s.way for op in every(kernel.roles[0]) if isinstance(op, Join) and (s := find_selection(op)) is not None} == {"elided"}
