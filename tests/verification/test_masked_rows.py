"""Rows of -inf, and of f32's lowest number, in what a kernel reduces: faults that show there are refused, right twins pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from cuir import CuirError, FunctionSpecification, check, parse
from cuir.verification.inputs import get_special_plan
from cuir.verification.spec_dispatch import check_case
from cuir.verification.special_problems import make_special_draws
from cuir.verification.values.cases import Draw

LSE = """\
@kernel(arch="sm_90a")
def lse(X: Global[f32, M, N], Y: Global[f32, M]):
    work = tiles(cdiv(M, 16))
    with role("all", warps=1):
        for t in work:
            r = t * 16 + rows(16)
            top, total = full(f32, [16, 1], -inf), zeros(f32, [16, 1])
            for j in range(cdiv(N, 32)):
                c = j * 32 + cols(32)
                x = where(c < N, X[r, c], -inf)
                new = max(top, row_max(x))
                ref = REF
                total = total * exp(top - ref) + row_sum(exp(x - ref))
                top = new
            store(Y[r], top + log2(total) * 0.6931471805599453)
""".replace("exp(", "exp2(1.4426950408889634 * (").replace("- ref)", "- ref))")
SOFTMAX = """\
@kernel(arch="sm_90a")
def softmax(X: Global[f32, M, 32], BIAS: Global[f32, M, 32], Y: Global[f32, M, 32], scale: f32):
    work = tiles(cdiv(M, 16))
    with role("all", warps=1):
        for t in work:
            r, c = t * 16 + rows(16), cols(32)
            x = X[r, c] * scale + BIAS[r, c]
            ref = max(row_max(x), LEAST)
            e = exp2(1.4426950408889634 * (x - ref))
            total = row_sum(e)
            store(Y[r, c], e * where(total == 0.0, 0.0, 1.0 / total))
"""
BARE = """\
@kernel(arch="sm_90a")
def bare(X: Global[f32, M, 32], Y: Global[f32, M, 32]):
    work = tiles(cdiv(M, 16))
    with role("all", warps=1):
        for t in work:
            r, c = t * 16 + rows(16), cols(32)
            x = X[r, c]
            ref = row_max(x)
            e = exp2(EXPONENT)
            store(Y[r, c], e / row_sum(e))
"""
PLACE = """\
@kernel(arch="sm_90a")
def place(X: Global[f32, M, 32], I: Global[i32, M], V: Global[f32, M]):
    work = tiles(cdiv(M, 16))
    with role("all", warps=1):
        for t in work:
            r, c = t * 16 + rows(16), cols(32)
            x = X[r, c]
            best = max(row_max(x), LEAST)
            first = cast(-row_max(where(x == best, -cast(cols(32), f32), -32.0)), i32)
            store(I[r], where(best == -inf, -1, first))
            store(V[r], best)
"""


def lse(x: torch.Tensor) -> torch.Tensor:
    return x.logsumexp(-1) if x.shape[-1] else x.new_full(x.shape[:1], -torch.inf)


def softmax(x: torch.Tensor, bias: torch.Tensor, scale: float) -> torch.Tensor:
    s = x * scale + bias
    top = s.amax(-1, keepdim=True)
    w = (s - top.masked_fill(top == -torch.inf, 0.0)).exp()
    total = w.sum(-1, keepdim=True)
    return torch.where(total == 0.0, 0.0, w / total)


def bare(x: torch.Tensor) -> torch.Tensor:
    return x.softmax(-1)


def place(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the place of the first maximum, -1 in a row of -inf, and the maximum: nothing is said of NaN."""
    value = x.amax(-1)
    first = (x == value[:, None]).int().argmax(-1)
    return torch.where(value == -torch.inf, -1, first).to(torch.int32), value


def find_codes(text: str, reference: Callable[..., Any], kind: str) -> set[str]:
    """Judge the problems of a kind at level quick; return the codes of all faults."""
    program, spec, codes = parse(text), FunctionSpecification("reference", reference), set[str]()
    checked = check(program)
    draws = [d for d in make_special_draws(checked, spec, get_special_plan(checked, spec), "quick") if d.kind == kind]
    assert draws
    for draw in draws:
        try:
            check_case(program, checked, spec, draw)
        except CuirError as error:
            codes |= {d.code for d in error.diagnostics}
    return codes


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    ("text", "reference", "codes"),
    [
        (LSE.replace("REF", "where(new == -inf, 0.0, new)"), lse, set()),
        (LSE.replace("REF", "new"), lse, {"V302"}),
        (SOFTMAX.replace("LEAST", "-3.4028234663852886e38"), softmax, set()),
        (SOFTMAX.replace("LEAST", "-3e38"), softmax, {"V301"}),
        (BARE.replace("EXPONENT", "1.4426950408889634 * (x - ref)"), bare, set()),
        (BARE.replace("EXPONENT", "x * 1.4426950408889634 - ref * 1.4426950408889634"), bare, set()),
        (PLACE.replace("LEAST", "-inf"), place, set()),
        (PLACE.replace("LEAST", "-1e30"), place, {"V301"}),
    ],
    ids=[
        "lse",
        "lse of a block of -inf",
        "softmax",
        "softmax cut at -3e38",
        "bare softmax",
        "bare softmax of scaled logits",
        "argmax",
        "argmax from -1e30",
    ],
)
def test_rows_of_minus_infinity_and_of_the_lowest_number(text: str, reference: Callable[..., Any], codes: set[str]) -> None:
    assert find_codes(text, reference, "hidden") == codes


def test_nan_is_not_drawn_where_integers_follow_from_its_comparisons() -> None:
    """A comparison with -inf is no handling of NaN: the place of a maximum that is NaN is not defined."""
    text = PLACE.replace("LEAST", "-inf")
    assert find_codes(text, place, "infinite") == set()
    checked, spec = check(parse(text)), FunctionSpecification("reference", place)
    assert not any(v != v for values in get_special_plan(checked, spec).infinite.values() for v in values)


def test_nan_is_drawn_where_the_function_handles_it() -> None:
    def reference(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return place(torch.where(x.isnan(), 9.0, x))

    program = parse(PLACE.replace("LEAST", "-inf"))
    checked, spec = check(program), FunctionSpecification("reference", reference)
    assert any(v != v for v in get_special_plan(checked, spec).infinite["X"])
    with pytest.raises(CuirError):
        for seed in range(3):
            check_case(program, checked, spec, Draw("one", {"M": 19}, "infinite", seed))


CROSS_ENTROPY = """\
@kernel(arch="sm_90a")
def cross_entropy(X: Global[f32, M, 32], W: Global[f32, M], Y: Global[f32, M, 32]):
    work = tiles(cdiv(M, 16))
    with role("all", warps=1):
        for t in work:
            r, c = t * 16 + rows(16), cols(32)
            x = X[r, c]
            e = exp2(1.4426950408889634 * (x - row_max(x)))
            w = W[r]
            store(Y[r, c], PRODUCT)
"""


def cross_entropy(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.where(w[:, None] > 0.0, x.softmax(-1) * w[:, None], 0.0)


@pytest.mark.parametrize("product", ["e / row_sum(e) * max(w, 0.0)", "where(w > 0.0, e / row_sum(e) * w, 0.0)"])
def test_rows_without_a_number_are_drawn_only_where_the_function_defines_them(product: str) -> None:
    """A softmax of -inf alone is NaN: a kernel may multiply it by 0 where the function leaves it out."""
    assert find_codes(CROSS_ENTROPY.replace("PRODUCT", product), cross_entropy, "hidden") == set()
