"""Meetings of a worker's lanes: before what depends on another lane's access, and nowhere else."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xdsl.ir import Block, Operation

import corpus
from cuir.checking.checker import check
from cuir.lowering.analyses.stores import arrays_by_warp, stores_by_warps
from cuir.lowering.analyses.warp_sync import WarpSyncs, find_warp_syncs
from cuir.lowering.ir import ops
from cuir.lowering.ir.ir_walk import every, mark
from cuir.lowering.passes import copy_fp8_in_chunks
from cuir.syntax.parser import parse
from tests.gpu.test_exchange import TEXT
from tests.lowering.tile_ir import clean, program, role

FRAME_OF_PROGRAMS = """
@kernel(arch="sm_90a")
def f(X: Global[f32, 64, 64], H: Global[f16, 64, 64], Y: Global[f32, 64, 64], R: Global[f32, 64], I: Global[i32, 64], n: i32):
    a, b = shared(f32, [64, 64]), shared(f32, [64, 64])
    h, g = shared(f16, [64, 64]), shared(f16, [64, 64])
    over = shared(f32, [64, 64], over=a)
    full = mbarrier(1)
    with role("one", warpgroups=1):
        x = load(X[0:64, :])
"""


def joins(*lines: str) -> list[bool]:
    """Return for each line whether the lanes meet before it."""
    kernel = clean(program(FRAME_OF_PROGRAMS + "\n".join(f"        {line}" for line in lines) + "\n"))
    result = find_warp_syncs(kernel.roles[0])
    assert not result.inside, "what a store reads is read before it"
    first = len(FRAME_OF_PROGRAMS.splitlines()) + 1
    reached = {op.location.line.data for op in result.before}  # type: ignore[union-attr]
    return [first + i in reached for i in range(len(lines))]


@pytest.mark.parametrize(
    ("lines", "position"),
    [
        (("store(a, x)", "y = load(a)", "store(Y[0:64, :], y)"), [False, True, False]),  # what others wrote
        (("store(a, x)", "y = load(b[0 : 64])", "store(Y[0:64, :], y)"), [False, False, False]),  # another array
        (("store(a, x)", "y = load(over)", "store(Y[0:64, :], y)"), [False, True, False]),  # the same memory
        (("y = load(a)", "store(a, x)", "store(Y[0:64, :], y)"), [False, True, False]),  # where others still read
        (("store(a, x)", "store(a, x + 1.0)", "y = load(a)", "store(Y[0:64, :], y)"), [False, True, True, False]),
        (("store(a, x)", "s = a[3, 5]", "store(Y[0:64, :], x + s)"), [False, True, False]),  # one element
        (("store(a, x)", "u = a[3, 5]", "y = load(a)", "store(Y[0:64, :], y)"), [False, False, True, False]),  # that nobody reads
        (("store(a, x)", "sync()", "y = load(a)", "store(Y[0:64, :], y)"), [False, False, False, False]),  # they have met
        (("store(Y[0:64, :], x)", "y = load(Y[0:64, :])", "store(a, y)"), [False, True, False]),  # tensors as well
        (("store(Y[0:64, :], x)", "store(Y[0:64, :], x + 1.0)"), [False, False]),  # each element by one and the same lane
        (("store(Y[0:64, :], x)", "store(Y[8 : 8 + 64, :], x + 1.0)"), [False, True]),  # by another one
        (("store(Y[0:64, :], x)", "store(Y[cols(64), rows(64)], x)"), [False, True]),  # rows are columns
        (("store(Y[0:64, :], x)", "store(Y[rows(64), 3], row_max(x))"), [False, True]),  # a row's first lane has not column 3
        (("store(Y[rows(64), 5], row_max(x))", "store(Y[rows(64), n], row_sum(x))"), [False, False]),
        (("store(a, x)", "store(b[0, 0], 1.0)", "y = load(a)", "store(Y[0:64, :], y)"), [False] * 4),  # a scalar's store joins itself
        (
            ("store(h, cast(x, f16))", "fence_async()", "p = mma_async(h, h)", "mma_wait(p)", "store(Y[0:64, :], p)"),
            [False, False, True, False, False],
        ),
        (
            (
                "store(g, cast(x, f16))",
                "fence_async()",
                "p = mma_async(h, h)",
                "q = mma_async(h, g)",
                "mma_wait(p, q)",
                "store(Y[0:64, :], p + q)",
            ),
            [False, False, False, True, False, False],
        ),
        (
            ("q = I[rows(64)]", "store(R[q], row_max(x))", "store(I[rows(64)], rows(64) * 2)", "store(R[q], row_sum(x))"),
            [False, False, True, False],
        ),
    ],
)
def test_lanes_meet_where_one_depends_on_another(lines: tuple[str, ...], position: list[bool]) -> None:
    assert joins(*lines) == position


def test_the_end_of_a_loop_is_before_its_beginning() -> None:
    assert joins("y = x", "for i in range(n):", "    y = y + load(a)", "    store(a, y)", "store(Y[0:64, :], y)") == [
        False,
        False,
        True,
        True,
        False,
    ]


PRODUCT_ROWS = (
    "store({0}, cast(x, f16))",
    "fence_async()",
    "p = mma_async({1}, {2})",
    "mma_wait(p)",
    "store({0}, cast(p, f16))",
    "store(Y[0:64, :], p)",
)


@pytest.mark.parametrize(
    ("stored", "left", "right", "alone"),
    [
        ("h", "h", "g", True),  # the tensor core reads a warp's rows for that warp
        ("tall[64 : 128]", "tall[64 : 128]", "g", True),
        ("tall[64 * n : 64 * n + 64]", "tall[0 : 64]", "g", True),  # other rows, but of the same warps
        ("tall[32 : 96]", "tall[32 : 96]", "g", False),  # a row is of one warp here and of another one there
        ("tall[32 : 128][0 : 64]", "tall[32 : 128][0 : 64]", "g", False),  # a view of a view
        ("tall[0 : 128][64 : 128]", "tall[64 : 128]", "g", True),
        ("h", "h.T", "g", False),  # all rows for each warp
        ("h", "g", "h", False),
        ("h", "again", "g", False),  # another array there
    ],
)
def test_the_lanes_of_a_warp_meet_alone_where_rows_are_its_own(stored: str, left: str, right: str, alone: bool) -> None:
    frame = FRAME_OF_PROGRAMS.replace(
        "    full = mbarrier(1)", "    tall, again = shared(f16, [128, 64]), shared(f16, [64, 64], over=h)\n    full = mbarrier(1)"
    )
    lines = [line.format(stored, left, right) for line in PRODUCT_ROWS]
    result = find_warp_syncs(clean(program(frame + "\n".join(f"        {line}" for line in lines) + "\n")).roles[0])
    first = len(frame.splitlines()) + 1
    reached, warps = ({op.location.line.data - first for op in group} for group in (result.before, result.warps))  # type: ignore[union-attr]
    assert (reached, warps) == ((set(), {2, 4}) if alone else ({2, 4}, set()))


def test_what_warps_did_elsewhere_is_not_forgotten() -> None:
    """A join of warps leaves what lanes of other warps touched."""
    lines = (
        "store(a, x)",
        "store(h, cast(x, f16))",
        "fence_async()",
        "p = mma_async(h, g)",
        "mma_wait(p)",
        "y = load(a)",
        "store(Y[0:64, :], p + y)",
    )
    kernel = clean(program(FRAME_OF_PROGRAMS + "\n".join(f"        {line}" for line in lines) + "\n"))
    first, result = len(FRAME_OF_PROGRAMS.splitlines()) + 1, find_warp_syncs(kernel.roles[0])
    assert {op.location.line.data - first for op in result.warps} == {3}  # type: ignore[union-attr]
    assert {op.location.line.data - first for op in result.before} == {5}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "line",
    [
        "store(a, load(a) + 1.0)",
        "store(Y[0:64, :], load(Y[0:64, :]) + 1.0)",
        "store(R[rows(64)], R[rows(64)] + 1.0)",
        "store(I[I[rows(64)]], rows(64) * 2)",
    ],
)
def test_all_is_read_before_anything_is_stored(line: str) -> None:
    kernel = clean(program(f"{FRAME_OF_PROGRAMS}        {line}\n"))
    result = find_warp_syncs(kernel.roles[0])
    assert [op.op for op in result.before if isinstance(op, ops.Perform)] == ["store"] and not result.inside


def test_one_branch_is_enough() -> None:
    assert joins("if n > 0:", "    store(a, x)", "y = load(a)", "store(Y[0:64, :], y)") == [False, False, True, False]


def test_rows_from_a_multiple_on_keep_their_lanes() -> None:
    for lines in (
        ("r = n * 64", "for i in range(n):", "    store(R[r + rows(64)], row_max(x))", "    r = r + 64"),
        ("for i in range(0, n, 64):", "    store(R[rows(64) + i], row_max(x))"),
        ("q = rows(64)", "for i in range(n):", "    store(R[q], row_max(x))", "    q = q + 128"),
    ):
        assert not any(joins(*lines))
    assert joins("r = n * 8", "for i in range(n):", "    store(R[r + rows(64)], row_max(x))", "    r = r + 8") == [
        False,
        False,
        True,
        False,
    ]


MOVING = """
@kernel(arch="sm_90a")
def f(X: Global[f8e4m3, 64, 128], Y: Global[f16, 64, 128]):
    s, w, v = shared(f8e4m3, [64, 128]), shared(f16, [2, 64, 128]), shared(f16, [64, 128])
    over = shared(f16, [64, 128], over=v)
    full, free = mbarrier(1, stages=2), mbarrier(1)
    work = tiles(4)
    with role("one", warpgroups=1):
        for t in work:
            full[0].wait(0)
"""


def moves(*lines: str) -> list[bool]:
    """Return the joins of lines in a loop after the pass `copy_fp8_in_chunks`."""
    kernel = clean(program(MOVING + "\n".join(f"            {line}" for line in lines) + "\n"))
    copy_fp8_in_chunks.run(kernel)
    mark(kernel)
    first = len(MOVING.splitlines()) + 1
    reached = {op.location.line.data for op in find_warp_syncs(kernel.roles[0]).before}  # type: ignore[union-attr]
    return [first + i in reached for i in range(len(lines))]


@pytest.mark.parametrize(
    ("lines", "position"),
    [
        (("store(w[t % 2], cast(load(s), f16))",), [False]),  # each lane has the same chunks of an array, in every turn
        (("store(v, cast(load(s), f16))", "store(over, cast(load(s), f16))"), [True, True]),  # another array in its place
        (("store(v, cast(load(s), f16))", "store(Y[:, :], load(v))"), [True, True]),  # what others wrote, and what others read
        (("store(v, cast(load(s), f16))", "store(v, cast(load(Y[:, :]), f16))"), [True, True]),  # as an accumulator lies
    ],
)
def test_chunks_keep_their_lanes(lines: tuple[str, ...], position: list[bool]) -> None:
    assert moves(*lines) == position


def test_a_join_in_a_loop_counts_once() -> None:
    """The store's join is there in each turn, so the first load of a turn needs none: nobody stores between."""
    result = find_warp_syncs(
        role(
            '%x = tile.apply "zeros"() : !tile.reg<f32, 64, 64>',
            "tile.for %i = %0 to %n {",
            '  %y = tile.perform "load"(view: %a) : !tile.reg<f32, 64, 64>',
            '  tile.perform "sync"()',
            '  tile.perform "store"(place: %a, tile: %x)',
            '  tile.perform "sync"()',
            "  tile.yield()",
            "}",
        )
    )
    assert not result.before


def test_a_branch_of_warps_has_no_join_inside() -> None:
    result = find_warp_syncs(
        role(
            '%x = tile.apply "zeros"() : !tile.reg<f32, 64, 64>',
            '%v = tile.apply "zeros"() : !tile.reg<bool, 64, 1>',
            'tile.perform "store"(place: %a, tile: %x)',
            "%z = tile.warp_if %v {",
            '  %y = tile.perform "load"(view: %a) : !tile.reg<f32, 64, 64>',
            "  tile.yield(%y)",
            "} else {",
            "  tile.yield(%x)",
            "}",
        )
    )
    assert [op.name for op in result.before] == ["tile.warp_if"]


def test_a_store_that_works_out_what_it_reads() -> None:
    """No pass fuses a read of what a store writes into the store; if one did, all would be read before anything is stored."""
    created = role(
        '%r = tile.apply "rows"() : !tile.reg<i32, 64, 1>',
        "%p = tile.at %Y[%r, %0] : !tile.element<f32, 64, 1>",
        '%g = tile.perform "gather"(place: %p) : !tile.reg<f32, 64, 1>',
        'tile.perform "store"(place: %p, tile: %g)',
    )
    gather = next(op for op in every(created) if isinstance(op, ops.Perform) and op.op == "gather")
    mark(gather)
    result = find_warp_syncs(created)
    assert [op.op for op in result.inside if isinstance(op, ops.Perform)] == ["store"] and not result.before


@pytest.mark.parametrize(
    "consts", [{"D": 128, "BM": 128, "BN": 128}, {"D": 128, "BM": 192, "BN": 80}, {"D": 128, "BM": 384, "BN": 80, "CLUSTER": 2}]
)
def test_the_expert_kernel_needs_none(consts: dict[str, int]) -> None:
    text = corpus.kernels()["flash_fwd_sm90"].read_text(encoding="utf-8")
    kernel = clean(check(parse(text), None, {"T": "f16", "DYNAMIC": True, **consts}))
    for r in kernel.roles:
        result = find_warp_syncs(r)
        assert result == WarpSyncs(elided=result.elided)
    assert [stores_by_warps(r) for r in kernel.roles] == [r.threads.data == 128 for r in kernel.roles]


def test_the_program_of_the_gpu_test() -> None:
    (result,) = clean(check(parse(TEXT))).roles
    names = [op.op for op in every(result) if op in find_warp_syncs(result).before and isinstance(op, ops.Perform)]
    assert names == ["store", "load", "store", "load", "load"]


# ---- whatever the program: no access meets one of another lane that it conflicts with
STEPS = [
    *(
        ('%l@ = tile.perform "load"(view: %{0}) : !tile.reg<f32, {1}, 64>', array, rows)
        for array, rows in (("a", 64), ("over", 32), ("b", 64))
    ),
    *(('tile.perform "store"(place: %{0}, tile: %x{1})', array, rows) for array, rows in (("a", 64), ("over", 32), ("b", 64))),
    *(('tile.perform "store"(place: %{0}, tile: %x{1})', box, 64) for box in ("y64", "y8")),
    ('%l@ = tile.perform "load"(view: %{0}) : !tile.reg<f32, {1}, 64>', "y64", 64),
    ('tile.perform "sync"()', "", 0),
]
step = st.sampled_from(STEPS).map(lambda s: s[0].format(*s[1:]))
body = st.recursive(
    st.lists(step, max_size=4).map("\n".join),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("\n".join),
        inner.map(lambda b: f"tile.for %i@ = %0 to %n {{\n{b}\ntile.yield()\n}}"),
        st.tuples(inner, inner).map(lambda p: f"tile.if %c {{\n{p[0]}\ntile.yield()\n}} else {{\n{p[1]}\ntile.yield()\n}}"),
    ),
    max_leaves=6,
)


def find_access(op: ops.Perform) -> tuple[str, bool, bool] | None:
    """Memory, whether it is written, whether each element by the lane that always writes it."""
    place = op.args.get("place", op.args.get("view"))
    if place is None:
        return None
    if isinstance(place.owner, ops.At):
        start = place.owner.starts[0]
        return "Y", op.op == "store", ops.constant_value(start) == 64
    assert isinstance(place.owner, ops.Shared)
    return {"over": "a"}.get(place.owner.symbol.data, place.owner.symbol.data), op.op == "store", False


@given(body, st.randoms(use_true_random=False))
def test_what_conflicts_has_a_join_between(text: str, chance: object) -> None:
    numbers = itertools.count()
    created = role(
        "%c = tile.constant True : !tile.scalar<bool>",
        "%c8 = tile.constant 8 : !tile.scalar<i32>",
        "%c64 = tile.constant 64 : !tile.scalar<i32>",
        '%x64 = tile.apply "zeros"() : !tile.reg<f32, 64, 64>',
        '%x32 = tile.apply "zeros"() : !tile.reg<f32, 32, 64>',
        "%y8 = tile.at %Y[%c8 : 64, : 64] : !tile.tensor<f32, 64, 64>",
        "%y64 = tile.at %Y[%c64 : 64, : 64] : !tile.tensor<f32, 64, 64>",
        *re.sub("@", lambda _: f"_{next(numbers)}", text).splitlines(),
    )
    result, ours = find_warp_syncs(created), {array.symbol.data for array in arrays_by_warp(created) if isinstance(array, ops.Shared)}
    since: list[tuple[str, bool, bool]] = []

    def visit(op: Operation) -> None:
        if op in result.before or (isinstance(op, ops.Perform) and op.op == "sync"):
            since.clear()
        if op in result.warps:
            since[:] = [touched for touched in since if touched[0] not in ours]
        if isinstance(op, ops.For):
            for _ in range(chance.randrange(4)):  # type: ignore[attr-defined]
                block(op.body.block)
        elif isinstance(op, ops.If):
            block(chance.choice(op.regions).block)  # type: ignore[attr-defined]
        elif isinstance(op, ops.Perform) and (now := find_access(op)) is not None:
            for memory, wrote, retained in since:
                alike = retained and now[2] and wrote and now[1]
                assert memory != now[0] or not (wrote or now[1]) or alike
            since.append(now)

    def block(b: Block) -> None:
        for op in b.ops:
            visit(op)

    for _ in range(5):
        since.clear()
        block(created.body.block)
