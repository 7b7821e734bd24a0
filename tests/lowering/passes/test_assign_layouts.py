"""Sums of widened products keep their columns as lanes get them, unless readers in their loop make that too costly."""

from __future__ import annotations

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from xdsl.ir import SSAValue

from cuir.checking.checked import Checked
from cuir.checking.checker import check
from cuir.lowering import lower
from cuir.lowering.ir.build_ir import build
from cuir.lowering.ir.ir_types import TileT
from cuir.lowering.ir.ir_walk import every
from cuir.lowering.ir.machine_tiles import ConvertLayout
from cuir.lowering.ir.ops import Kernel, Perform
from cuir.lowering.layouts.tile_layouts import DEALT
from cuir.lowering.passes import assign_layouts, branch_on_warp_votes
from cuir.lowering.validate import validate
from cuir.syntax.parser import parse
from cuir.syntax.types import F16
from tests.lowering.passes.lowering import clean
from tests.strategies.selection import examples
from tests.strategies.typed import arguments

HEAD = """\
@kernel(arch="sm_90a")
def k(X: Global[T, 32, 64], V: Global[f8e4m3, 64, 128], Z: Global[f32, 32, COLS], n: i32, scale: f32, *, T: const, ROWS: const, COLS: const):
    sV, sZ = shared(f8e4m3, [64, 128]), shared(f32, [2, ROWS, COLS])
    full = mbarrier(1)
    work = tiles(1)
    with role("load", warps=1):
        for t in work:
            full.expect(nbytes(sV))
            copy_async(V[0 : 64, 0 : 128], sV, full)
    with role("math", warps=1):
        for t in work:
            full.wait(0)
            a = load(X[0 : ROWS, :])
            acc = zeros(f32, [ROWS, COLS])
"""
MORE, END = "acc = mma(a, sV[:, 0 : COLS], acc)", "store(Z[0 : ROWS, :], acc)"
PUT, BACK = "store(sZ[1], acc)", "store(Z[0 : ROWS, :], load(sZ[1]))"
NEXT = "\n    "
LOOP = f"for i in range(n):\n    {MORE}"


def kernel(body: str, rows: int = 32, columns: int = 128) -> Checked:
    text = HEAD + "".join(f"            {line}\n" for line in body.split("\n"))
    return check(parse(text, "k.cuir"), consts={"T": F16, "ROWS": rows, "COLS": columns})


def count_dealt(ir: Kernel) -> tuple[int, int, int]:
    """Products whose sums are dealt, how many sums are put in order, and how many stores do that as they go."""
    messages = [op for op in every(ir) if isinstance(op, Perform)]
    products, stores = (
        [v for op in messages if (v := get(op)) is not None and is_dealt(v)] for get in (get_sum, lambda op: op.args.get("tile"))
    )
    return len(products), sum(isinstance(op, ConvertLayout) for op in every(ir)), len(stores)


def get_sum(op: Perform) -> SSAValue | None:
    return op.results[0] if op.entry.traits.product else None


def is_dealt(value: SSAValue) -> bool:
    return isinstance(value.type, TileT) and value.type.layout == DEALT


@pytest.mark.sweep(4)
@pytest.mark.parametrize("n", [0, 1, 3])
@pytest.mark.parametrize(
    ("body", "result"),
    [
        (f"{LOOP}\n{END}", (1, 1)),
        (f"{LOOP}\n    acc = acc * scale\n{END}", (1, 1)),
        (
            f"{LOOP}\n    f = cast(rows(ROWS) % 3, f32)\n    acc = where(warp_any(f != 1.0), acc * f, acc)\n{END}",
            (1, 1),
        ),  # numbers a row; a branch of the warp
        (f"{LOOP}\n    {MORE}\n{END}", (2, 1)),
        (f"{LOOP}\nb = acc\n{END}\nstore(Z[0 : ROWS, :], b * 2.0)", (1, 2)),
        (f"if n > 1:\n    acc = full(f32, [ROWS, COLS], 1.0)\n{LOOP}\n{END}", (1, 1)),
        (f"{LOOP}\n    acc = acc * cast(cols(COLS), f32)\n{END}", (0, 0)),  # asks for columns
        (f"{LOOP}\n    {END}", (0, 0)),  # read within the loop: 384 instructions for 128 that the product saves
        (f"for i in range(n):\n    {3 * (MORE + NEXT)}{END}", (0, 0)),  # 384 for 384
        (f"for i in range(n):\n    {4 * (MORE + NEXT)}{END}", (4, 1)),  # 384 for 512
        (f"for i in range(n):\n    {4 * (MORE + NEXT)}for j in range(n):\n        {END}", (0, 0)),  # more often than the products
        (f"acc = load(Z[0 : ROWS, :])\n{LOOP}\n{END}", (0, 0)),  # begins with numbers that have columns
        (f"{MORE}\n{END}", (0, 0)),  # no loop: the exchange would come as often as the product
        (f"for i in range(n):\n    acc = mma(a, sV[:, 0 : COLS])\n{END}", (1, 1)),
    ],
)
def test_sums_that_nobody_asks_for_a_column_are_dealt(body: str, result: tuple[int, int], n: int) -> None:
    checked = kernel(body)
    ir = build(checked)
    clean(ir)
    branch_on_warp_votes.run(ir)
    inputs = arguments(checked, {}) | {"n": n, "scale": 0.5}
    assert validate(ir, [assign_layouts], inputs) is None
    assert count_dealt(ir) == (*result, 0)


@pytest.mark.sweep(4)
@pytest.mark.parametrize("rows", [16, 32])
@pytest.mark.parametrize("n", [0, 1, 3])
@pytest.mark.parametrize(
    ("body", "columns", "result"),
    [
        (f"{LOOP}\n{PUT}\n{BACK}", 128, (1, 0, 1)),
        (f"{LOOP}\n    acc = acc * scale\n{PUT}\n{BACK}", 128, (1, 0, 1)),
        (f"{LOOP}\n{PUT}\n{BACK}\n{END}", 64, (1, 1, 1)),
        (f"{LOOP}\n{PUT}\n{BACK}", 48, (1, 1, 0)),  # no whole panels
        (f"{LOOP}\nstore(sZ[1], acc, mask=rows(ROWS) < 9)\nstore(sZ[0], acc)\n{BACK}", 128, (1, 1, 1)),
    ],
)
def test_a_store_to_panels_puts_them_in_order_as_it_goes(body: str, columns: int, result: tuple[int, int, int], n: int, rows: int) -> None:
    checked = kernel(f"store(sZ[1], acc)\n{body}", rows, columns)
    ir = build(checked)
    clean(ir)
    assert validate(ir, [assign_layouts], arguments(checked, {}) | {"n": n, "scale": 0.5}) is None
    assert count_dealt(ir) == result
    assert lower(checked).source.count("cuir::store_dealt<") == result[2]


STATEMENTS = [
    MORE,
    MORE,
    MORE,
    "acc = acc * scale",
    "acc = acc + 1.0",
    "acc = acc * cast(rows(ROWS) % 3, f32)",
    "acc = acc + cast(cols(COLS), f32)",
    "acc = zeros(f32, [ROWS, COLS])",
    "acc = where(warp_any(cast(rows(ROWS) % 3, f32) != 1.0), acc * 2.0, acc)",
    "other = acc",
    "acc = acc + other",
    "other = mma(a, sV[:, 0 : COLS], other)",
    END,
    f"for j in range(2):\n    {MORE}",
    "if n > 1:\n    acc = acc * 0.5",
    f"if n > 1:\n    {MORE}\nelse:\n    acc = other",
]


@settings(examples(0.5), phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(
    inside=st.lists(st.sampled_from(STATEMENTS), min_size=1, max_size=5),
    behind=st.lists(st.sampled_from(STATEMENTS), max_size=3),
    n=st.integers(0, 3),
)
def test_whatever_is_made_of_the_sums_stays_the_same(inside: list[str], behind: list[str], n: int) -> None:
    loop = "\n    ".join("\n".join(inside).split("\n"))
    checked = kernel("\n".join([f"other = acc * scale\nfor i in range(n):\n    {loop}", *behind, END]))
    ir = build(checked)
    clean(ir)
    branch_on_warp_votes.run(ir)
    assert validate(ir, [assign_layouts], arguments(checked, {}) | {"n": n, "scale": 0.5}) is None


def test_the_text_says_the_order_once() -> None:
    source = lower(kernel(f"{LOOP}\n{END}")).source
    assert "multiply_rows_f8e4m3<false, true, " in source and source.count("cuir::in_order(") == 1


# ---- left operands
PRODUCT = """
@kernel(arch="sm_90a")
def k(X: Global[{dtype}, 64, 64], Y: Global[f32, 64, 64]):
    s, b = shared({dtype}, [64, {columns}]), shared({right}, [64, {width}])
    with role("all", warpgroups=1):
        store(s[:, 0:64], load(X[0:64, :]))
        store(b[:, 0:64], cast(load(X[0:64, :]), {right}))
        sync()
        a = load(s[:, 0:64])
        {body}
"""
BY_COLUMNS = "store(Y[0:64, :], mma(a, b[:, 0:64].T{parts}))"


def assigned(body: str = BY_COLUMNS, dtype: str = "f32", right: str = "f32", columns: int = 64) -> str:
    """The layout of the tile that is loaded, behind the pass, which keeps what the kernel computes."""
    parts = ", parts=1" if right == "f32" else ""
    text = PRODUCT.format(dtype=dtype, right=right, columns=columns, width=128, body=body.format(parts=parts))
    checked = check(parse(text, "k.cuir"))
    ir = build(checked)
    clean(ir)
    assert validate(ir, [assign_layouts], arguments(checked, {})) is None
    (a,) = (op.results[0] for op in every(ir) if op.results and op.results[0].name_hint == "a")
    assert isinstance(a.type, TileT)
    return a.type.layout.name


@pytest.mark.parametrize(
    ("body", "dtype", "right", "columns", "layout"),
    [
        (BY_COLUMNS, "f32", "f32", 64, "eights"),
        (BY_COLUMNS, "f16", "f8e4m3", 64, "fours"),
        (BY_COLUMNS, "f16", "f16", 64, "full"),  # ldmatrix
        (BY_COLUMNS.replace(".T", ""), "f32", "f32", 64, "full"),  # the right operand lies row by row
        (BY_COLUMNS + "\n        store(X[0:64, :], a)", "f32", "f32", 64, "full"),  # another reader
        ("store(Y[0:64, :], mma(a, b[:, 0:64].T, a{parts}))", "f32", "f32", 64, "full"),  # it begins the sum, too
        (BY_COLUMNS, "f32", "f32", 72, "full"),  # the array has no panels
        (BY_COLUMNS, "f16", "f8e4m3", 72, "full"),
    ],
)
def test_left_operands_lie_as_lanes_load_them(body: str, dtype: str, right: str, columns: int, layout: str) -> None:
    assert assigned(body, dtype, right, columns) == layout


@pytest.mark.parametrize(
    ("dtype", "right", "ordered"), [("f32", "f32", "cuir::operand_places<64>"), ("f16", "f8e4m3", "multiply_columns_f8e4m3<false, true")]
)
@pytest.mark.parametrize("columns", [64, 72])
def test_load_and_product_agree_on_the_order(dtype: str, right: str, ordered: str, columns: int) -> None:
    """Of an array without panels a tile was loaded as an accumulator lies, and multiplied as if it were in operand order."""
    parts = ", parts=1" if right == "f32" else ""
    text = PRODUCT.format(dtype=dtype, right=right, columns=columns, width=128, body=BY_COLUMNS.format(parts=parts))
    assert (ordered in lower(check(parse(text, "k.cuir"))).source) == (columns == 64)
