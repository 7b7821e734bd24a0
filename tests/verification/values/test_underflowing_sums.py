"""Products of normal numbers that are subnormal: atomic additions of f32 lose them, sums within a worker do not."""

from __future__ import annotations

import pytest
import torch

from cuir import CuirError, FunctionSpecification, check, parse
from cuir.checking.checked import Checked
from cuir.verification.inputs import find_accumulated
from cuir.verification.spec_dispatch import check_case
from cuir.verification.underflow_problems import make_underflow_draws
from cuir.verification.values.cases import Draw
from cuir.verification.values.underflowing_sums import make_underflowing

ADDED = """\
@kernel(arch="sm_90a")
def k(G: Global[f32, R, 32], OUT: Global[f32, 32]):
    work = tiles(cdiv(R, 16))
    with role("all", warps=1):
        for t in work:
            g = G[t * 16 + rows(16), cols(32)]
            store(OUT[cols(32)], col_sum(PART), add=True)
"""
SUMMED = """\
@kernel(arch="sm_90a")
def k(G: Global[f32, R, 32], OUT: Global[f32, 32]):
    work = tiles(1)
    with role("all", warps=1):
        for t in work:
            acc = zeros(f32, [1, 32])
            for j in range(cdiv(R, 16)):
                g = G[j * 16 + rows(16), cols(32)]
                acc = acc + col_sum(PART)
            store(OUT[cols(32)], acc, add=True)
"""


def squares(g: torch.Tensor) -> torch.Tensor:
    return (g * g).sum(0)


def plain(g: torch.Tensor) -> torch.Tensor:
    return g.sum(0)


def problems(text: str, reference: object) -> tuple[Checked, FunctionSpecification, list[Draw]]:
    checked, spec = check(parse(text)), FunctionSpecification("k", reference)  # type: ignore[arg-type]
    return checked, spec, make_underflow_draws(checked, spec, find_accumulated(checked))


def test_additions_lose_tiny_squares() -> None:
    """Each part is below 2^-126, their sum is not."""
    checked, spec, draws = problems(ADDED.replace("PART", "g * g"), squares)
    assert [d.name for d in draws] == ["underflow along R"]
    with pytest.raises(CuirError, match="V301"):
        check_case(checked.program, checked, spec, draws[0])


def test_a_sum_within_a_worker_keeps_them() -> None:
    """Registers hold subnormal numbers, and one addition brings the whole sum."""
    checked, spec, draws = problems(SUMMED.replace("PART", "g * g"), squares)
    assert draws and check_case(checked.program, checked, spec, draws[0])


def test_linear_sums_have_no_such_problem() -> None:
    """Normal numbers that are added lose nothing."""
    assert problems(ADDED.replace("PART", "g"), plain)[2] == []


def test_values_are_normal_and_their_squares_are_not() -> None:
    """The sum of 4,096 of them is a normal number."""
    x = torch.ones(4096, 2)
    values = make_underflowing({"g": x}, lambda v: {"out": squares(torch.as_tensor(v["g"]).double())})
    assert values is not None
    g = torch.as_tensor(values["g"])
    assert (g >= 2.0**-126).all() and (g.double() ** 2 < 2.0**-130).all() and (squares(g.double()) > 2.0**-123).all()
    assert make_underflowing({"g": x}, lambda v: {"out": plain(torch.as_tensor(v["g"]))}) is None
