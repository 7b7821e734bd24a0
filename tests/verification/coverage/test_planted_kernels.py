"""Faults that need one number, in kernels of other kinds, and right twins with the same conditions."""

import pytest

import corpus
import cuir
from cuir.spec.function_specification import FunctionSpecification

from .planted_kernels import DECODING, REDUCTION, column_sum, decode, decode_sizes

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
@pytest.mark.sweep
@pytest.mark.parametrize("b, hk", HEADS)
def test_a_decoding_that_is_wrong_at_one_number_is_refused(b: str, hk: str) -> None:
    report = cuir.verify(cuir.parse(DECODING.format(b=b, hk=hk)), DECODE, shrink=False, seeded=0)
    assert [d.code for d in report.diagnostics] == ["V301"]


@pytest.mark.usefixtures("no_schedules")
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


def test_a_product_that_releases_the_rest_passes() -> None:
    assert cuir.verify(cuir.parse(release_after(REST)), corpus.specification("gelu_gemm")(), consts=SMALL, seeded=0).ok
