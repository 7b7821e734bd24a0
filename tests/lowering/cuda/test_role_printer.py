"""The text of roles: what is declared, and what is worked out when."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cuir.checking.checker import check
from cuir.lowering import lower
from cuir.lowering.analyses import Facts
from cuir.lowering.cuda.frame import KernelPrinter
from cuir.lowering.passes import insert_synchronisation, select_instructions
from cuir.syntax.parser import parse
from tests.lowering.host import GXX, on_cpu
from tests.lowering.tile_ir import clean, program

HEAD = """
@kernel(arch="sm_90a")
def f(X: Global[f32, 64, 64], I: Global[i32, 64], R: Global[f32, 64], Y: Global[f32, 64, 64], n: i32):
    h, g = shared(f16, [64, 64]), shared(f16, [64, 64])
    with role("one", warpgroups=1):
        x = load(X[0:64, :])
"""


def print_role(body: str) -> str:
    """The text of the role."""
    checked = program(HEAD + "".join(f"        {line}\n" for line in body.split("\n")))
    kernel = clean(checked)
    insert_synchronisation.run(kernel)
    select_instructions.run(kernel)
    source = KernelPrinter(kernel, Facts(kernel), frozenset()).emit().source
    return source[source.index("// ---- role one") :]


def test_fresh_products_issued_together_are_declared() -> None:
    text = print_role(
        "store(h, cast(x, f16))\nfence_async()\np = mma_async(h, h)\nq = mma_async(h, g)\nmma_wait(p)\nstore(Y[0:64, :], p)\nmma_wait(q)\nstore(Y[0:64, :], q)"
    )
    assert "float p[32];" in text and "float q[32];" in text


def test_a_join_that_a_later_product_needs_comes_before_the_first() -> None:
    text = print_role(
        "store(g, cast(x, f16))\nfence_async()\np = mma_async(h, h)\nq = mma_async(h, g)\nmma_wait(p, q)\nstore(Y[0:64, :], p + q)"
    )
    assert text.count("bar_sync(") == 1 and text.index("bar_sync(") < text.index("warpgroup_arrive(")


def test_the_end_of_a_loop_is_that_of_its_beginning() -> None:
    text = print_role("m = n + 3\nfor i in range(m):\n    m = m - 1\n    store(R[rows(64) + m], row_max(x))")
    end = re.search(r"for \(int i = 0; i < (\w+);", text)
    assert end is not None and f"const int {end[1]} = n + 3;" in text


def test_indices_are_read_where_the_program_reads_them() -> None:
    text = print_role("q = I[rows(64)]\nstore(R[q], row_max(x))\nstore(I[rows(64)], rows(64) * 2)\nstore(R[q], row_sum(x))")
    assert text.count("gather_written(I,") == 1
    text = print_role("store(R[I[rows(64)]], row_max(x))\ny = X[I[rows(64)], cols(64)]\nstore(Y[0:64, :], y)")
    assert text.count("cuir::gather(I,") == 1  # of a tensor that nobody writes one read will do
    text = print_role("y = X[I[rows(64)], cols(64)]\nstore(Y[0:64, :], y)")
    assert re.search(r"cuir::gather\(X, true, cuir::gather\(I, true", text)  # a read of a read is one loop


# ---- loops
BOUNDED = """
@kernel(arch="sm_90a")
def f(Y: Global[i32, 64], n: i32, m: i32):
    with role("one", warpgroups=1):
        total = 0
        for i in range({bound}):
            total += i + 1
        store(Y[rows(64)], zeros(i32, [64, 1]) + total)
"""


@pytest.mark.skipif(GXX is None, reason="no g++ on the PATH")
@pytest.mark.parametrize(
    ("bound", "turns"),
    [("n if n < m else 0", lambda n, m: n if n < m else 0), ("min(n, m) + 1", lambda n, m: min(n, m) + 1), ("n ^ m", lambda n, m: n ^ m)],
)
def test_a_loop_ends_where_its_bound_says(bound: str, turns: Callable[[int, int], int], tmp_path: Path) -> None:
    run = on_cpu(lower(check(parse(BOUNDED.format(bound=bound)))), tmp_path)
    for n, m in ((3, 5), (5, 3), (4, 4), (1, 2)):
        y = np.full(64, -1, np.int32)
        run(y, n, m)
        count = turns(n, m)
        assert (y == count * (count + 1) // 2).all(), (n, m)


# ---- copies
COPIES = """
@kernel(arch="sm_90a")
def f(X: Global[f16, M, 64], Y: Global[f16, M, 64]):
    buf, full = shared(f16, [2, 64, 64]), mbarrier(1)
    with role("load", warps=1):
        full.expect(nbytes(buf))
        copy_async(X[0:64, :], buf[0], full)
        {between}
        copy_async(X[64:128, :], buf[1], full)
        full.wait(0)
        store(Y[rows(16), cols(64)], load(buf[0, 0:16]))
"""


@pytest.mark.parametrize(("between", "branches"), [("", 1), ("full.arrive()", 2)])
def test_copies_that_follow_each_other_are_issued_in_one_branch(between: str, branches: int) -> None:
    text = lower(check(parse(COPIES.format(between=between)))).source
    role = text[text.index("role load") :]
    assert role.count("if (cute::elect_one_sync()) {") == branches and role.count("SM90_TMA_LOAD") == 2
    assert "copy_async(X[64:128, :], buf[1], full)" in role  # each is marked by its line


def test_conditions_of_an_element_are_joined_without_branches() -> None:
    """`&` has both sides, and a branch an element is what compilers make of && between comparisons; those of a row or a scalar may branch."""
    elements = print_role(
        "q = rows(64)\nk = cols(64)\nstore(Y[q, k], where((k <= q) & (k > q - n) | (q < n) & (k < n) & (I[q] == I[k]), x, 0.0))"
    )
    chosen = [line for line in elements.splitlines() if "?" in line and "limit" in line]
    assert chosen and all(" & " in line and " | " in line and not re.search(r"&&|\|\|", line) for line in chosen)
    assert "&&" in print_role("a = n > 2 and n < 9\nif a:\n    store(Y[0:64, :], x)")
