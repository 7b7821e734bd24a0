"""Missing synchronisation shows: each join, fence and sync that a program needs is missed by the evaluator of lanes."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cuir.checking.checker import check
from cuir.lowering.analyses.uniformity import runs_on_one_lane
from cuir.lowering.ir import ops
from cuir.lowering.ir.build_ir import build
from cuir.lowering.ir.evaluator_state import Fault
from cuir.lowering.ir.exchanges import ReleaseSlot
from cuir.lowering.ir.ir_evaluator import evaluate
from cuir.lowering.ir.ir_walk import every
from cuir.lowering.ir.lane_order import find_holders
from cuir.lowering.ir.synchronisation import ClusterSync, CtaSync, Join, RegisterFence, Synchronisation
from cuir.lowering.layouts.tile_layouts import LAYOUTS, natural_layout
from cuir.lowering.passes import insert_synchronisation
from cuir.lowering.passes.pipeline import optimise
from cuir.lowering.validate import Lowering, TensorRuns, random_arguments
from cuir.syntax.parser import parse
from tests.lowering.ir import cases
from tests.lowering.kernels import ALL, UNITS, queues
from tests.lowering.tile_ir import clean, kernel_of, program, role
from tests.strategies.selection import examples
from tests.strategies.typed import Case, arguments, kernels


def run_lanes(kernel: ops.Kernel, inputs: dict[str, Any], ctas: int = 1) -> str:
    """Run a kernel's lanes, and return the fault."""
    single = [r.symbol.data for r in kernel.roles if runs_on_one_lane(r)]
    try:
        evaluate(kernel, inputs, ctas=ctas, single_lane_roles=single)
    except Fault as fault:
        return str(fault)
    return ""


def run_role(*lines: str) -> str:
    """Run the role of IR texts."""
    inputs = {"X": torch.ones(64, 64), "Y": torch.zeros(256, 64), "n": 2, "s": 1.0}
    return run_lanes(kernel_of(role(*lines)), inputs)


TILE = '%x = tile.apply "zeros"() : !tile.reg<f32, 64, 64>'
ROWS = '%r = tile.apply "zeros"() : !tile.reg<f32, 64, 1>'
STORE, LOAD = 'tile.perform "store"(place: %a, tile: %x)', '%y = tile.perform "load"(view: %a) : !tile.reg<f32, 64, 64>'
OTHER = 'tile.join warps because "of what"'


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([TILE, STORE, LOAD], "no join orders the two"),
        ([TILE, LOAD, STORE], "no join orders the two"),
        ([TILE, STORE, "tile.join worker", LOAD], ""),
        ([TILE, STORE, OTHER, LOAD], ""),  # a warp loads the rows that it stored
        ([TILE, STORE, 'tile.join none because "so"', LOAD], "no join"),
        ([TILE, LOAD, '%z = tile.perform "load"(view: %a) : !tile.reg<f32, 64, 64>'], ""),
        # a scalar, which one lane stores and all read
        (
            [
                TILE,
                "%c = tile.constant 63 : !tile.scalar<i32>",
                "%p = tile.at %a[%c, %0] : !tile.element<f32, 0, 0>",
                'tile.perform "store"(place: %p, tile: %s)',
                OTHER,
                LOAD,
            ],
            "other warps",
        ),
        # memory that two arrays share
        (
            [TILE, STORE, OTHER, '%y = tile.perform "load"(view: %over) : !tile.reg<f32, 32, 64>'],
            "`load`.*`store`.*`a` by other warps, and only the lanes of each warp have joined",
        ),
        # rows of a tensor from another row on are those of other lanes
        (
            [
                TILE,
                "%c = tile.constant 8 : !tile.scalar<i32>",
                "%p = tile.at %Y[%0 : 64, : 64] : !tile.tensor<f32, 64, 64>",
                "%q = tile.at %Y[%c : 64, : 64] : !tile.tensor<f32, 64, 64>",
                'tile.perform "store"(place: %p, tile: %x)',
                'tile.perform "store"(place: %p, tile: %x)',
                'tile.perform "store"(place: %q, tile: %x)',
            ],
            "elements of `Y` by other lanes",
        ),
        # the end of a turn comes before the next one
        ([TILE, "tile.for %i = %0 to %n {", "tile.join worker", STORE, "tile.yield()", "}"], ""),
        ([TILE, "tile.for %i = %0 to %n {", LOAD, "tile.join worker", STORE, "tile.yield()", "}"], "no join"),
    ],
)
def test_accesses_of_other_lanes_need_a_join(lines: list[str], message: str) -> None:
    fault = run_role(*lines)
    assert re.search(message, fault) if message else not fault


FRAME = """
@kernel(arch="sm_90a")
def f(X: Global[f16, 128, 64], Y: Global[f16, 64, 64], Z: Global[f32, 64, 64], n: i32):
    a, h, g = shared(f16, [64, 64]), shared(f16, [64, 64]), shared(f16, [64, 64])
    s = shared(f32, [64, 64])
    full, free = mbarrier(1), mbarrier(1)
"""
ENGINE = """
    with role("load", warps=1):
        u = 0
        for i in range(n):
            free.wait(u % 2 ^ 1)
            full.expect(nbytes(a))
            copy_async(X[i * 64 : i * 64 + 64, :], a, full)
            u = u + 1
"""
TURN = """
    with role("one", warpgroups=1):
        v = 0
        x = load(X[0:64, :])
        for i in range(n):
"""
SETTINGS: dict[str, tuple[str, list[str], dict[str, int]]] = {
    "a bulk store of each warp, and its wait": (
        "",
        ["store(h, x)", "fence_async()", "store_async(h, Y[0:64, :])", "store_wait()"],
        {"tile.join warps": 2},
    ),
    "a bulk store of one lane": (
        "",
        ["store(h, x, mask=rows(64) < 64)", "fence_async()", "store_async(h, Y[0:64, :])", "store_wait()"],
        {"tile.join worker": 2},
    ),
    "reads before a refill": (
        ENGINE,
        ["full.wait(v % 2)", "x = load(a)", "free.arrive()", "v = v + 1", "store(Y[0:64, :], x)"],
        {"tile.proxy_fence": 1},
    ),
    "an operand in shared memory": (
        "",
        ["store(h, x)", "fence_async()", "p = mma_async(g, h)", "mma_wait(p)", "store(Z[0:64, :], p)"],
        {"tile.join worker": 2},
    ),
    "a scalar": ("", ["store(s[63, 0], 1.0)", "store(Z[0:64, :], load(s))"], {"tile.join worker": 2}),
    "bytes that are announced": ("", ["store(s, cast(x, f32))", "full.expect(0)"], {"tile.join warps": 1}),
    "an arrival of each warp": ("", ["store(s, cast(x, f32))", "full.arrive()"], {"tile.join warps": 1}),
    "columns over warps": ("", ["store(Z[v, cols(64)], col_sum(cast(x, f32)))"], {"tile.join worker": 2}),
}


def find_undetected(kernel: ops.Kernel, inputs: dict[str, Any], ctas: int = 1) -> tuple[list[Synchronisation], dict[str, int]]:
    """Leave out each operation in turn; return those that nothing misses, and how many of each kind are missed."""
    undetected, detected = list[Synchronisation](), dict[str, int]()
    for op in list(every(kernel)):
        if not isinstance(op, Synchronisation) or (isinstance(op, Join) and op.lanes.data == "none"):
            continue
        after, block = op.next_op, op.parent
        assert after is not None and block is not None
        op.detach()
        fault = run_lanes(kernel, {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in inputs.items()}, ctas)
        block.insert_op_before(op, after)
        name = f"{op.name} {op.lanes.data}" if isinstance(op, Join) else op.name
        if fault:
            detected[name] = detected.get(name, 0) + 1
        else:
            undetected.append(op)
    return undetected, detected


@pytest.mark.parametrize("name", SETTINGS)
def test_what_the_pass_inserts_is_missed(name: str) -> None:
    engine, lines, expected = SETTINGS[name]
    checked = program(FRAME + engine + TURN + "".join(f"            {line}\n" for line in lines))
    kernel = clean(checked)
    insert_synchronisation.run(kernel)
    inputs = random_arguments(checked, torch.Generator().manual_seed(0)) | {"n": 2}
    assert not run_lanes(kernel, {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in inputs.items()})
    detected = find_undetected(kernel, inputs)[1]
    assert {kind: detected.get(kind, 0) for kind in expected} == expected


def test_a_product_in_flight_outlasts_a_join() -> None:
    """Another warp may still read the operand when this one has waited for its own part of the product."""
    lines = ("p = mma_async(g, h)", "store(s, cast(x, f32))", "y = load(s)", "mma_wait(p)", "store(h, x)", "store(Z[0:64, :], p + y)")
    frame = FRAME.replace("    full, free = mbarrier(1), mbarrier(1)\n", "")
    checked = program(frame + TURN + "".join(f"            {line}\n" for line in lines))
    kernel = clean(checked)
    insert_synchronisation.run(kernel)
    inputs = random_arguments(checked, torch.Generator().manual_seed(0)) | {"n": 2}
    undetected, detected = find_undetected(kernel, inputs)
    assert not run_lanes(kernel, inputs) and detected["tile.join worker"] == 3 and not undetected


def test_registers_of_products_that_nothing_fences_show() -> None:
    lines = ("p = mma_async(g, h)", "mma_wait(p)", "store(Z[0:64, :], p)")
    checked = program(FRAME + TURN + "".join(f"            {line}\n" for line in lines))
    kernel = clean(checked)
    insert_synchronisation.run(kernel)
    inputs = random_arguments(checked, torch.Generator().manual_seed(0)) | {"n": 2}
    assert not run_lanes(kernel, inputs)
    (fence,) = (op for op in every(kernel) if isinstance(op, RegisterFence))
    fence.detach()
    assert "no fence of the registers follows it" in run_lanes(kernel, inputs)


def test_copies_of_threads_land_for_all_lanes_after_a_join() -> None:
    kernel = cases.case("flash_fwd_warps f16").built.clone()
    optimise(kernel)
    missed = {op.location.line.data for op in every(kernel) if isinstance(op, Join)}  # type: ignore[union-attr]
    undetected = find_undetected(kernel, cases.case("flash_fwd_warps f16").arguments)[0]
    assert missed - {op.location.line.data for op in undetected}  # type: ignore[union-attr]


def test_a_slot_of_a_queue_that_is_given_back_too_early_shows() -> None:
    checked = queues()[0]
    kernel = build(checked)
    optimise(kernel)
    inputs = random_arguments(checked, torch.Generator().manual_seed(0), {"M": 200}) | {"n": 2}
    assert not run_lanes(kernel, dict(inputs))
    joins = [join for op in every(kernel) if isinstance(op, ReleaseSlot) and isinstance(join := op.prev_op, Join)]
    assert [join.lanes.data for join in joins] == ["none", "warps"]
    joins[1].detach()
    assert "before the lanes of its warp have met after `tile.for_units`" in run_lanes(kernel, dict(inputs))


def test_a_signal_to_a_cta_that_has_exited_shows() -> None:
    case = cases.case("expert cluster f16")
    kernel = case.built.clone()
    optimise(kernel)
    assert not run_lanes(kernel, case.fresh())
    (sync,) = (op for op in kernel.body.block.ops if isinstance(op, ClusterSync))
    sync.detach()
    assert "may have exited" in run_lanes(kernel, case.fresh())


def test_lanes_that_enter_the_last_sync_of_a_cluster_one_by_one_show() -> None:
    case = cases.case("expert cluster f16")
    kernel = case.built.clone()
    optimise(kernel)
    (sync,) = (op for op in kernel.body.block.ops if isinstance(op, ClusterSync))
    join = sync.prev_op
    assert isinstance(join, Join)
    join.detach()
    assert "one by one: no join precedes it" in run_lanes(kernel, case.fresh())


@pytest.mark.parametrize("name", ["gemm f16", "expert cluster f16"])
def test_barriers_that_may_not_be_initialised_show(name: str) -> None:
    case = cases.case(name)
    kernel = case.built.clone()
    optimise(kernel)
    (sync,) = (op for op in kernel.body.block.ops if isinstance(op, CtaSync))
    assert sync.behind.data == "barriers"
    sync.detach()
    assert "may not be initialised yet" in run_lanes(kernel, case.fresh())


def test_a_queue_whose_barriers_may_not_be_initialised_shows() -> None:
    checked = check(parse(UNITS.replace("    full, empty = mbarrier(1), mbarrier(1)\n", "") + ALL, "k.cuir"))
    kernel = build(checked)
    optimise(kernel)
    inputs = random_arguments(checked, torch.Generator().manual_seed(0), {"M": 200}) | {"n": 2}
    assert not run_lanes(kernel, dict(inputs))
    (sync,) = (op for op in kernel.body.block.ops if isinstance(op, CtaSync))
    sync.detach()
    assert "may not be initialised yet" in run_lanes(kernel, dict(inputs))


def test_validation_names_what_a_program_without_synchronisation_lacks() -> None:
    case = cases.case("gemm f16")
    for without, verdict in (((), "same"), (("insert_synchronisation",), "fails")):
        stages = list(Lowering(case.checked, without).stages(TensorRuns(case.arguments)))
        assert stages[-1].outcome is not None and stages[-1].outcome.verdict == verdict
    assert stages[-1].name == "run_lanes" and "may not be initialised yet" in stages[-1].outcome.error


@pytest.mark.sweep(32)
@pytest.mark.parametrize("name", [*cases.NAMES, *cases.VARIANTS])
def test_lanes_of_the_corpus_are_ordered(name: str) -> None:
    case = cases.case(name) if name in cases.NAMES else cases.variant(name)
    kernel = case.built.clone()
    optimise(kernel)
    assert not run_lanes(kernel, case.fresh())


@examples(1)
@given(kernels(), st.integers(0, 1 << 20))
def test_lanes_of_random_programs_are_ordered(case: Case, seed: int) -> None:
    """Joins before bulk stores are missed; others may be needless, since arrays are taken as wholes."""
    checked = check(parse(case.text))
    kernel = build(checked)
    optimise(kernel)
    assert not run_lanes(kernel, arguments(checked, dict.fromkeys(checked.dims, case.M)))
    inserted = [
        op for op in every(kernel) if isinstance(op, Join) and isinstance(op.next_op, ops.Perform) and op.next_op.op == "store_async"
    ]
    if inserted:
        random.Random(seed).choice(inserted).detach()
        assert run_lanes(kernel, arguments(checked, dict.fromkeys(checked.dims, case.M)))


@pytest.mark.sweep(4)
@pytest.mark.parametrize("shape", [(64, 64), (64, 1), (1, 96), (1, 1), (192, 80), (40, 24)])
@pytest.mark.parametrize("threads", [32, 128])
def test_holders_are_those_of_the_layout(shape: tuple[int, int], threads: int) -> None:
    for layout in {natural_layout(*shape), LAYOUTS["chunks" if shape == (64, 64) else natural_layout(*shape).name]}:
        low, high = find_holders(layout, shape, threads)
        whole = layout.of(shape, threads)
        threads_of = dict[tuple[int, int], set[int]]()
        for register, lane, warp in whole.iterate(threads // 32):
            place = whole.place(register, lane, warp)
            threads_of.setdefault((place.get("row", 0), place.get("column", 0)), set()).add(warp * 32 + lane)
        for i in range(shape[0]):
            for j in range(shape[1]):
                assert (min(threads_of[i, j]), max(threads_of[i, j])) == (int(low[i, j]), int(high[i, j]))
