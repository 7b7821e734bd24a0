"""Exponentials that stay above the wait for a product, and those that are left to the compiler."""

from __future__ import annotations

import pytest

import cuir
from cuir.checking.checker import check
from cuir.lowering.ir.build_ir import build
from cuir.lowering.ir.ir_walk import every
from cuir.lowering.ir.machine_ops import Pinned
from cuir.lowering.passes import branch_on_warp_votes, pin_waits
from tests.lowering.passes.lowering import clean

KERNEL = """\
@kernel(arch="sm_90a")
def k(X: Global[f16, M, 64], Y: Global[f32, M, 64], Z: Global[f32, M, 64], R: Global[f32, M], n: i32):
    a = shared(f16, [64, 64])
    full = mbarrier(1)
    with role("one", warpgroups=1):
        x = zeros(f16, [64, 64])
        store(a, x)
        fence_async()
        S = mma_async(x, a)
        O = mma_async(x, a)
        mma_wait(S)
        {before}
        mma_wait(O)
        {behind}
        store(Y[0:64, :], O)
        store(Z[0:64, :], S)
"""


LOOP = """\
@kernel(arch="sm_90a")
def k(Y: Global[f32, M, 64], Z: Global[f32, M, 64], n: i32):
    a = shared(f16, [64, 64])
    with role("one", warpgroups=1):
        x = zeros(f16, [64, 64])
        store(a, x)
        fence_async()
        O = zeros(f32, [64, 64])
        for i in range(n):
            S = mma_async(x, a)
            O = mma_async(x, a, O)
            mma_wait(S)
            m = exp2(row_max(S))
            S = exp2(S)
            mma_wait(O)
            {behind}
            store(Z[0:64, :], S)
        store(Y[0:64, :], O)
"""


def list_pinned(before: str, behind: str = "n + 0") -> list[str]:
    """The layouts of what is pinned before the wait for O."""
    text = KERNEL.format(before=before.replace("\n", "\n        "), behind=behind.replace("\n", "\n        "))
    return list_pinned_in(text.replace("        n + 0\n", ""))


def list_pinned_in(text: str) -> list[str]:
    ir = build(check(cuir.parse(text)))
    clean(ir)
    branch_on_warp_votes.run(ir)
    pin_waits.run(ir)
    ir.verify()
    return [value.type.layout.name for op in every(ir) if isinstance(op, Pinned) for value in op.values]  # type: ignore[attr-defined]


def test_exponentials_are_pinned() -> None:
    assert list_pinned("S = exp2(S)") == ["full"]


def test_a_number_a_row_that_all_have_gone_into_is_pinned_for_them() -> None:
    assert list_pinned("S = exp2(S)\nl = row_sum(S)\nstore(R[rows(64)], l)") == ["rows"]


def test_nothing_is_pinned_without_exponentials() -> None:
    assert list_pinned("S = S * 2.0") == []


@pytest.mark.parametrize("behind", ["O = S * (O - 1.0)", "O = O - 1.0\nS = S * 2.0\nO = O * S"])
def test_exponentials_that_meet_the_product_element_by_element_are_not(behind: str) -> None:
    assert list_pinned("S = exp2(S)", behind) == []


def test_numbers_a_row_that_the_product_is_multiplied_by_are() -> None:
    """The rescaling of the online softmax."""
    assert set(list_pinned("m = exp2(row_max(S))\nS = exp2(S)", "O = O * m")) == {"rows", "full"}


def test_what_meets_behind_the_next_product_counts_as_apart() -> None:
    assert list_pinned("S = exp2(S)", "Q = mma_async(x, a)\nmma_wait(Q)\nO = O * S + Q") == ["full"]


@pytest.mark.parametrize(
    ("behind", "remaining"), [("O = O * m", True), ("O = where(warp_any(m != 1.0), O * m, O)", False), ("store(Y[0:64, :], O * m)", False)]
)
def test_beside_the_rescaling_of_every_block_they_are_left_to_the_compiler(behind: str, remaining: bool) -> None:
    """The online softmax in a loop. Where a warp may skip the factors, or they are of what is stored, exponentials stay above the wait."""
    assert (list_pinned_in(LOOP.format(behind=behind)) == []) == remaining
