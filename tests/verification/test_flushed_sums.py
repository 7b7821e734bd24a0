"""Sums of subnormal numbers by atomic additions: the hardware gives 0, so a kernel that needs them is refused, or within what is allowed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from cuir import FunctionSpecification, parse, verify

KERNEL = """\
@kernel(arch="sm_90a")
def k(X: Global[f32, M, 64], S: Global[f32, 64]):
    work = tiles(cdiv(M, 16))
    with role("all", warps=1):
        for t in work:
            r, c = t * 16 + rows(16), cols(64)
            store(S[c], col_sum(X[r, c] * X[r, c]) * FACTOR, add=True)
"""


def verdict(factor: str, reference: Callable[[torch.Tensor], torch.Tensor]) -> list[str]:
    report = verify(parse(KERNEL.replace("FACTOR", factor)), FunctionSpecification("k", reference), seeded=0, shrink=False)
    return [d.code for d in report.diagnostics]


def test_a_sum_that_its_parts_do_not_reach_is_refused() -> None:
    """Each of the parts is below 2^-126 and counts as 0; together they are not."""
    assert verdict("1e-40", lambda X: (X * X).sum(0) * 1e-40) == ["V301"]


@pytest.mark.parametrize("factor", ("1.0", "1e-36", "1e-44"))
def test_normal_parts_pass_and_so_does_what_is_below_the_least_normal_number(factor: str) -> None:
    """A sum of 131,075 squares of some 1e-44 may be 0: 2^-126 an element is allowed, as of an exponential."""
    assert verdict(factor, lambda X: (X * X).sum(0) * float(factor)) == []
