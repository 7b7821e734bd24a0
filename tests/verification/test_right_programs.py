"""Right programs that verification passes, beside faulty twins that it refuses: exponents of infinities, statistics of nothing and of vast numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from cuir import CuirError, FunctionSpecification, check, parse
from cuir.verification.spec_dispatch import check_case
from cuir.verification.values.cases import Draw


def fault(
    text: str, reference: Callable[..., Any], sizes: dict[str, int], kind: str, seed: int, inputs: Callable[..., Any] | None = None
) -> list[str]:
    """Run one problem; return the codes of what is wrong in it."""
    program = parse(text)
    try:
        check_case(program, check(program), FunctionSpecification("k", reference, inputs), Draw("one", sizes, kind, seed))
    except CuirError as error:
        return [d.code for d in error.diagnostics]
    return []


EXPONENTS = """\
@kernel(arch="sm_90a")
def exponents(X: Global[f16, M, 32], E: Global[i32, M]):
    work = tiles(cdiv(M, 64))
    with role("all", warpgroups=1):
        for t in work:
            r = t * 64 + rows(64)
            top = row_max(abs(cast(X[r, cols(32)], f32)))
            e = floor(log2(top){margin})
            store(E[r], cast(where(top == 0.0, 0.0, e), i32))
"""


def exponents(x: torch.Tensor) -> torch.Tensor:
    """Give the floor of the logarithm of the largest magnitude of each row, 0 for a row of zeros."""
    top = x.abs().amax(-1)
    _, e = torch.frexp(top)
    return torch.where(top == 0, torch.zeros_like(e), e - 1).to(torch.int32)


@pytest.mark.parametrize(("margin", "faulty"), [(" + 0.0001", False), (" + 1.0", True)])
@pytest.mark.parametrize("seed", (0, 1))
def test_exponents_of_infinities_are_not_asked(margin: str, faulty: bool, seed: int) -> None:
    """C leaves the exponent of an infinity open in `frexp`; those of numbers beside it are asked."""
    codes = fault(EXPONENTS.format(margin=margin), exponents, {"M": 5}, "infinite", seed)
    assert codes == (["V301"] if faulty else [])


NORM = """\
@kernel(arch="sm_90a")
def k(X: Global[f32, M, 64], RSTD: Global[f32, 64], G: Global[f32, M, 64], DY: Global[f32, M, 64], DG: Global[f32, 64]):
    work = tiles(1)
    with role("all", warps=1):
        for t in work:
            dot = zeros(f32, [1, 64])
            for i in range(cdiv(M, 16)):
                r, c = i * 16 + rows(16), cols(64)
                dot = dot + col_sum(DY[r, c] * X[r, c])
            {store}
            for i in range(cdiv(M, 16)):
                r, c = i * 16 + rows(16), cols(64)
                store(G[r, c], X[r, c])
"""
PLAIN = "store(DG[cols(64)], dot * RSTD[cols(64)])"


def norm(x: torch.Tensor, rstd: torch.Tensor, dy: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"DG": (dy * (x * rstd)).sum(0), "G": x}


def statistics(sizes: dict[str, int], generator: torch.Generator, x: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"RSTD": x.double().square().mean(0).rsqrt()}


@pytest.mark.parametrize(("store", "faulty"), [(PLAIN, False), (f"if M > 0:\n                {PLAIN}", True)])
def test_statistics_of_nothing_are_numbers(store: str, faulty: bool) -> None:
    """The mean over no rows is NaN, and 0 times it too; an output that is not written is told all the same."""
    codes = fault(NORM.format(store=store), norm, {"M": 0}, "normal", 0, statistics)
    assert codes == (["V302"] if faulty else [])


@pytest.mark.parametrize(("store", "faulty"), [(PLAIN, False), ("store(DG[cols(64)], dot * (RSTD[cols(64)] + 1e-6))", True)])
def test_statistics_are_of_numbers_with_squares(store: str, faulty: bool) -> None:
    """A forward pass in f32 gives no statistics of numbers whose squares it lacks; of all others they are kept apart from 0."""
    codes = fault(NORM.format(store=store), norm, {"M": 20}, "largest", 0, statistics)
    assert codes == (["V301"] if faulty else [])


def test_without_statistics_squares_may_be_infinite() -> None:
    """A root of a sum of squares is refused where `inputs` gives none."""
    text = NORM.format(store="store(DG[cols(64)], sqrt(dot * dot))").replace("RSTD: Global[f32, 64], ", "")
    assert fault(text, lambda x, dy: {"DG": (dy * x).sum(0).abs(), "G": x}, {"M": 20}, "largest", 0)
