"""assert_attention_matches: rules pass; a kernel that computes something else fails, in output and in gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cuir.testing import MismatchError, assert_attention_matches
from cuir.testing import attention_matching as module


def test_a_rule_passes_forward_and_backward() -> None:
    assert_attention_matches(lambda s, b, h, q, k: 20 * (s / 20).tanh(), lambda b, h, q, k: q >= k, M=70, N=70, HK=1, D=16)


@pytest.mark.parametrize("part", ["output", "gradient of key"])
def test_a_difference_fails(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Scaled(torch.autograd.Function):
        """The identity, with a gradient that is off."""

        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return g * 1.05

    real = module.flex_attention

    def wrong(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
        if part == "output":
            o: torch.Tensor = real(q, k, v, *rest, **named)
            return torch.cat([o[..., :-1, :], o[..., -1:, :] * 1.05], -2)
        result: torch.Tensor = real(q, Scaled.apply(k), v, *rest, **named)
        return result

    monkeypatch.setattr(module, "flex_attention", wrong)
    with pytest.raises(MismatchError, match=part) as failure:
        assert_attention_matches(M=40, N=20, D=16, H=1)
    assert "again: assert_attention_matches(score_mod, mask_mod, M=40, N=20" in str(failure.value)


def test_rows_without_keys_are_zeros_with_no_gradient() -> None:
    assert_attention_matches(mask_mod=lambda b, h, q, k: k > q + 5, M=20, N=20, D=16, H=1)
