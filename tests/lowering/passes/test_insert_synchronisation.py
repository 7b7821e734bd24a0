"""Synchronisation in the IR: where it stands, what it says, and that printing adds none."""

from __future__ import annotations

import pytest

from cuir.lowering.analyses.memory import array_of
from cuir.lowering.cuda import print_scope, role
from cuir.lowering.ir import ops
from cuir.lowering.ir.build_ir import build
from cuir.lowering.ir.exchanges import GiveColumns, TakeColumns
from cuir.lowering.ir.ir_text import parse, show
from cuir.lowering.ir.ir_walk import every, is_inlined, mark
from cuir.lowering.ir.synchronisation import ClusterSync, Join, RegisterFence, Synchronisation
from cuir.lowering.passes import insert_synchronisation
from cuir.lowering.passes.pipeline import optimise
from cuir.lowering.select.ways import VALUE, find_selection
from tests.lowering.analyses.test_arrivals import decoding
from tests.lowering.ir import cases
from tests.lowering.tile_ir import clean, kernel_of, program
from tests.lowering.tile_ir import role as make_role
from tests.ops.test_tensor_memory import check_changed

FRAME = """
@kernel(arch="sm_90a")
def f(X: Global[f32, 64, 64], Y: Global[f32, 64, 64]):
    a, h, g = shared(f32, [64, 64]), shared(f16, [64, 64]), shared(f16, [64, 64])
    full, free = mbarrier(1), mbarrier(1)
    with role("one", warpgroups=1):
        x = load(X[0:64, :])
"""


def list_around(*lines: str) -> list[str]:
    """Return the synchronisation of a role, and the operations with effects between."""
    kernel = clean(program(FRAME + "".join(f"        {line}\n" for line in lines)))
    insert_synchronisation.run(kernel)
    kernel.verify()
    assert show(parse(show(kernel))) == show(kernel)
    result = list[str]()
    for op in every(kernel.roles[0]):
        if isinstance(op, Join):
            result.append(f"{op.lanes.data}: {op.argument.data}" if op.argument else op.lanes.data)
        elif isinstance(op, Synchronisation):
            result.append(op.name)
        elif isinstance(op, (GiveColumns, TakeColumns)):
            result.append("give" if isinstance(op, GiveColumns) else "take")
        elif isinstance(op, ops.Perform) and not (op.op == "load" and isinstance(array_of(op.arg("view")), ops.Tensor)):
            result.append(op.op)
    return result


COPY = "copy_async(X[0:64, :], a)"
UNTOUCHED, LATER = "none: no lane has accessed the memory since the lanes met", "none: the lanes meet before they read what was copied"
ARRIVAL = "warps: each warp arrives for itself"
OWN, SAME = "warps: each warp accesses its own rows alone", "none: the same lanes write the same elements"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["store(a, x)", "store(Y[0:64, :], load(a))"], ["store", "worker", "load", "store"]),
        (["store(a[3, 5], 1.0)"], ["worker", "store", "worker"]),  # one lane does it
        (["store(Y[3, 5], 1.0)"], ["worker", "store"]),
        (["store(Y[0:64, :], x)", "store(Y[0:64, :], x + 1.0)"], ["store", SAME, "store"]),
        (["fence_async()", "store_async(a, Y[0:64, :])", "store_wait()"], ["fence_async", "worker", "store_async", "store_wait", "worker"]),
        (
            ["store(a, x)", "fence_async()", "store_async(a, Y[0:64, :])", "store_wait()"],
            ["store", "fence_async", OWN, "store_async", "store_wait", OWN],
        ),
        (["full.expect(nbytes(a))", "full.wait(0)"], [ARRIVAL, "mbarrier.expect", "mbarrier.wait"]),
        # copies by threads: lanes join where they access what others have copied, or have accessed before the copy
        (
            [COPY, "copy_commit()", "copy_wait(0)", "store(Y[0:64, :], load(a))"],
            [UNTOUCHED, "copy_async.cp", "copy_commit", "copy_wait", LATER, "worker", "load", "store"],
        ),
        (
            [COPY, "copy_commit()", "copy_wait(0)", "sync()", "y = load(a)", COPY, "store(Y[0:64, :], y)"],
            [UNTOUCHED, "copy_async.cp", "copy_commit", "copy_wait", LATER, "sync", "load", "worker", "copy_async.cp", "store"],
        ),
        (
            [COPY, "copy_commit()", "store(a[3, 5], 1.0)", "copy_wait(0)", "store(Y[0:64, :], load(a))"],
            [UNTOUCHED, "copy_async.cp", "copy_commit", "worker", "store", "worker", "copy_wait", LATER, "worker", "load", "store"],
        ),
        (["store(Y[3, cols(64)], col_sum(x))"], ["give", "worker", "take", "worker", "store"]),
        (
            ["full.wait(0)", "y = load(a)", "free.arrive()", "free.wait(0)", "copy_async(X[0:64, :], a, full)", "store(Y[0:64, :], y)"],
            [
                "mbarrier.wait",
                "load",
                "tile.proxy_fence",
                ARRIVAL,
                "mbarrier.arrive",
                "mbarrier.wait",
                "worker",
                "copy_async.bulk",
                "store",
            ],
        ),
        (
            ["full.wait(0)", "copy_async(X[0:64, :], a, full)", "copy_async(X[0:64, :], a, full)"],
            ["mbarrier.wait", "worker", "copy_async.bulk", "copy_async.bulk"],
        ),
        (
            ["store(g, cast(x, f16))", "fence_async()", "p = mma_async(h, h)", "q = mma_async(h, g)", "mma_wait(p, q)"],
            ["store", "fence_async", "worker", "mma_async", "mma_async", "mma_wait"],
        ),
    ],
)
def test_synchronisation_stands_where_it_is_needed(lines: list[str], expected: list[str]) -> None:
    assert list_around(*lines) == expected


def test_a_store_that_reads_what_it_writes_gets_its_values_first() -> None:
    created = make_role(
        '%r = tile.apply "rows"() : !tile.reg<i32, 64, 1>',
        "%p = tile.at %Y[%r, %0] : !tile.element<f32, 64, 1>",
        '%g = tile.perform "gather"(place: %p) : !tile.reg<f32, 64, 1>',
        'tile.perform "store"(place: %p, tile: %g)',
    )
    gather, store = (op for op in created.body.block.ops if isinstance(op, ops.Perform))
    mark(gather)
    insert_synchronisation.run(kernel_of(created))
    assert not is_inlined(gather.outputs[0]) and isinstance(store.prev_op, Join)
    selection = find_selection(gather, VALUE)
    assert selection is not None and selection.because == "lanes meet between its read and the store"


def test_a_role_on_one_lane_elides_its_joins() -> None:
    kernel = cases.case("expert plain f16").built.clone()
    optimise(kernel)
    joins = [op for op in every(kernel.roles[0]) if isinstance(op, Join)]
    assert joins and {(j.lanes.data, j.argument and j.argument.data) for j in joins} == {("none", "one lane runs the role")}


@pytest.mark.parametrize(("name", "elided"), [("expert cluster f16", False), ("gemm f16", None)])
def test_ctas_of_a_cluster_meet_at_the_end(name: str, elided: bool | None) -> None:
    kernel = cases.case(name).built.clone()
    insert_synchronisation.run(kernel)
    syncs = [op for op in kernel.body.block.ops if isinstance(op, ClusterSync)]
    assert [op.argument is not None for op in syncs] == ([] if elided is None else [elided])


def test_registers_are_fenced_around_a_wait_for_products() -> None:
    """Those of a tile that is computed meanwhile on both sides, those of the product behind; none that nobody reads."""
    lines = ("p = mma_async(h, g)", "y = x + 1.0", "z = x * 2.0", "mma_wait(p)", "store(Y[0:64, :], p + y)")
    kernel = clean(program(FRAME + "".join(f"        {line}\n" for line in lines)))
    insert_synchronisation.run(kernel)
    text = show(kernel)
    assert show(parse(text)) == text
    fences = [op for op in every(kernel) if isinstance(op, RegisterFence)]
    assert [[v.name_hint for v in op.tiles] for op in fences] == [["y"], ["p", "y"]]
    assert fences[0].next_op is fences[1].prev_op is not None


def test_only_registers_that_are_read_later_are_fenced() -> None:
    """Nobody reads the product; the tile that was loaded before it is read behind the wait."""
    kernel = clean(program(FRAME + "        p = mma_async(h, g)\n        mma_wait(p)\n        store(Y[0:64, :], x)\n"))
    insert_synchronisation.run(kernel)
    assert [[v.name_hint for v in op.tiles] for op in every(kernel) if isinstance(op, RegisterFence)] == [["x"], ["x"]]


def list_around_roles(kernel: ops.Kernel) -> list[str]:
    """Return the synchronisation outside of roles, with the roles as one word."""
    insert_synchronisation.run(kernel)
    assert show(parse(show(kernel))) == show(kernel)
    names = [
        "roles" if isinstance(op, ops.Role) else show(op).strip()
        for op in kernel.body.block.ops
        if isinstance(op, (ops.Role, Synchronisation))
    ]
    return [name for i, name in enumerate(names) if name != "roles" or "roles" not in names[:i]]


BEFORE, APART = "tile.cta_sync behind barriers", 'tile.join warps because "the lanes of a warp leave their role one by one"'


@pytest.mark.parametrize(
    ("name", "around"),
    [
        ("flash_fwd_warps f16", ["roles"]),  # neither barriers nor a queue
        ("gemm f16", [BEFORE, "roles"]),
        ("expert cluster f16", [BEFORE, "roles", APART, "tile.cluster_sync"]),
    ],
)
def test_syncs_stand_around_the_roles(name: str, around: list[str]) -> None:
    assert list_around_roles(cases.case(name).built.clone()) == around


def test_tensor_memory_is_freed_when_all_are_done() -> None:
    assert list_around_roles(build(check_changed())) == [
        BEFORE,
        "tile.cta_sync behind columns",
        "roles",
        APART,
        "tile.cta_sync behind roles",
    ]


def test_nobody_joins_before_an_elided_sync_of_the_cluster() -> None:
    around = list_around_roles(build(decoding(2, dynamic=False)))
    assert around == [BEFORE, "roles", 'tile.cluster_sync because "each signal is awaited before its CTA exits"']


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('tile.join worker because "no"', "has an argument"),
        ("tile.join warps", "has an argument"),
        ("tile.join all", "not `all`"),
        ("tile.cta_sync behind all", "not `all`"),
    ],
)
def test_wrong_joins_are_refused(text: str, message: str) -> None:
    with pytest.raises(Exception, match=message):
        make_role(text)


def test_printers_find_nothing_themselves() -> None:
    for module in (print_scope, role):
        assert not {"find_warp_syncs", "find_fenced_arrivals", "stores_by_warps"} & vars(module).keys()
