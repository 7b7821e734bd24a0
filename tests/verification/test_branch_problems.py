"""Branches that only long rows take get inputs of every kind, as short rows do."""

from __future__ import annotations

import pytest

from cuir import CuirError, FunctionSpecification, check, parse
from cuir.verification.branch_problems import make_branch_draws
from cuir.verification.coverage.observed_sides import observe
from cuir.verification.spec_dispatch import check_case
from cuir.verification.values.cases import Draw

VARIANCE = """\
@kernel(arch="sm_90a")
def k(X: Global[f32, M, N], Y: Global[f32, M]):
    work = tiles(cdiv(M, 16))
    with role("all", warps=1):
        for t in work:
            i = t * 16 + rows(16)
            total, squares = zeros(f32, [16, 1]), zeros(f32, [16, 1])
            for j in range(cdiv(N, 128)):
                x = X[i, j * 128 + cols(128)]
                total, squares = total + row_sum(x), squares + row_sum(x * x)
            mean = total / cast(N, f32)
            var = squares / cast(N, f32) - mean * mean
            if N <= LIMIT:
                var = zeros(f32, [16, 1])
                for j in range(cdiv(N, 128)):
                    c = j * 128 + cols(128)
                    d = where(c < N, X[i, c] - mean, 0.0)
                    var = var + row_sum(d * d)
                var = var / cast(N, f32)
            store(Y[i], var)
"""
SPEC = FunctionSpecification("k", lambda x: x.var(-1, unbiased=False), sizes=lambda draw: {"N": max(1, draw["N"])})


def draw(n: int) -> list[Draw]:
    """The kernel's problems for branches where short problems have rows of n."""
    checked = check(parse(VARIANCE.replace("LIMIT", "700")), "k", {})
    observed = observe(checked)
    observed.mark([c.all_sides for c in observed.conditions])
    draws = make_branch_draws(checked, SPEC, observed, [Draw("short", {"M": 4, "N": n}, "offset")], "quick")
    assert all(d.kind not in ("normal", "strided") for d in draws)
    return draws


@pytest.mark.parametrize(("n", "lengths"), [(40, {701}), (1000, {1})])
def test_a_side_that_no_problem_with_other_inputs_takes_gets_them(n: int, lengths: set[int]) -> None:
    assert {d.sizes["N"] for d in draw(n)} == lengths


@pytest.mark.parametrize(("condition", "codes"), [("N <= 700", {"V301"}), ("N <= 700 or N > 700", set())])
def test_a_variance_in_one_pass_is_refused_on_the_path_of_long_rows_alone(condition: str, codes: set[str]) -> None:
    """The twin has two passes for rows of any length."""
    program = parse(VARIANCE.replace("N <= LIMIT", condition))
    results = set()
    for d in draw(40):
        try:
            check_case(program, check(program, "k", {}), SPEC, d)
        except CuirError as error:
            results |= {x.code for x in error.diagnostics}
    assert results == codes
