"""A torch.nn.Module as a mod: its `forward` is the mod, its parameters learn, its arguments are checked as a function's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import cuir
from cuir.text.diagnostics import CuirError


class Bias(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.linspace(-1, 1, 8))

    def forward(self, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any, *, N: Any) -> Any:
        return score + self.table[(q_idx - kv_idx + N).clamp(0, 7)] / N


class Fewer(torch.nn.Module):
    def forward(self, score: Any, h: Any) -> Any:
        return score


def attend(mod: Any) -> torch.Tensor:
    q, k, v = torch.randn(3, 1, 1, 12, 16, generator=torch.Generator().manual_seed(0))
    result: torch.Tensor = cuir.flex_attention(q, k, v, score_mod=mod, backend="interpret", verify="off")
    return result


def test_a_module_is_its_forward() -> None:
    """With lengths that it asks for, the gradient of its parameter, and a write to that."""
    bias = Bias()
    outputs = []
    for mod in (bias, bias.forward):
        o = attend(mod)
        (g,) = torch.autograd.grad(o.square().sum(), bias.table)
        outputs.append((o, g))
    assert torch.equal(outputs[0][0], outputs[1][0]) and torch.equal(outputs[0][1], outputs[1][1]) and outputs[0][1].count_nonzero() > 1
    with torch.no_grad():
        bias.table.copy_(bias.table.flip(0))
    assert not torch.equal(attend(bias), outputs[0][0]) and torch.equal(attend(bias), attend(bias.forward))


def test_an_attention_is_made_of_a_module() -> None:
    assert "table" in cuir.show(cuir.attention(Bias(), dtype=torch.float32, head_dim=16).program)


def test_other_arguments_are_shown_at_its_forward() -> None:
    with pytest.raises(CuirError) as caught:
        attend(Fewer())
    result = caught.value.diagnostics[0]
    assert result.code == "X101" and "found 2 positional parameters" in result.message
    assert result.span is not None and result.span.text().startswith("def forward(self, score: Any, h: Any)")
