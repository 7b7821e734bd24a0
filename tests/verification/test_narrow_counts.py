"""Counts, positions and sums that pass through 16 bits: right up to the end of the format, and wrong beyond."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cuir import CuirError, FunctionSpecification, check, parse
from cuir.checking.checked import Checked
from cuir.verification.narrow_counts import NAME, find_exact_limit, make_narrow_count_cases, takes_sum_through_f16
from cuir.verification.spec_dispatch import check_case

RANKS = """\
@kernel(arch="sm_90a")
def ranks(E: Global[i32, N], R: Global[i32, N], cap: i32):
    work = tiles(cdiv(N, 64))
    with role("all", warpgroups=1):
        for t in work:
            i = t * 64 + rows(64)
            before = zeros(f32, [64, 1])
            for j in range(t + 1):
                k = j * 64 + cols(64)
                before = before + row_sum(where((E[k] == E[i]) & (k < i), 1.0, 0.0))
            n = {}
            store(R[i], where(n < cap, n, -1))
"""

SUMS = """\
@kernel(arch="sm_90a")
def means(X: Global[f16, M, N], Y: Global[f32, M, N]):
    work = tiles(cdiv(M, 16))
    with role("all", warps=1):
        for t in work:
            i = t * 16 + rows(16)
            total = zeros(f32, [16, 1])
            for j in range(cdiv(N, 512)):
                c = j * 512 + cols(512)
                total = total + row_sum(where(c < N, exp2(cast(X[i, c], f32)), 0.0))
            for j in range(cdiv(N, 512)):
                c = j * 512 + cols(512)
                store(Y[i, c], exp2(cast(X[i, c], f32)) / {})
"""


def rank(e: torch.Tensor, cap: int) -> torch.Tensor:
    before = torch.zeros_like(e)
    for x in (0, 1):
        before = torch.where(e == x, (e == x).cumsum(0) - 1, before)
    return torch.where(before < int(cap), before, -1).int()


def draw_skewed(sizes: dict[str, int], generator: torch.Generator) -> dict[str, Any]:
    """Draw tokens of two experts: in a third of the problems nearly all are of one."""
    p = 0.98 if torch.rand((), generator=generator) < 0.3 else 0.5
    e = (torch.rand(sizes["N"], generator=generator) < p).int()
    return {"E": e, "cap": torch.randint(sizes["N"] + 1, (), generator=generator).int()}


def share(x: torch.Tensor) -> torch.Tensor:
    y = torch.exp2(x.float() if x.dtype == torch.float16 else x)
    return y / y.sum(-1, keepdim=True)


def judge(checked: Checked, text: str, spec: FunctionSpecification) -> set[str]:
    codes = set[str]()
    for case in make_narrow_count_cases(checked, spec):
        assert case.name.startswith(NAME)
        try:
            check_case(parse(text), checked, spec, case)
        except CuirError as error:
            codes.add(error.diagnostics[0].code)
    return codes


def check_text(text: str) -> Checked:
    return check(parse(text))


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    ("count", "limit", "codes"),
    [
        ("cast(cast(cast(before, f16), f32), i32)", 2048, {"V301"}),
        ("cast(cast(cast(before, bf16), f32), i32)", 256, {"V301"}),
        ("cast(before, i32)", None, set()),
        ("cast(cast(cast(floor(before / 64.0), f16), f32), i32) * 64 + cast(fmod(before, 64.0), i32)", 2048, set()),
    ],
)
def test_counts_grow_beyond_the_format(count: str, limit: int | None, codes: set[str]) -> None:
    text = RANKS.replace("{}", count)
    spec = FunctionSpecification("ranks", rank, draw_skewed, sizes=lambda drawn: {"N": min(drawn["N"], 3000)})
    assert find_exact_limit(checked := check_text(text)) == limit
    assert judge(checked, text, spec) == codes and bool(make_narrow_count_cases(checked, spec)) == (limit is not None)


@pytest.mark.parametrize(("divisor", "narrow", "codes"), [("cast(cast(total, f16), f32)", True, {"V301"}), ("total", False, set())])
def test_a_sum_of_many_leaves_f16(divisor: str, narrow: bool, codes: set[str]) -> None:
    text = SUMS.replace("{}", divisor)
    spec = FunctionSpecification("means", share)
    assert takes_sum_through_f16(checked := check_text(text)) == narrow
    assert judge(checked, text, spec) == codes


@pytest.mark.parametrize(
    "value",
    [
        "cast(x, f32) * 2.0",  # an input of 16 bits
        "cast(cast(row_max(cast(x, f32)), f16), f32) + cast(x, f32)",  # a maximum is no sum
        "cast(cast(cast(x, f32) * 3.0, f16), f32)",
    ],
)
def test_other_roundings_to_16_bits_need_no_long_problem(value: str) -> None:
    checked = check_text(
        f"""@kernel(arch="sm_90a")
def k(X: Global[f16, M, N], Y: Global[f32, M, N]):
    work = tiles(cdiv(M, 16) * cdiv(N, 16))
    with role("all", warps=1):
        for t in work:
            r, c = t // cdiv(N, 16) * 16 + rows(16), t % cdiv(N, 16) * 16 + cols(16)
            x = X[r, c]
            store(Y[r, c], {value})
"""
    )
    assert make_narrow_count_cases(checked, FunctionSpecification("k", lambda x: x * 2)) == []
