"""A side that asks for a long table gets places for its entries: segments beyond the last that a fault reads have rows."""

from __future__ import annotations

import pytest
import torch

import cuir
from cuir.spec.function_specification import FunctionSpecification
from cuir.verification.coverage.conditions import collect_conditions
from cuir.verification.coverage.size_search import Search, Space, choose, solve
from cuir.verification.coverage.targets import Target, list_unseen_remainders, list_unseen_sides

from .planted import check_body, doubled

SPEC = FunctionSpecification("doubled", doubled)


def search_for(
    body: str, text: str, spec: FunctionSpecification = SPEC, more: str = "", operations: int = 1_500_000
) -> tuple[list[Target], Search]:
    checked = check_body(body, more)
    expected = [t for t in list_unseen_sides(collect_conditions(checked), [0] * 99) if t.condition.text == text]
    search = Search(operations)
    solve(checked, Space(checked, spec), expected, search, lambda problem: {}.__getitem__)
    return expected, search


@pytest.mark.parametrize(
    "body, text",
    [
        ("f = 3.0 if t == 511 else 2.0", "t == 511"),
        ("f = 3.0 if (t & 255) == 255 else 2.0", "(t & 255) == 255"),
        ("f = 3.0 if far(t) else 2.0", "t // 512 > 0"),
        ("f = 3.0 if n == 300 else 2.0", "n == 300"),
        ("f = 3.0 if (h ^ 16) == 0 else 2.0", "(h ^ 16) == 0"),
        ("f = 3.0 if bit(h, 4) else 2.0", "bit(h, 4)"),
        ("f = 3.0 if b == 17 else 2.0", "b == 17"),
        ("f = 3.0 if cdiv(M, 16) == 8 else 2.0", "cdiv(M, 16) == 8"),
        ("f = 3.0 if M == 2048 else 2.0", "M == 2048"),
        ("f = 3.0 if M % 256 == 0 else 2.0", "M % 256 == 0"),
        ("m = min(m, 600)", "min(m, 600)"),
        ("f = 3.0 if B * H == 24 else 2.0", "B * H == 24"),
        ("f = 3.0 if (b == 5) and (h == 7) else 2.0", "h == 7"),
        ("f = 3.0 if (b + 1) * (h + 1) == 130 else 2.0", "(b + 1) * (h + 1) == 130"),
        ("f = 3.0 if t == skip else 2.0", "t == skip"),
    ],
)
def test_sizes_are_found_for_both_sides(body: str, text: str) -> None:
    expected, search = search_for(body, text, more=", skip: i32" if "skip" in body else "")
    chosen = choose(search.solutions, expected, 6, 3_000_000)
    assert {t.number for s in chosen for t in s.targets} == {t.number for t in expected}


def test_what_the_specification_refuses_is_not_tried() -> None:
    short = FunctionSpecification("doubled", doubled, sizes=lambda drawn: drawn if drawn["B"] <= 8 else None)
    _target, search = search_for("f = 3.0 if b == 17 else 2.0", "b == 17", short)
    assert {t.number for s in search.solutions for t in s.targets} == {1}  # false alone


def test_a_search_ends() -> None:
    _target, search = search_for("f = 3.0 if t * t + 1 == 3 else 2.0", "t * t + 1 == 3", operations=50_000)
    assert search.exhausted or not [s for s in search.solutions if any(t.number == 0 for t in s.targets)]


def test_each_remainder_of_the_number_of_units_is_wanted() -> None:
    checked = check_body("f = 3.0 if n % 4 == 3 else 2.0")
    remaining = list_unseen_remainders(checked, {})
    assert {(t.divisor, t.number) for t in remaining} == {(4, r) for r in range(4)}
    assert all(t.is_met_by_counts({4 + t.number}) and not t.is_met_by_counts({t.number}) for t in remaining)


SEGMENTS = """\
@kernel(arch="sm_90a")
def segments(X: Global[f32, L, 8], OFF: Global[i32, S1], Y: Global[f32, S, 8]):
    work = tiles(S)
    with role("all", warps=1):
        for t in work:
            lo, hi = OFF[t], OFF[END]
            total = zeros(f32, [1, 8])
            for j in range(cdiv(hi - lo, 16)):
                l = lo + j * 16 + rows(16)
                total = total + col_sum(X[where(l < hi, l, -1), cols(8)])
            store(Y[t, cols(8)], total)
"""


def segments(x: torch.Tensor, off: torch.Tensor) -> torch.Tensor:
    return torch.stack([x[lo:hi].sum(0) for lo, hi in zip(off.tolist()[:-1], off.tolist()[1:], strict=True)])


def offsets(sizes: dict[str, int], generator: torch.Generator) -> dict[str, torch.Tensor]:
    return {"OFF": torch.randint(sizes["L"] + 1, (sizes["S1"],), generator=generator).sort().values.int()}


@pytest.mark.sweep(4)
@pytest.mark.parametrize(("end", "codes"), [("min(t + 1, 256)", ["V301"]), ("min(t + 1, S)", [])])
def test_segments_beyond_a_fixed_table(end: str, codes: list[str]) -> None:
    spec = cuir.FunctionSpecification("segments", segments, offsets, lambda drawn: {"S": max(1, drawn["S"]), "S1": max(1, drawn["S"]) + 1})
    report = cuir.verify(cuir.parse(SEGMENTS.replace("END", end)), spec, seeded=0, shrink=False)
    assert [d.code for d in report.diagnostics] == codes
