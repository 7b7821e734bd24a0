"""Integers that follow from sizes by f32 arithmetic: sizes at which rounding changes them are tried.

Integers of a table, times a number in f32: tables are drawn that hold one which rounding changes.
"""

from __future__ import annotations

import pytest
import torch

from cuir import CuirError, FunctionSpecification, check, parse, verify
from cuir.verification.rounded_sizes import NAME, TABLE_NAME, make_rounded_size_cases
from cuir.verification.spec_dispatch import check_case

RESIZE = """\
@kernel(arch="sm_90a")
def k(X: Global[f16, N, 8], Y: Global[f16, M, 8]):
    work = tiles(cdiv(M, 16))
    with role("all", warps=1):
        for t in work:
            i = t * 16 + rows(16)
            SOURCE
            store(Y[i, cols(8)], X[src, cols(8)])
"""
PART = """\
@kernel(arch="sm_90a")
def k(X: Global[f16, M, N], Y: Global[f16, M, N]):
    most = MOST
    nn = cdiv(N, 64)
    work = tiles(cdiv(M, 16) * nn)
    with role("all", warps=1):
        for t in work:
            r, c = t // nn * 16 + rows(16), t % nn * 64 + cols(64)
            store(Y[r, c], where(KEPT, X[r, c], 0.0))
"""
CUT = "cast(cast(N, f32) * 0.65, i32)"


def resized(X: torch.Tensor, M: int) -> torch.Tensor:
    return X[torch.arange(M) * X.shape[0] // max(M, 1)]


def part(X: torch.Tensor) -> torch.Tensor:
    N = X.shape[1]
    return torch.where(torch.arange(N) < N * 65 // 100, X, torch.zeros_like(X))


def cases(text: str, spec: FunctionSpecification) -> list[dict[str, int]]:
    result = make_rounded_size_cases(check(parse(text)), spec, "quick")
    assert all(d.name.startswith(NAME) for d in result)
    return [dict(d.sizes) for d in result]


def codes(text: str, spec: FunctionSpecification) -> list[str]:
    return [d.code for d in verify(parse(text), spec, seeded=0, shrink=False).diagnostics]


@pytest.mark.sweep
@pytest.mark.parametrize(
    "source, wrong",
    (
        ("src = cast(floor(cast(i, f32) * (cast(N, f32) / cast(M, f32))), i32)", True),
        ("src = cast(cast(i, f32) / cast(M, f32) * cast(N, f32), i32)", True),
        ("src = i * N // M", False),
        ("src = cast(floor((cast(i * N, f32) + 0.5) / cast(M, f32)), i32)", False),
    ),
)
def test_an_index_by_a_quotient_of_sizes(source: str, wrong: bool) -> None:
    """A quotient that is rounded first gives the element before, where the product is a whole number."""
    spec = FunctionSpecification("k", resized, sizes=lambda drawn: {"N": max(drawn["N"], 1)})
    assert codes(RESIZE.replace("SOURCE", source), spec) == (["V301"] if wrong else [])


@pytest.mark.sweep
@pytest.mark.parametrize(
    "most, retained, wrong",
    (
        (CUT, "c < most", True),
        ("cast(N, f32) * 0.65", "cast(c + 1, f32) <= most", True),
        ("N * 65 // 100", "c < most", False),
        ("cast(cast(N * 65, f32) / 100.0, i32)", "c < most", False),
    ),
)
def test_a_bound_by_a_share_of_a_length(most: str, retained: str, wrong: bool) -> None:
    """A cast, or a comparison of floats, is off by one for a few lengths."""
    spec = FunctionSpecification("k", part)
    assert codes(PART.replace("MOST", most).replace("KEPT", retained), spec) == (["V301"] if wrong else [])


def test_sizes_at_which_rounding_decides_are_found() -> None:
    """180 is the first length of which f32 gives another share; integers have none."""
    spec = FunctionSpecification("k", part)
    assert cases(PART.replace("MOST", CUT).replace("KEPT", "c < most"), spec)[0]["N"] == 180
    assert cases(PART.replace("MOST", "N * 65 // 100").replace("KEPT", "c < most"), spec) == []


@pytest.mark.thorough
def test_a_specification_that_rounds_alike_is_met() -> None:
    """The same sizes are tried where the function computes in float32 itself."""

    def rounded(X: torch.Tensor) -> torch.Tensor:
        N = X.shape[1]
        most = int(torch.tensor(float(N), dtype=torch.float32) * torch.tensor(0.65, dtype=torch.float32))
        return torch.where(torch.arange(N) < most, X, torch.zeros_like(X))

    assert codes(PART.replace("MOST", CUT).replace("KEPT", "c < most"), FunctionSpecification("k", rounded)) == []


UNITS = """\
@kernel(arch="sm_90a")
def k(X: Global[f16, B, M, 8], Y: Global[f16, B, M, 8]):
    n = cdiv(M, 64)
    work = tiles(B * n)
    with role("all", warps=1):
        for t in work:
            b = ENTRY
            i = (t - b * n) * 64 + rows(64)
            store(Y[b, i, cols(8)], X[b, i, cols(8)])
"""


@pytest.mark.sweep
@pytest.mark.parametrize(
    "entry, wrong",
    (
        ("cast(floor(cast(t, f32) * (1.0 / cast(n, f32))), i32)", True),
        ("cast(cast(t, f32) / cast(n, f32) - 0.0001, i32)", True),
        ("cast(floor(cast(t, f32) / cast(n, f32)), i32)", False),
        ("cast((cast(t, f32) + 0.5) * (1.0 / cast(n, f32)), i32)", False),
        ("t // n", False),
    ),
)
def test_a_unit_by_a_reciprocal(entry: str, wrong: bool) -> None:
    """41 times the inverse of 41 is less than 1 in f32; a launch of one batch entry has no unit 41."""
    spec = FunctionSpecification("k", lambda X: X.clone())
    assert bool(codes(UNITS.replace("ENTRY", entry), spec)) == wrong
    if "floor" in entry:
        result = cases(UNITS.replace("ENTRY", entry), spec)
        assert any(c["B"] > 1 for c in result) == wrong


PRUNE = """\
@kernel(arch="sm_90a")
def prune(X: Global[f16, B, N, 8], LEN: Global[i32, B], Y: Global[f16, B, N, 8]):
    work = tiles(B * cdiv(N, 64))
    with role("all", warpgroups=1):
        for t in work:
            b, i = t // cdiv(N, 64), t % cdiv(N, 64) * 64 + rows(64)
            n = LEN[b]
            kept = KEPT
            store(Y[b, i, cols(8)], where(i < kept, X[b, i, cols(8)], 0.0))
"""


def prune(x: torch.Tensor, len: torch.Tensor) -> torch.Tensor:
    retained = len.long() * 13 // 20
    return torch.where((torch.arange(x.shape[1]) < retained[:, None])[..., None], x, 0.0)


def lengths(sizes: dict[str, int], generator: torch.Generator) -> dict[str, torch.Tensor]:
    return {"LEN": torch.randint(sizes["N"] + 1, (sizes["B"],), generator=generator)}


@pytest.mark.parametrize(
    ("retained", "codes"),
    [
        ("cast(cast(n, f32) * 0.65, i32)", {"V301"}),
        ("cast(cast(LEN[b], f32) * 0.65, i32)", {"V301"}),
        ("cast(cast(n * 13, f32) / 20.0, i32)", None),
        ("n * 13 // 20", None),
    ],
)
def test_tables_hold_integers_that_rounding_changes(retained: str, codes: set[str] | None) -> None:
    program, spec, result = parse(PRUNE.replace("KEPT", retained)), FunctionSpecification("prune", prune, lengths), set[str]()
    checked = check(program)
    draws = [d for d in make_rounded_size_cases(checked, spec, "quick") if d.name.startswith(TABLE_NAME)]
    for draw in draws:
        try:
            check_case(program, checked, spec, draw)
        except CuirError as error:
            result |= {d.code for d in error.diagnostics}
    assert (result if draws else None) == codes
