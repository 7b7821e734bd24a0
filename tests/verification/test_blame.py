"""Verdicts on values point at the statement behind them: the store of the wrong element, where a NaN began, and what a mask comes from."""

from __future__ import annotations

import re

import pytest
import torch

import corpus
from cuir.spec.loading import as_specification
from cuir.syntax.parser import parse
from cuir.syntax.types import F16
from cuir.text.diagnostics import Diagnostic
from cuir.verification import verify
from tests.verification.small_kernels import read_diagnostic
from tests.verification.test_mask_readout import AT

FLASH = corpus.kernels()["flash_fwd_sm90"].read_text(encoding="utf-8")
CONSTS = {"T": F16, "D": 64, "BM": 64, "BN": 64}
CENTRED = """\
@kernel(arch="sm_90a")
def centred(X: Global[f32, M, 64], Y: Global[f32, M, 64], S: Global[f32, M]):
    work = tiles(cdiv(M, 64))
    with role("all", warpgroups=1):
        for t in work:
            r = t * 64 + rows(64)
            x = X[r, cols(64)]
            s = row_sum(x)
            y = x - s / 64.0
            store(Y[r, cols(64)], y)
            store(S[r], s)
"""


def reference(X: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"Y": X - X.mean(-1, keepdim=True), "S": X.sum(-1)}


def line(text: str, part: str) -> int:
    return next(i for i, row in enumerate(text.splitlines(), 1) if part in row)


def first(text: str) -> Diagnostic:
    report = verify(parse(text, "centred.cuir"), reference)
    (result, *_) = [d for s in report.stages for d in s.diagnostics]
    return result


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    ("old", "new", "code", "at", "words"),
    [
        ("s / 64.0", "s / 63.0", "V301", "store(Y", "Y[0, 0] was stored here by all[0] of CTA"),
        ("store(S[r], s)", "store(S[r], s + 1.0)", "V301", "store(S", "S[0] was stored here"),
        ("store(Y[r, cols(64)], y)", "store(Y[r, cols(64) * 2], y)", "V302", "store(Y", "no store reached"),
        (
            "y = x - s / 64.0",
            "e = exp2(x * 1000.0)\n            y = e / row_sum(e)",
            "V302",
            "store(Y",
            "an overflow: `e` is not finite here, and all operands are: beyond 3.4",
        ),
        (
            "y = x - s / 64.0",
            "h = cast(x * 1e5, f16)\n            y = cast(h - h, f32)",
            "V302",
            "store(Y",
            "an overflow: `h` is not finite here, and all operands are: beyond 65504, the largest f16",
        ),
        (
            "y = x - s / 64.0",
            "y = exp2(x * 1e6) - exp2(x * 1e6)",
            "V302",
            "store(Y",
            "an overflow: `y` is not finite here, and all operands are",
        ),
        ("y = x - s / 64.0", "y = x - (s - s) / (s - s)", "V302", "store(Y", "the first NaN of all[0]'s unit of work: `y` has one here"),
    ],
)
def test_the_store_of_a_wrong_element_is_the_place(old: str, new: str, code: str, at: str, words: str) -> None:
    assert old in CENTRED
    text = CENTRED.replace(old, new)
    result = first(text)
    assert result.code == code and result.span is not None and result.span.line == line(text, at), result
    assert any(words in n.message for n in result.notes), result.notes


@pytest.mark.thorough
def test_a_nan_by_overflow_is_called_one_and_others_are_not() -> None:
    overflow = first(CENTRED.replace("y = x - s / 64.0", "e = exp2(x * 1000.0)\n            y = e / row_sum(e)"))
    assert "is NaN, after an overflow, at" in overflow.message and "as before the launch" not in overflow.message
    assert overflow.hint is not None and "subtract the largest number" in overflow.hint
    for second in (
        "y = x - (s - s) / (s - s)",
        "g = 1.0 / (s - s)\n            y = x - (g - g)",
        "g = where(x > 0.0, x, -inf)\n            y = g - g",
        "g = log2(x - x)\n            y = g - g",
        "y = sqrt(-1.0 - x * x)",
        "g = power(x - x, full(f32, [64, 1], -1.0))\n            y = g - g",
    ):
        result = first(CENTRED.replace("y = x - s / 64.0", second))
        assert result.code == "V302" and "overflow" not in " ".join([result.message, *(n.message for n in result.notes)]), second


def test_an_infinite_output_is_an_overflow() -> None:
    result = first(CENTRED.replace("y = x - s / 64.0", "y = (x - s / 64.0) * 1e38 * 1e4"))
    assert result.code == "V301" and re.search(
        r"Y\[.*\] is -?inf, an overflow on the way to float32, the specification gives", result.message
    )


@pytest.mark.usefixtures("no_schedules")
@pytest.mark.sweep
@pytest.mark.parametrize("lse", ["0.0", "-inf if N > 0 else 0.0"])
def test_a_query_without_keys_names_the_store(lse: str) -> None:
    """Also where no query has one, so that nothing finite is expected."""
    text = FLASH.replace("where(total == 0.0, -inf, (top + log2(total)) * LN2)", f"where(total == 0.0, {lse}, (top + log2(total)) * LN2)")
    report = verify(parse(text, "f.cuir"), as_specification(corpus.variant("causal"), "causal"), consts=CONSTS)
    (result, *_) = [d for s in report.stages for d in s.diagnostics]
    assert result.code == "V303" and result.span is not None and result.span.line == line(text, "store(LSE[b, h")
    assert any(re.match(r"LSE\[.*\] was stored here by", n.message) for n in result.notes), result.notes


@pytest.mark.parametrize(
    ("old", "new", "at", "words"),
    [
        ("return k <= q + (N - M)", "return k < q + (N - M)", "return k < q", "`keep` is false for this pair"),
        (
            "where(keep(b, h, q, k) & (k < N), S, -inf)",
            "where((keep(b, h, q, k) | (k == 99)) & (k < N), S, -inf)",
            "(k == 99)",
            "the mask is not applied",
        ),
        ("n = max(0, min(cdiv(N, BN), ", "n = max(0, min(cdiv(N, BN) - 1, ", "return n - min(n, full), n", "its block is not visited"),
    ],
)
def test_a_wrong_mask_names_what_it_comes_from(old: str, new: str, at: str, words: str) -> None:
    assert old in FLASH
    program = parse(FLASH.replace(old, new), "f.cuir")
    result = read_diagnostic(program, as_specification(corpus.variant("causal"), "causal"), CONSTS, AT)
    assert result.code == "V305" and result.span is not None and result.span.line == line(FLASH.replace(old, new), at), result
    assert any(words in n.message for n in result.notes), result.notes


def test_a_mask_without_splice_points_names_the_store() -> None:
    text = FLASH.replace("keep(b, h, q, k)", "keep(b, h, q)").replace("return k <= q + (N - M)", "return q >= 0")
    text = text.replace(
        "where(keep(b, h, q) & (k < N), S, -inf)", "where((k <= q + (N - M)) & (k != q) & keep(b, h, q) & (k < N), S, -inf)"
    )
    result = read_diagnostic(parse(text, "f.cuir"), as_specification(corpus.variant("causal"), "causal"), CONSTS, AT)
    assert result.code == "V305" and result.span is not None and result.span.line == line(text, "store_async(mine, O[")
