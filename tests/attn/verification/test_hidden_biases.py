"""Captured biases with runs of -inf: kernels whose maximum starts at -inf need to say what a row without a key is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import corpus
from cuir import CuirError, FunctionSpecification, Specification, check, parse, transfer
from cuir.attn.verification.hidden_biases import make_hidden_biases
from cuir.syntax.types import F16
from cuir.verification.inputs import get_special_plan
from cuir.verification.spec_dispatch import check_case, make_hidden_cases
from cuir.verification.special_problems import make_special_draws

EXPERT = corpus.programs()["flash_fwd"].read_text(encoding="utf-8")
GUARD = "where(new == -inf, 0.0, new)"
BIAS, GATE = torch.randn(4, 600, generator=torch.Generator().manual_seed(0)), torch.rand(4)
SCORES: dict[str, Callable[..., Any]] = {
    "a bias of keys": lambda s, b, h, i, j: s + BIAS[h, j],
    "a bias and a gate": lambda s, b, h, i, j: s * GATE[h] + BIAS[h, j],
}


def judge(text: str, spec: Specification) -> list[str]:
    """The codes of what verification finds with hidden keys; raises AssertionError if it tries nothing."""
    program = transfer(parse(text, "flash_fwd.cuir"), spec).program
    checked, codes = check(program, None, {"T": F16, "D": 64, "BM": 64, "BN": 64}), []
    cases = list(make_hidden_cases(spec, checked))
    assert cases
    for _, variant, case in cases:
        try:
            check_case(program, checked, variant, case)
        except CuirError as error:
            codes.append(error.diagnostics[0].code)
    return codes


@pytest.mark.parametrize("name", SCORES)
def test_a_kernel_without_the_guard_is_refused(name: str) -> None:
    spec = Specification("biased", None, SCORES[name])
    assert GUARD in EXPERT
    assert judge(EXPERT, spec) == []
    assert set(judge(EXPERT.replace(GUARD, "new"), spec)) == {"V302"}


@pytest.mark.parametrize(
    "spec",
    [
        Specification("no score", lambda b, h, i, j: i >= j),
        Specification("a factor", None, lambda s, b, h, i, j: s * GATE[h]),
        Specification("integers", None, lambda s, b, h, i, j: s + torch.arange(9)[h]),
    ],
)
def test_scores_that_stay_no_numbers_are_left_out(spec: Specification) -> None:
    assert not list(make_hidden_biases(spec, 64, 64))


def test_a_table_that_follows_the_lengths_is_hidden_too() -> None:
    result, *_ = make_hidden_biases(corpus.specification("relative_position_table")(), 64, 64)
    assert result[0] == "runs of -inf in table"


def biased(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    group, N = q.shape[1] // k.shape[1], k.shape[2]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    missing = (0, max(0, N - bias.shape[1]), 0, max(0, q.shape[1] - bias.shape[0]))
    s = q @ k.mT * scale + F.pad(bias, missing)[: q.shape[1], :N][:, None]
    return s.softmax(-1).nan_to_num(0.0) @ v, s.logsumexp(-1)


def test_a_bias_that_a_function_asks_for_is_hidden_at_both_ends() -> None:
    """The kernel takes blocks of keys from the last to the first."""
    for text, expected in ((EXPERT, set()), (EXPERT.replace(GUARD, "new"), {"V302"})):
        program = transfer(parse(text, "flash_fwd.cuir"), Specification("biased", None, SCORES["a bias of keys"])).program
        checked, spec = check(program, None, {"T": F16, "D": 64, "BM": 64, "BN": 64}), FunctionSpecification("biased", biased)
        plan, codes = get_special_plan(checked, spec), set[str]()
        assert plan.hidden == ("BIAS",)
        for draw in make_special_draws(checked, spec, plan, "quick"):
            try:
                check_case(program, checked, spec, draw)
            except CuirError as error:
                codes.add(error.diagnostics[0].code)
        assert codes == expected
