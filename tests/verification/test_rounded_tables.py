"""Integers of a table, times a number in f32: tables are drawn that hold one which rounding changes."""

from __future__ import annotations

import pytest
import torch

from cuir import CuirError, FunctionSpecification, check, parse
from cuir.verification.rounded_sizes import make_rounded_size_cases
from cuir.verification.rounded_tables import NAME
from cuir.verification.spec_dispatch import check_case

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
    draws = [d for d in make_rounded_size_cases(checked, spec, "quick") if d.name.startswith(NAME)]
    for draw in draws:
        try:
            check_case(program, checked, spec, draw)
        except CuirError as error:
            result |= {d.code for d in error.diagnostics}
    assert (result if draws else None) == codes
