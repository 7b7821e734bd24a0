"""Problems with special values: large tensors with short rows show padding that is not masked."""

from __future__ import annotations

import pytest
import torch

from cuir import CuirError, FunctionSpecification, check, parse
from cuir.verification.inputs import get_special_plan
from cuir.verification.spec_dispatch import check_case
from cuir.verification.special_problems import make_special_draws

WEIGHTS = """\
@kernel(arch="sm_90a")
def k(Q: Global[f32, M, 40], K: Global[f32, N, 40], LSE: Global[f32, M], O: Global[f32, M, 40]):
    sK = shared(f32, [48, 64])
    work = tiles(cdiv(M, 32))
    with role("all", warps=1):
        for t in work:
            q = t * 32 + rows(32)
            lse, acc = LSE[q], zeros(f32, [32, 40])
            for j in range(cdiv(N, 48)):
                store(sK, K[j * 48 + rows(48), cols(64)])
                p = exp2((mma(Q[q, cols(40)], sK[:, 0:40].T, parts=2) - lse) * 1.4426950408889634)
                acc = mma({weights}, sK[:, 0:40], acc, parts=2)
            store(O[q, cols(40)], acc)
"""


def attend(q: torch.Tensor, k: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
    return (q @ k.mT - lse[:, None]).exp() @ k


def statistics(sizes: dict[str, int], generator: torch.Generator, q: torch.Tensor, k: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"LSE": (q @ k.mT).logsumexp(-1)}


SPEC = FunctionSpecification("attend", attend, statistics, sizes=lambda drawn: {"N": max(1, drawn["N"])})


@pytest.mark.parametrize(("weights", "faulty"), [("p", True), ("where(j * 48 + cols(48) < N, p, 0.0)", False)])
def test_padding_exceeds_logits_far_below_0(weights: str, faulty: bool) -> None:
    """The exponential of 0 - LSE overflows where all logits of a row are below -89; inf * 0 is NaN."""
    program = parse(WEIGHTS.format(weights=weights))
    checked = check(program)
    draws = [d for d in make_special_draws(checked, SPEC, get_special_plan(checked, SPEC), "quick") if "short rows" in d.name]
    assert draws and all(d.sizes["N"] == 2 and d.sizes["M"] > 32 for d in draws)
    codes = []
    for draw in draws:
        try:
            check_case(program, checked, SPEC, draw)
        except CuirError as error:
            codes.append(error.diagnostics[0].code)
    assert set(codes) == ({"V302"} if faulty else set())
