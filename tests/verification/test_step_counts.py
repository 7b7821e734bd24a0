"""Counts of steps that are always tried: by loops and by units of work, several units a CTA, two dims long at once."""

from __future__ import annotations

import pytest
import torch

import corpus
from cuir import FunctionSpecification, check, parse, verify
from cuir.attn.verification.problems import Case
from cuir.checking.checked import Checked
from cuir.spec.loading import as_any
from cuir.syntax.nodes import Program
from cuir.syntax.types import F16
from cuir.verification import resource_limits, step_counts
from cuir.verification.step_counts import COUNTS, make_counted_cases, make_far_cases
from cuir.verification.tile_steps import find_steps, find_unit_dims
from cuir.verification.values.cases import Draw

PRODUCT = """
@kernel(arch="sm_90a")
def k(A: Global[f16, M, K], B: Global[f16, 64, K], C: Global[f32, M, 64]):
    sA, sB = shared(f16, [4, 64, 64]), shared(f16, [4, 64, 64])
    full, empty = mbarrier(1, stages=4), mbarrier(1, stages=4)
    work = tiles(cdiv(M, 64))
    with role("load", warps=1):
        it = 0
        for t in work:
            for k in range(cdiv(K, 64)):
                s, phase = it % 4, it // 4 % 2
                empty[s].wait(phase ^ 1)
                full[s].expect(nbytes(sA[s]) + nbytes(sB[s]))
                copy_async(A[t * 64 : t * 64 + 64, k * 64 : k * 64 + 64], sA[s], full[s])
                copy_async(B[0:64, k * 64 : k * 64 + 64], sB[s], full[s])
                it += 1
    with role("compute", warpgroups=1):
        it = 0
        for t in work:
            acc = zeros(f32, [64, 64])
            for k in range(cdiv(K, 64)):
                s, phase = it % 4, it // 4 % 2
                full[s].wait(phase)
                acc = mma_async(sA[s], sB[s].T, acc)
                mma_wait(acc)
                it += 1
                {release}
            store(C[t * 64 : t * 64 + 64, :], acc)
"""
ONE_BY_ONE = "empty[s].arrive()"


def product(release: str) -> Program:
    return parse(PRODUCT.format(release=release.replace("\n", "\n" + " " * 16)), "product.cuir")


def reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b.T


SPEC = FunctionSpecification("product", reference)
ROWS = """
@kernel(arch="sm_80")
def k(X: Global[f32, M, 32], Y: Global[f32, M, 32]):
    work = tiles(cdiv(M, 16))
    with role("all", warps=1):
        n = 0
        for t in work:
            q = t * 16 + rows(16)
            x = X[q, cols(32)]
            if {when}:
                x = x + 1.0
            store(Y[q, cols(32)], x)
            n += 1
"""


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    "release",
    [
        "if k % 4 == 3:\n    for j in range(4):\n        empty[j].arrive()",  # in groups of four: right for multiples of four alone
        "if not (cdiv(K, 64) == 7 and k == 6):\n    empty[s].arrive()",
        "if it != 13 or cdiv(M, 64) < 6:\n    empty[s].arrive()",
        "if k > 0 or cdiv(K, 64) != 12:\n    empty[s].arrive()",
        "if cdiv(K, 64) == 3 and it == 5:\n    full[s].wait(phase ^ 1)\nempty[s].arrive()",  # three steps, in the second unit
    ],
)
def test_faults_of_the_protocol_between_three_and_33_steps(release: str) -> None:
    report = verify(product(release), SPEC, shrink=False, seeded=0)
    assert not report.ok and next(s.name for s in report.stages if s.verdict == "failed") == "schedules"


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    "when", ["cdiv(M, 16) == 5", "cdiv(M, 16) == 8 and t == 7", "n == 11", "cdiv(M, 16) == 12 and t == 3", "cdiv(M, 16) == 32"]
)
def test_wrong_numbers_at_a_count_of_units(when: str) -> None:
    report = verify(parse(ROWS.format(when=when)), FunctionSpecification("copy", lambda x: x), shrink=False, seeded=0)
    assert not report.ok and report.diagnostics[0].code in ("V201", "V301")


@pytest.mark.thorough
def test_right_kernels_pass() -> None:
    assert verify(product(ONE_BY_ONE), SPEC, seeded=0).ok
    assert verify(parse(ROWS.format(when="t < 0")), FunctionSpecification("copy", lambda x: x), seeded=0).ok


def check_product() -> Checked:
    return check(product(ONE_BY_ONE))


def test_every_dim_makes_every_count_of_steps() -> None:
    checked = check_product()
    steps = find_steps(checked, SPEC)
    cases = [c for c in make_counted_cases(checked, SPEC, "quick") if isinstance(c, Draw)]
    for d in checked.dims:
        assert {-(-c.sizes[d] // steps[d]) for c in cases} >= set(COUNTS)
    assert sum(min(-(-c.sizes[d] // steps[d]) for d in checked.dims) > 3 for c in cases) > 4  # both long at once
    assert find_unit_dims(checked) == {"M"}


def test_attention_makes_every_count_of_steps() -> None:
    tree = parse(corpus.kernels()["flash_fwd_sm90"].read_text(encoding="utf-8"), "flash.cuir")
    checked = check(tree, "flash_fwd", {"T": F16, "D": 64})
    spec = as_any(corpus.specification("causal"), "causal")
    at = [c.lengths for c in make_counted_cases(checked, spec, "quick") if isinstance(c, Case)]
    assert {-(-x.N // 128) for x in at} >= set(COUNTS) and {-(-x.M // 128) for x in at} >= set(COUNTS) and {x.H for x in at} >= set(COUNTS)
    assert max(c.lengths.H for c in make_far_cases(checked, spec) if isinstance(c, Case)) == 300


@pytest.mark.parametrize(("seconds", "ways"), [(0.0, 1), (1e9, 12)])
def test_further_ways_end_with_the_time(seconds: float, ways: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each problem runs once in any case; with time enough, in every combination of a grid and a schedule."""
    observed: list[tuple[str, object, str]] = []

    def note(checked: Checked, spec: object, case: Draw, grid: object, schedule: object) -> int:
        observed.append((case.name, grid, str(schedule)))
        return 1

    checked = check(product(ONE_BY_ONE))
    cases = [Draw(f"steps: {i}", {"M": 64, "K": 64}) for i in range(5)]
    monkeypatch.setattr(step_counts, "run_unless_too_large", note)
    monkeypatch.setattr(resource_limits, "FURTHER_WAYS", seconds)
    monkeypatch.setattr(step_counts, "make_far_cases", lambda *_: [])
    assert (
        sum(job() for job in step_counts.make_counted_jobs(checked, SPEC, cases, "full")) == len(observed) == len(set(observed)) == 5 * ways
    )
    assert {name for name, *_ in observed} == {c.name for c in cases}
