"""Report of sums of 8-bit products: bits, K, and the error by the model of the page."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cuir import FunctionSpecification, parse, verify
from cuir.checking.checker import check
from cuir.ops.meaning.tiles import NARROW_STEP, NARROW_SUM_BITS, multiply_narrow, narrow_sum_error
from cuir.syntax.types import DTYPES
from cuir.verification.narrow_products import find_narrow_sums
from tests.gpu.test_float8 import PRODUCT
from tests.ptx.card.sums import NARROW, add_products

ONE_PRODUCT = """\
@kernel(arch="sm_90a")
def k(A: Global[T, M, 128], C: Global[f32, M, 64], *, T: const):
    s = shared(T, [64, 128])
    full = mbarrier(1)
    work = tiles(cdiv(M, 64))
    with role("all", warpgroups=1):
        i = 0
        for t in work:
            full.expect(nbytes(s))
            copy_async(A[t * 64 : t * 64 + 64, :], s, full)
            full.wait(i % 2)
            x = mma_async(s, s.T)
            mma_wait(x)
            store(C[t * 64 + rows(64), cols(64)], x)
            i += 1
"""


def reference(A: torch.Tensor) -> torch.Tensor:
    blocks = torch.nn.functional.pad(A, (0, 0, 0, -len(A) % 64)).view(-1, 64, 128)
    return (blocks @ blocks.mT).reshape(-1, 64)[: len(A)]


def test_the_model() -> None:
    assert narrow_sum_error(1) == narrow_sum_error(NARROW_STEP) == 34 * 2.0 ** (1 - NARROW_SUM_BITS) == 34 * 2.0**-13
    assert narrow_sum_error(4096) == 128 * 34 * 2.0**-13 and narrow_sum_error(33) == 2 * narrow_sum_error(32)


def measure_error(a: np.ndarray, b: np.ndarray) -> float:
    """The error of a sum of products as the tensor core adds them, relative to its largest product or partial sum."""
    total, largest = np.zeros((1, 1)), np.abs(a * b).max()
    for k in range(0, len(a), NARROW_STEP):
        total = add_products(a[None, k : k + NARROW_STEP], b[None, k : k + NARROW_STEP], total, NARROW)
        largest = max(largest, abs(a[: k + NARROW_STEP] @ b[: k + NARROW_STEP]), abs(total.item()))
    return float(abs(total.item() - a @ b) / largest)


@given(st.integers(0, 2**32 - 1), st.integers(1, 8), st.floats(0, 4), st.booleans())
def test_no_sum_loses_more(seed: int, steps: int, spread: float, positive: bool) -> None:
    draws = np.random.default_rng(seed).standard_normal((2, NARROW_STEP * steps)) * 2.0 ** (spread * np.arange(2)[:, None])
    a, b = (torch.from_numpy(x).to(torch.float8_e4m3fn).double().numpy() for x in (np.abs(draws) if positive else draws))
    if (a * b).any():
        assert measure_error(a, b) <= narrow_sum_error(len(a))


@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.floats(0, 6))
def test_sums_are_those_of_the_card(seed: int, steps: int, spread: float) -> None:
    draws = np.random.default_rng(seed).standard_normal((2, 5, NARROW_STEP * steps))
    draws *= 2.0 ** (spread * np.arange(draws.shape[-1]) / draws.shape[-1])
    a, b = (torch.from_numpy(x).to(torch.float8_e4m3fn).double() for x in draws)
    total = np.zeros((5, 5))
    for k in range(0, a.shape[1], NARROW_STEP):
        total = add_products(a[:, k : k + NARROW_STEP].numpy(), b[:, k : k + NARROW_STEP].numpy(), total, NARROW)
    assert torch.equal(multiply_narrow(a, b.T), torch.from_numpy(total))


def test_every_addend_is_truncated() -> None:
    """One large product, and small ones of which each loses all: nearly a unit for each."""
    a = np.array([1.0] + [15 * 2.0**-8] * (NARROW_STEP - 1))
    b = np.array([2.0] + [2.0**-8] * (NARROW_STEP - 1))
    assert 20 * 2.0**-13 <= measure_error(a, b) <= narrow_sum_error(NARROW_STEP)


@pytest.mark.parametrize("dtype", ("f8e4m3", "f8e5m2"))
def test_the_report_says_how_many_bits_are_kept(dtype: str) -> None:
    report = verify(parse(ONE_PRODUCT), FunctionSpecification("k", reference), consts={"T": DTYPES[dtype]}, seeded=0)
    assert report.ok, report.diagnostics
    message = f"products of {dtype} in line 12: the tensor core keeps 14 bits of a sum, and cuts off up to 1.7e-02 of the largest product or partial sum over K = 128; the runs here sum in f32"
    assert message in report.left_open
    assert report.as_json()["narrow_products"] == [{"dtypes": (dtype,), "line": 12, "k": 128, "open": False}]


def test_halves_have_no_note() -> None:
    report = verify(parse(ONE_PRODUCT), FunctionSpecification("k", reference), consts={"T": DTYPES["f16"]}, seeded=0)
    assert report.ok and report.narrow == [] and "tensor core" not in report.left_open


@pytest.mark.thorough
def test_a_sum_over_a_loop_is_as_long_as_the_loop_turns() -> None:
    """And may be longer for other lengths, so more is said."""
    checked = check(parse(PRODUCT), consts={"T": DTYPES["f8e4m3"]})
    (before,) = find_narrow_sums(checked)
    assert before.open and before.k == 128
    report = verify(parse(PRODUCT), FunctionSpecification("k", lambda A, B: A @ B.mT), consts={"T": DTYPES["f8e4m3"]}, seeded=0)
    assert report.ok, report.diagnostics
    (result,) = report.narrow
    assert result.open and result.k >= 3 * before.k and result.k % before.k == 0
    assert f"over K = {result.k:,}, the longest sum of all runs, 1.3e-01 for each 1,024 of K" in str(result)


CHAIN = (
    "            x = mma_async(s, s.T)\n            mma_wait(x)\n",
    "            x = mma_async(s, s.T)\n            x = mma_async(s, s.T, x)\n            mma_wait(x)\n",
)
FRESH = (
    "            x = mma_async(s, s.T)\n",
    "            for j in range(M):\n                x = mma_async(s, s.T)\n                mma_wait(x)\n            x = mma_async(s, s.T)\n",
)


def test_products_of_one_sum_count_together_and_others_apart() -> None:
    def find(change: tuple[str, str]) -> list[tuple[int, bool]]:
        assert change[0] in ONE_PRODUCT
        return [(n.k, n.open) for n in find_narrow_sums(check(parse(ONE_PRODUCT.replace(*change)), consts={"T": DTYPES["f8e5m2"]}))]

    assert find(CHAIN) == [(256, False)]
    assert find(FRESH) == [(128, False), (128, False)]
