"""Problems with special values: rows of all sizes, infinities, and padding that is not masked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from cuir import CuirError, FunctionSpecification, check, parse
from cuir.syntax.types import F32
from cuir.verification.inputs import get_special_plan
from cuir.verification.spec_dispatch import check_case
from cuir.verification.special_problems import make_special_draws
from tests.verification.small_kernels import rows

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


def share(x: torch.Tensor) -> torch.Tensor:
    y = x.abs() / x.abs().amax(-1, keepdim=True)
    return y / y.sum(-1, keepdim=True)


# outputs and statements with `{}`, what is wrong, what is right, and the function
PAIRS: dict[str, tuple[str, str, str, str, Callable[..., Any]]] = {
    "a floor under a norm": (
        "Y: Global[f32, M, D]",
        "store(Y[q, cols(D)], x / {})",
        "max(sqrt(row_sum(x * x)), 1e-6)",
        "sqrt(row_sum(x * x))",
        lambda x: x / (x * x).sum(-1, keepdim=True).sqrt(),
    ),
    "a floor under a logarithm": (
        "Y: Global[f32, M]",
        "store(Y[q], row_sum(where(x == 0.0, 0.0, abs(x) * log2({}))))",
        "max(abs(x), 1e-6)",
        "abs(x)",
        lambda x: torch.where(x == 0, torch.zeros_like(x), x.abs() * x.abs().log2()).sum(-1),
    ),
    "a logarithm of a quotient": (
        "R: Global[f32, M, D], Y: Global[f32, M]",
        "store(Y[q], row_sum({}))",
        "log2(abs(x) / abs(R[q, cols(D)]))",
        "log2(abs(x)) - log2(abs(R[q, cols(D)]))",
        lambda x, r: (x.abs().log2() - r.abs().log2()).sum(-1),
    ),
    "a sum of rows at the end of f32": (
        "Y: Global[f32, M, D]",
        "y = abs(x) / {}\nstore(Y[q, cols(D)], y / row_sum(y))",
        "1.0",
        "row_max(abs(x))",
        share,
    ),
    "a running sum by weights of 0": (
        "Y: Global[f32, M, D]",
        "for k in range(D):\nstore(Y[q, k], row_sum({}))",
        "cast(cols(D) <= k, f32) * x",
        "where(cols(D) <= k, x, 0.0)",
        lambda x: x.cumsum(-1),
    ),
    "a logarithm of 1 and a small number": (
        "Y: Global[f32, M, D]",
        "store(Y[q, cols(D)], {})",
        "log2(1.0 + abs(x)) * 0.6931471805599453",
        "log1p(abs(x))",
        lambda x: x.abs().log1p(),
    ),
}


def judge_special(text: str, spec: FunctionSpecification) -> set[str]:
    """Return the codes of the faults that problems with special values show."""
    program = parse(text)
    checked = check(program, None, {"T": F32, "D": 16} if "T: const" in text else {})
    codes = set[str]()
    for draw in make_special_draws(checked, spec, get_special_plan(checked, spec), "quick"):
        try:
            check_case(program, checked, spec, draw)
        except CuirError as error:
            codes.add(error.diagnostics[0].code)
    return codes


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", PAIRS)
def test_what_is_wrong_for_special_rows_is_refused(name: str) -> None:
    more, body, wrong, right, reference = PAIRS[name]
    text = rows(more, body).replace("range(D):\n            store", "range(D):\n                store")
    spec = FunctionSpecification("f", reference)
    assert judge_special(text.replace("{}", wrong), spec) and not judge_special(text.replace("{}", right), spec)


MERGE = """\
@kernel(arch="sm_90a")
def merge(A: Global[f32, M], B: Global[f32, M], Y: Global[f32, M]):
    work = tiles(cdiv(M, 16))
    with role("all", warps=1):
        for t in work:
            i = t * 16 + rows(16)
            a, b = A[i], B[i]
            top = {}
            store(Y[i], top + log2(exp2(a - top) + exp2(b - top)))
"""


def draw_parts(sizes: dict[str, int], generator: torch.Generator) -> dict[str, torch.Tensor]:
    return {n: torch.randn(sizes["M"], generator=generator) * 3 for n in ("A", "B")}


def test_what_is_merged_may_be_far_apart() -> None:
    """The function's inputs are within 10 of each other, and its results are numbers for any."""

    def reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        top = torch.maximum(a, b)
        return top + (torch.exp2(a - top) + torch.exp2(b - top)).log2()

    spec = FunctionSpecification("merge", reference, draw_parts)
    assert judge_special(MERGE.format("a"), spec) and not judge_special(MERGE.format("max(a, b)"), spec)
    narrow = FunctionSpecification("merge", lambda a, b: a + (1 + torch.exp2(b - a)).log2(), draw_parts)
    assert not judge_special(MERGE.format("a"), narrow), "the function overflows as the kernel does"


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
