"""PyTorch's elementwise functions in a score_mod, run in the interpreter beside float64; and that steep ones are verified."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from cuir import Specification, attention
from cuir.testing import assert_attention_matches

F = torch.nn.functional
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "sin and cos": lambda x: torch.sin(x) + x.cos(),
    "tan": lambda x: torch.tan(x * 0.5),
    "inverse": lambda x: torch.asin(x * 0.1) + torch.acos(x * 0.1) + torch.atan(x),
    "hyperbolic": lambda x: torch.sinh(x) * 0.1 + torch.cosh(x) * 0.1 + x.tanh(),
    "inverse hyperbolic": lambda x: torch.asinh(x) + torch.atanh(x * 0.1) + torch.acosh(x.abs() + 1.5),
    "erf": lambda x: torch.erf(x) + torch.special.erfc(x),
    "exponentials": lambda x: torch.expm1(x * 0.5) + torch.exp2(x),
    "logarithms": lambda x: torch.log1p(x.abs()) + torch.log10(x.abs() + 1),
    "roots": lambda x: torch.sqrt(x.abs()) + torch.rsqrt(x * x + 1),
    "powers": lambda x: (x.abs() + 0.5) ** 1.7 - x**3 * 0.01,
    "whole": lambda x: (x * 4).floor() / 4 + x.ceil() * 0.1 + x.trunc() * 0.1,
    "remainders": lambda x: torch.fmod(x, 0.7) + torch.remainder(x, 0.9),
    "quotients": lambda x: x // 0.5 + torch.div(x, 0.3, rounding_mode="trunc"),
    "activations": lambda x: (
        F.gelu(x)
        + F.gelu(x, approximate="tanh")
        + F.silu(x)
        + F.softplus(x)
        + F.leaky_relu(x, 0.2)
        + F.mish(x)
        + F.elu(x)
        + F.logsigmoid(x)
    ),
    "what is no number": lambda x: torch.where(torch.isnan(x) | torch.isinf(x), 0.0, x) + torch.nan_to_num(x),
    "limits": lambda x: x.clamp(-1, 1) + torch.maximum(x, -x) + torch.sign(x) * x.square() * 0.1 + torch.reciprocal(x.abs() + 1),
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_a_score(name: str) -> None:
    def score_mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return FUNCTIONS[name](s + (q - k) * 0.05)

    assert_attention_matches(score_mod, M=40, N=40, gradients=False)


@pytest.mark.thorough("a whole verification of a right program, whose numbers have their tests here")
@pytest.mark.parametrize("function", [torch.floor, torch.tan, torch.expm1, torch.sqrt], ids=lambda f: f.__name__)
def test_steps_poles_overflows_and_roots_of_negatives_are_verified(function: Callable[[Any], Any]) -> None:
    report = attention(Specification("steep", score_mod=lambda s, b, h, q, k: function(s)), head_dim=64, consts={"BM": 64, "BN": 64}).report
    assert report is not None and report.ok
