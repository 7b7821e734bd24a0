"""The derivative of a traced score is autograd's: of every operation that a mod may use, alone and chained, and for every variant of the corpus."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import corpus
from cuir.attn.splicing.derivative import dscore, of_read
from cuir.attn.tracing.mod_evaluator import CONSTANTS, evaluate
from cuir.attn.tracing.read_ranges import trace_without_clashes
from cuir.attn.tracing.trace import trace
from cuir.ops import OPERATORS, TABLE
from cuir.ops.derivatives import _RULES
from cuir.spec.specification import Specification
from cuir.syntax.nodes import Literal, Name
from cuir.syntax.printer import show
from cuir.text.diagnostics import CuirError
from tests.strategies.effort import examples

SCALE = 0.125
S = torch.linspace(-24, 24, 97) + 0.01  # no corner
SCORES: dict[str, Callable[..., Any]] = {
    "identity": lambda s: s,
    "linear": lambda s: 2.0 * s - 1.0,
    "quotient": lambda s: s / 3.0,
    "inverse": lambda s: 1.0 / (s + 7.5),
    "product": lambda s: s * (s - 1.0),
    "soft cap": lambda s: 2.0 * torch.tanh(s / 2.0),
    "sine": lambda s: torch.sin(s) + torch.cos(2 * s),
    "atan": lambda s: torch.atan(s),
    "exp": lambda s: torch.exp(s * 0.5),
    "log1p": lambda s: torch.log1p(s * s),
    "log": lambda s: torch.log(s * s + 0.5),
    "sqrt": lambda s: torch.sqrt(s * s + 1.0),
    "abs": lambda s: torch.abs(s) - s,
    "relu": lambda s: torch.relu(s) * 0.5 + s,
    "clamp": lambda s: s.clamp(-1.5, 2.0),
    "minimum": lambda s: torch.minimum(s, 1.0 - s),
    "maximum": lambda s: torch.maximum(s * 2.0, s * s),
    "where": lambda s: torch.where(s > 0.5, s, 0.1 * s),
    "gelu": lambda s: torch.nn.functional.gelu(s),
    "erf": lambda s: torch.erf(s) - torch.erfc(0.5 * s),
    "sigmoid": lambda s: torch.sigmoid(s),
    "softplus": lambda s: torch.nn.functional.softplus(s),
    "power": lambda s: torch.pow(torch.abs(s) + 0.5, 1.7),
    "of a power": lambda s: torch.pow(torch.full_like(s, 1.3), s),
    "fmod": lambda s: torch.fmod(s, 1.7),
    "jumps": lambda s: s + torch.floor(s) - torch.round(s),
    "cube": lambda s: s**3,
}


def derivative_of(mod: Callable[..., Any]) -> torch.Tensor:
    """dscore, evaluated."""
    traced = trace(Specification("score", None, lambda s, b, h, q, k: mod(s)))
    value = evaluate(dscore(traced.score, traced.factor), {"S": S, "scale": SCALE, "inf": torch.inf, **CONSTANTS})
    return torch.as_tensor(value).expand(S.shape)


def autograd_of(mod: Callable[..., Any]) -> torch.Tensor:
    s = (S.double() * SCALE).requires_grad_()
    return torch.autograd.grad(mod(s).sum(), s)[0]


@pytest.mark.parametrize("name", SCORES)
def test_is_autograds(name: str) -> None:
    torch.testing.assert_close(derivative_of(SCORES[name]).double(), autograd_of(SCORES[name]), rtol=2e-4, atol=2e-5)


@examples(2)
@given(
    st.sampled_from(sorted(set(SCORES) - {"jumps", "fmod", "inverse", "exp", "cube"})),
    st.sampled_from(["soft cap", "linear", "sigmoid", "sine", "sqrt", "relu"]),
)
def test_of_one_after_another(inner: str, outer: str) -> None:
    def mod(s: Any) -> Any:
        return SCORES[outer](SCORES[inner](s))

    torch.testing.assert_close(derivative_of(mod).double(), autograd_of(mod), rtol=2e-3, atol=2e-4)


LEARNED = torch.tensor([0.7])
OF_READS: dict[str, Callable[..., Any]] = {
    "soft cap": lambda s, t: t * torch.tanh(s / t),
    "twice": lambda s, t: s * t + torch.sin(t),
    "sigmoid": lambda s, t: s * torch.sigmoid(t),
    "where": lambda s, t: torch.where(s > t, s * t, t * t),
    "power": lambda s, t: torch.pow(torch.abs(s) + 0.5, t),
    "clamp": lambda s, t: torch.minimum(s, t) + t,
    "jumps": lambda s, t: s + torch.floor(t) * t,
}


@pytest.mark.parametrize("name", OF_READS)
def test_of_a_captured_element(name: str) -> None:
    traced = trace(Specification("score", None, lambda s, b, h, q, k: OF_READS[name](s, LEARNED[0])))
    (read,) = traced.reads
    names = {"S": S, "scale": SCALE, "inf": torch.inf, **CONSTANTS, traced.parameters[0].name: LEARNED}
    result = torch.as_tensor(evaluate(of_read(traced.score, traced.factor, read), names)).expand(S.shape)
    exact = torch.func.jacfwd(lambda t: OF_READS[name](S.double() * SCALE, t))(LEARNED[0].double())
    torch.testing.assert_close(result.double(), exact.expand(S.shape), rtol=2e-4, atol=2e-5)


def test_every_function_of_floats_has_a_rule() -> None:
    """A function without one chooses, converts, compares, returns an operand, or is no function of floats."""
    from cuir.syntax.types import F32

    entries = [op for op in (*TABLE.values(), *OPERATORS.values()) if op.evaluate is not None and op.traits.elementwise]
    for op in entries:
        expected_values = op.traits.chooses or op.traits.converts or op.traits.compares or op.traits.extremum or op.traits.votes
        of_floats = op.evaluate is not None and op.evaluate.tile(F32) is not None
        assert op.name in _RULES or expected_values or not of_floats, op.name


def test_what_does_not_depend_on_the_product_has_none() -> None:
    assert dscore(Name("bias"), Name("LOG2E")) == Literal(0.0)


@pytest.mark.parametrize(
    ("variant", "text"),
    [
        ("causal", "1.0"),
        ("alibi", "1.0"),
        ("relative_position_table", "1.0"),
        ("softcap", "1.0 - tanh(S * (scale / cap)) * tanh(S * (scale / cap))"),
    ],
)
def test_of_the_corpus(variant: str, text: str) -> None:
    traced = trace_without_clashes(corpus.specification(variant)())
    assert show(dscore(traced.score, traced.factor)) == text


def test_an_unknown_one_is_refused() -> None:
    from cuir.syntax.nodes import Call

    with pytest.raises(CuirError, match="X109"):
        dscore(Call(Name("row_max"), (Name("S"),)), Literal(1.0))
