"""assert_attention_matches: rules pass; a kernel that computes something else fails, in output and in gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cuir.testing import MismatchError, assert_attention_matches
from cuir.testing import attention_matching as module


def test_a_rule_passes_forward_and_backward() -> None:
    assert_attention_matches(lambda s, b, h, q, k: 20 * (s / 20).tanh(), lambda b, h, q, k: q >= k, M=70, N=70, HK=1, D=16)


def test_mods_see_one_pair_at_a_time() -> None:
    rows = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    assert_attention_matches(
        lambda s, b, h, q, k: s + torch.dot(rows[q], rows[k]), lambda b, h, q, k: (rows[q] > rows[k]).any(), M=20, N=20, D=16, H=1
    )


def test_a_scale_and_two_head_dims_pass() -> None:
    assert_attention_matches(M=20, N=30, HK=1, D=32, DV=16, scale=0.3, kind="large")


@pytest.mark.parametrize("part", ["output", "LSE", "gradient of key"])
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

    def wrong(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any, **named: Any) -> tuple[torch.Tensor, torch.Tensor]:
        o, lse = real(q, Scaled.apply(k) if "gradient" in part else k, v, *rest, **named)
        if part == "output":
            o = torch.cat([o[..., :-1, :], o[..., -1:, :] * 1.05], -2)
        return o, lse + 0.01 * (part == "LSE")

    monkeypatch.setattr(module, "flex_attention", wrong)
    with pytest.raises(MismatchError, match=part) as failure:
        assert_attention_matches(M=40, N=20, D=16, H=1)
    assert "again: assert_attention_matches(score_mod, mask_mod, M=40, N=20" in str(failure.value)


def test_rows_without_keys_are_zeros_with_no_gradient() -> None:
    assert_attention_matches(mask_mod=lambda b, h, q, k: k > q + 5, M=20, N=20, D=16, H=1)


def test_one_evaluation_by_pytorch_that_is_exact_by_chance_is_no_yardstick(monkeypatch: pytest.MonkeyPatch) -> None:
    real = module._Rule.iterate_pytorch

    def lucky(rule: module._Rule, inputs: Any) -> Any:
        first, *rest = real(rule, inputs)
        exact = rule.compute_pytorch([x.double() for x in inputs])
        yield {name: exact[name].to(x.dtype) for name, x in first.items()}
        yield from rest

    monkeypatch.setattr(module._Rule, "iterate_pytorch", lucky)
    assert_attention_matches(lambda s, b, h, q, k: s * 0.7, M=40, N=40, D=16, H=1, dtype=torch.float32)
    monkeypatch.setattr(module, "REORDERED", 0)
    with pytest.raises(MismatchError):
        assert_attention_matches(lambda s, b, h, q, k: s * 0.6, M=40, N=40, D=16, H=1, dtype=torch.float32)
