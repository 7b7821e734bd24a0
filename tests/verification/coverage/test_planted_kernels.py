"""Faults that need one number, in kernels of other kinds, and right twins with the same conditions."""

import pytest
import torch

import corpus
import cuir
from cuir.spec.function_specification import FunctionSpecification

REDUCTION = """
@kernel(arch="sm_80")
def kernel(X: Global[f32, C, R, 32], Y: Global[f32, C, 32]):
    work = tiles(C)
    with role("all", warps=1):
        for t in work:
            total = zeros(f32, [1, 32])
            last = {last}
            for i in range(last):
                total = total + X[t, i + rows(1), cols(32)]
            store(Y[t + rows(1), cols(32)], total)
"""

DECODING = """
@kernel(arch="sm_80")
def kernel(Q: Global[f32, B, H, 32], K: Global[f32, B, HK, N, 32], O: Global[f32, B, H, 32]):
    work = tiles(B * H)
    with role("all", warps=1):
        for t in work:
            b, h = t // H, t % H
            group = H // HK
            hk = h // group
            total = zeros(f32, [1, 32])
            for i in range(N):
                total = total + K[{b}, {hk}, i + rows(1), cols(32)]
            store(O[b, h + rows(1), cols(32)], total * Q[b, h + rows(1), cols(32)])
"""


def column_sum(x: torch.Tensor) -> torch.Tensor:
    return x.sum(1)


def decode(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return k.sum(2).repeat_interleave(q.shape[1] // k.shape[1], 1) * q


def decode_sizes(drawn: dict[str, int]) -> dict[str, int]:
    """Query heads in whole groups."""
    return {"H": -(-drawn["H"] // drawn["HK"]) * drawn["HK"]}


DECODE = FunctionSpecification("decode", decode, sizes=decode_sizes)
ROWS = ["R - 1 if R == 40 else R", "R - 1 if t == 512 else R", "min(R, 512)", "R if R < 513 else R - R % 512"]
HEADS = [
    ("0 if B == 17 and b == 16 else b", "hk"),
    ("min(b, 15)", "hk"),
    ("b", "0 if hk == 32 else hk"),
    ("b", "min(hk, 31)"),
    ("b", "max(hk - 1, 0) if group == 12 else hk"),
]
RELEASE = """                if k > 0:
                    empty[(it - 1) % STAGES].arrive()
                it += 1
            mma_wait(acc)
            if cdiv(K, BK) > 0:
                empty[(it - 1) % STAGES].arrive()
"""
BY_FOUR = """                mma_wait(acc)
                if k % 4 == 3:
                    for r in range(4):
                        empty[(it - r) % STAGES].arrive()
                it += 1
"""
REST = """            for r in range(cdiv(K, BK) % 4):
                empty[(it - 1 - r) % STAGES].arrive()
"""
SMALL = {"BM": 64, "BN": 64, "STAGES": 8}


@pytest.mark.usefixtures("no_schedules")
@pytest.mark.sweep
@pytest.mark.parametrize("last", ROWS)
def test_a_reduction_that_is_wrong_at_one_number_is_refused(last: str) -> None:
    report = cuir.verify(cuir.parse(REDUCTION.format(last=last)), column_sum, shrink=False, seeded=0)
    assert [d.code for d in report.diagnostics] == ["V301"]


@pytest.mark.usefixtures("no_schedules")
@pytest.mark.sweep
@pytest.mark.parametrize("last", ["R", "R + 0 if R == 40 else R", "R if t == 512 else max(R, 1)", "min(R, 512) + max(R - 512, 0)"])
def test_a_right_reduction_with_such_conditions_passes(last: str) -> None:
    report = cuir.verify(cuir.parse(REDUCTION.format(last=last)), column_sum, seeded=0)
    assert report.ok and report.coverage.sides_seen > 0


@pytest.mark.usefixtures("no_schedules")
@pytest.mark.thorough("test_user_sizes.py refuses faults of heads and batches of a decoding, too")
@pytest.mark.parametrize("b, hk", HEADS)
def test_a_decoding_that_is_wrong_at_one_number_is_refused(b: str, hk: str) -> None:
    report = cuir.verify(cuir.parse(DECODING.format(b=b, hk=hk)), DECODE, shrink=False, seeded=0)
    assert [d.code for d in report.diagnostics] == ["V301"]


@pytest.mark.usefixtures("no_schedules", "few_problems")
@pytest.mark.sweep
@pytest.mark.parametrize(
    "b, hk", [("b", "hk"), ("16 if b == 16 else b", "32 if hk == 32 else hk"), ("b", "h // 12 if group == 12 else hk")]
)
def test_a_right_decoding_with_such_conditions_passes(b: str, hk: str) -> None:
    assert cuir.verify(cuir.parse(DECODING.format(b=b, hk=hk)), DECODE, seeded=0).ok


def release_after(after: str) -> str:
    text = corpus.programs()["gemm"].read_text(encoding="utf-8")
    assert RELEASE in text
    return text.replace(RELEASE, BY_FOUR + after)


def test_a_product_that_forgets_stages_after_groups_of_four_is_refused() -> None:
    report = cuir.verify(cuir.parse(release_after("")), corpus.specification("gelu_gemm")(), consts=SMALL, shrink=False, seeded=0)
    assert report.stages[2].verdict == "failed" and [d.code for d in report.diagnostics][:1] == ["D401"]


@pytest.mark.thorough
def test_a_product_that_releases_the_rest_passes() -> None:
    assert cuir.verify(cuir.parse(release_after(REST)), corpus.specification("gelu_gemm")(), consts=SMALL, seeded=0).ok
