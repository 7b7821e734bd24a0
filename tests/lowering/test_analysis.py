"""Side tables: wait counts over all paths, late row sums, values that are never negative, scopes of names."""

from __future__ import annotations

import re

import pytest

from cuir.checking.checker import check
from cuir.lowering import lower
from cuir.lowering.analysis import analyse
from cuir.syntax.nodes import ExprStmt
from cuir.syntax.parser import parse
from tests.lowering.conftest import kernel, text

SETUP = "full[0].wait(0)\n"


def waits(body: str) -> list[int | None]:
    """The counts of the waits for products, in order of the text; None: nothing to wait for."""
    checked = kernel(SETUP + body)
    facts = analyse(checked, checked.roles[0])
    from cuir.lowering.flat import called, statements

    found = [s for s in statements(checked.roles[0].body) if isinstance(s, ExprStmt) and called(checked, s.value) == "mma_wait"]
    counts = [facts.waits[id(s)] for s in found]
    emitted = [int(n) for n in re.findall(r"warpgroup_wait<(\d+)>", lower(checked).source)]
    assert emitted == [c for c in counts if c is not None]
    return counts


@pytest.mark.parametrize(("body", "counts"), [
    ("a = mma_async(s[0], s[1])\nmma_wait(a)", [0]),
    ("a = mma_async(s[0], s[1])\nb = mma_async(s[0], s[1])\nmma_wait(a)\nmma_wait(b)", [1, 0]),
    ("a = mma_async(s[0], s[1])\nb = mma_async(s[0], s[1])\nmma_wait(b)", [0]),
    ("a = mma_async(s[0], s[1])\nb = mma_async(s[0], s[1])\nc = mma_async(s[0], s[1])\nmma_wait(b, a)\nmma_wait(c)", [1, 0]),
    ("a = mma_async(s[0], s[1])\nmma_wait(a)\nmma_wait(a)", [0, None]),
    ("a = zeros(f32, [64, 64])\nmma_wait(a)", [None]),
    ("a = mma_async(s[0], s[1])\nb = a\nmma_wait(b)", [0]),  # another name of the product
    # products issued on one path alone: the smallest count that is right on all
    ("a = mma_async(s[0], s[1])\nif n > 0:\n    b = mma_async(s[0], s[1])\n    mma_wait(b)\nmma_wait(a)", [0, 0]),
    ("a = mma_async(s[0], s[1])\nb = zeros(f32, [64, 64])\nif n > 0:\n    b = mma_async(s[0], s[1])\nmma_wait(a)\nmma_wait(b)", [0, None]),
    ("a = mma_async(s[0], s[1])\nif n > 0:\n    b = mma_async(s[0], s[1])\nelse:\n    b = mma_async(s[1], s[0])\nmma_wait(a)\nmma_wait(b)", [1, 0]),
])  # fmt: skip
def test_the_smallest_count_over_all_paths(body: str, counts: list[int | None]) -> None:
    assert waits(body) == counts


def test_a_product_carried_around_a_loop() -> None:
    """The pipeline of attention: S of this block and P V of the block before."""
    body = """
acc = zeros(f32, [64, 64])
P = zeros(f16, [64, 64])
for i in range(n):
    S = mma_async(s[0], s[1].T)
    acc = mma_async(P, s[1], acc)
    mma_wait(S)
    W = exp2(S)
    mma_wait(acc)
    P = cast(W, f16)
store(Z[rows(64), cols(64)], acc)"""
    assert waits(body) == [1, 0]


def test_a_product_waited_for_in_the_next_turn() -> None:
    body = """
acc = zeros(f32, [64, 64])
for i in range(n):
    before = acc
    acc = mma_async(s[0], s[1].T, acc)
    mma_wait(before)
mma_wait(acc)
store(Z[rows(64), cols(64)], acc)"""
    assert waits(body) == [1, 0]


def partial(body: str) -> set[str]:
    checked = kernel(body + "\nstore(Y[rows(64)], total)")
    return analyse(checked, checked.roles[0]).deferred_row_sums


@pytest.mark.parametrize(("body", "late"), [
    ("total = zeros(f32, [64, 1])\nfor i in range(n):\n    P = full(f32, [64, 64], 1.0)\n    total = total * 0.5 + row_sum(P)", {"total"}),
    ("P = full(f32, [64, 64], 1.0)\nf = full(f32, [64, 1], 2.0)\ntotal = zeros(f32, [64, 1])\nfor i in range(n):\n    total = f * total + row_sum(P) / f", {"total"}),
    ("total = full(f32, [64, 1], 1.0)\nfor i in range(n):\n    total = total + row_sum(full(f32, [64, 64], 1.0))", set()),  # 1 would count four times
    ("total = row_sum(full(f32, [64, 64], 1.0))\nfor i in range(n):\n    total = total * total", set()),  # not linear
    ("total = row_sum(full(f32, [64, 64], 1.0))\nfor i in range(n):\n    total = max(total, row_sum(full(f32, [64, 64], 1.0)))", set()),
    ("total = zeros(f32, [64, 1])\nfor i in range(n):\n    total = total + 1.0", set()),
    ("z = zeros(f32, [64, 1])\ntotal = z * 0.5 + row_sum(full(f32, [64, 64], 1.0))", {"total"}),  # zero is the sum of its parts, too
    ("z = zeros(f32, [64, 1])\nif n > 0:\n    z = full(f32, [64, 1], 1.0)\ntotal = z + row_sum(full(f32, [64, 64], 1.0))", set()),
    ("x = row_sum(full(f32, [64, 64], 1.0))\ntotal = where(x > 1.0, x, 0.0 * x)", {"x"}),  # the condition needs the whole sum
])  # fmt: skip
def test_sums_that_may_be_reduced_late(body: str, late: set[str]) -> None:
    assert partial(body) == late


def test_a_late_sum_is_summed_over_the_quad_where_it_is_read() -> None:
    found = text(
        "total = zeros(f32, [64, 1])\nfor i in range(n):\n    total = total + row_sum(full(f32, [64, 64], 1.0))\nstore(Y[rows(64)], total)"
    )
    loop, after = found.split("// 11:")
    assert "quad_sum(total[" not in loop.split("for (int i = 0")[1] and "quad_sum(total[" in after


@pytest.mark.parametrize(("body", "sums"), [
    ("store(Y[rows(64)], total * 2.0)\nx = log2(total)\nstore(Y[rows(64)], x)\nstore(Y[rows(64)], total)", 1),
    ("store(Y[rows(64)], total)\ntotal = total + row_sum(full(f32, [64, 64], 2.0))\nstore(Y[rows(64)], total)", 2),  # bound again
    ("store(Y[rows(64)], total)\nif n > 0:\n    total = total + row_sum(full(f32, [64, 64], 2.0))\nstore(Y[rows(64)], total)", 2),
    ("if n > 0:\n    store(Y[rows(64)], total)\nstore(Y[rows(64)], total)", 2),  # a sum made in a branch is not there behind it
    ("for i in range(n):\n    store(Y[rows(64)], total)\n    total = total + row_sum(full(f32, [64, 64], 2.0))", 1),  # anew in each turn
])  # fmt: skip
def test_a_late_sum_is_summed_once_for_the_statements_that_follow_each_other(body: str, sums: int) -> None:
    found = text("total = row_sum(full(f32, [64, 64], 1.0))\n" + body)
    assert len(re.findall(r"= cuir::quad_sum\(total\[", found)) == sums


PRODUCT, END = "acc = mma_async(s[0], s[1].T, acc)\nmma_wait(acc)\n", "store(Z[rows(64), cols(64)], acc)"


@pytest.mark.parametrize(("body", "lazy"), [
    ("acc = zeros(f32, [64, 64])\n" + PRODUCT + END, 1),
    ("acc = zeros(f32, [64, 64])\nfor i in range(1, 3):\n    acc = mma_async(s[0], s[1].T, acc)\n    mma_wait(acc)\n" + END, 0),  # a loop may not run
    ("acc = zeros(f32, [64, 64])\nif n > 0:\n    acc = acc * 2.0\n" + PRODUCT + END, 0),  # read otherwise on one path
    ("acc = zeros(f32, [64, 64])\nif n > 0:\n    acc = full(f32, [64, 64], 1.0)\n" + PRODUCT + END, 1),
    ("acc = full(f32, [64, 64], 1.0)\n" + PRODUCT + END, 0),
    ("acc = zeros(f32, [64, 64])\n" + END, 0),
    ("acc = zeros(f32, [64, 64])\nb = acc\n" + PRODUCT + END + "\nstore(Z[rows(64), cols(64)], b)", 0),
    ("acc = zeros(f32, [64, 64])\nfor t in work:\n    " + PRODUCT.replace("\n", "\n    ") + END + "\n    acc = zeros(f32, [64, 64])", 2),
])  # fmt: skip
def test_zeros_that_only_a_product_reads_are_not_written(body: str, lazy: int) -> None:
    checked = kernel(SETUP + body)
    assert len(analyse(checked, checked.roles[0]).lazy) == lazy
    assert ("ScaleOut(acc_holds" in lower(checked).source) == bool(lazy)


def test_an_accumulator_that_may_be_zero_is_told_from_one_that_holds_a_value() -> None:
    found = text(SETUP + "acc = zeros(f32, [64, 64])\nif n > 0:\n    acc = full(f32, [64, 64], 1.0)\n" + PRODUCT + END)
    flag = re.search(r"int (acc_holds\w*) = 0;", found)[1]  # type: ignore[index]
    order = [m.start() for m in re.finditer(rf"{flag} = 0;  //|acc\[i_\] = 1.0f;|{flag} = 1;|ScaleOut\({flag}\)|{flag} = 1;", found)]
    assert len(order) == 5 and order == sorted(order)


@pytest.mark.parametrize(("body", "carried"), [
    ("i = 0\nfor t in work:\n    x = i % 3\n    i += 1\n    store(I[x], x)", {"i": 0}),
    ("i = 5\nfor t in work:\n    x = i // 3 % 2\n    i += 1\n    store(I[x], x)", {"i": 5}),
    ("i = 0\nfor t in work:\n    x = i % 3\n    i += 2\n    store(I[x], x)", {}),
    ("i = n\nfor t in work:\n    x = i % 3\n    i += 1\n    store(I[x], x)", {}),
    ("for t in work:\n    i = 0\n    x = i % 3\n    i += 1\n    store(I[x], x)", {}),  # starts anew with each tile
])  # fmt: skip
def test_counters_carry_their_stage_and_parity(body: str, carried: dict[str, int]) -> None:
    checked = kernel(body)
    assert analyse(checked, checked.roles[0]).counters == carried
    source = lower(checked).source
    assert ("if (++i_stage" in source) == bool(carried)
    if carried:
        first = carried["i"]
        assert re.search(rf"int i_stage\w* = {first % 3};", source) and re.search(rf"int i_parity\w* = {first // 3 % 2};", source)


@pytest.mark.parametrize(("body", "shifted"), [
    ("x = n // 2\nstore(I[0], x)", "n >> 1"),  # arithmetic shifts round to minus infinity, as // does
    ("x = M // n\nstore(I[0], x)", "floordiv(M, n)"),
    ("x = n % 8\nstore(I[0], x)", "n & 7"),
    ("x = n % 3\nstore(I[0], x)", "floormod(n, 3)"),
    ("for t in work:\n    x = t % 3\n    store(I[0], x)", "unsigned(t) % unsigned(3)"),
    ("x = (n - 5) // 3\nstore(I[0], x)", "floordiv(cuir::sub(n, 5), 3)"),
])  # fmt: skip
def test_division_of_numbers_that_may_be_negative(body: str, shifted: str) -> None:
    assert shifted in text(body)


def test_names_are_declared_where_all_their_uses_see_them() -> None:
    found = text("if n > 0:\n    a = 1\nelse:\n    a = 2\nfor i in range(n):\n    b = a + i\n    store(I[0], b)")
    assert found.index("int a;") < found.index("if (n > 0)") and "const int b = " in found


def test_a_late_sum_divided_by_a_scalar() -> None:
    found = text("m = cast(n, f32)\ntotal = row_sum(full(f32, [64, 64], 1.0)) / m\nstore(Y[rows(64)], total)")
    assert ", m[" not in found and "part__1[r_], m)" in found


@pytest.mark.parametrize("made", ["load(buf)", "mma(load(half[0]), half[1])"])
def test_a_sum_of_what_is_not_computed_element_by_element(made: str) -> None:
    """Only a loop over elements can take the sum on the way."""
    body = f"x = {made}\ns = row_sum(x)\nstore(Y[rows(64)], s)"
    program = """\
@kernel(arch="sm_90a")
def k(Y: Global[f32, M]):
    buf, half = shared(f32, [64, 64]), shared(f16, [2, 64, 64])
    with role("all", warpgroups=1):
        {}
""".format("\n        ".join(body.split("\n")))
    found = lower(check(parse(program))).source
    assert "parts" not in found and "row_part(x, part" in found
