"""Gradients of captured tensors in assert_attention_matches: found by name, right ones pass, planted wrong ones fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from cuir.testing import MismatchError, assert_attention_matches
from cuir.testing import attention_matching as module
from cuir.testing.captured_gradients import list_learned, measure_gradient

TABLE = torch.zeros(4, requires_grad=True)
Mod = Callable[..., torch.Tensor]


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))) * 0.1).to(dtype).requires_grad_()


def make_mod(distances: torch.Tensor) -> Mod:
    return lambda s, b, h, q, k: s + distances[h, (q - k).clamp(0, 7)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_right_gradients_pass_and_stay_out_of_the_tensors(dtype: torch.dtype) -> None:
    distances, scale, layer = draw(1, 8), draw(), torch.nn.Linear(4, 1).bfloat16()
    assert_attention_matches(
        lambda s, b, h, q, k: s * (1 + scale) + distances[h, (q - k).clamp(0, 7)] + layer.bias[0],
        lambda b, h, q, k: q >= k,
        M=20,
        N=20,
        D=16,
        H=1,
        dtype=dtype,
    )
    assert distances.grad is None and scale.grad is None and layer.bias.grad is None


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    "plant",
    [lambda g: g * 1.05, lambda g: torch.cat([g[:, :1] * 0, g[:, 1:]], 1), lambda g: g.roll(1, 1), lambda g: g * torch.nan],
    ids=["scaled", "one element lost", "another element", "NaN"],
)
def test_a_planted_wrong_gradient_is_found(plant: Callable[[torch.Tensor], torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    class Planted(torch.autograd.Function):
        """The identity, with a wrong gradient."""

        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return plant(g)

    distances, real = draw(1, 8), module.flex_attention
    monkeypatch.setattr(
        module, "flex_attention", lambda q, k, v, mod, *rest, **named: real(q, k, v, make_mod(Planted.apply(distances)), *rest, **named)
    )
    with pytest.raises(MismatchError, match="gradient of distances differs from float64"):
        assert_attention_matches(make_mod(distances), M=20, N=20, D=16, H=1)
    assert_attention_matches(make_mod(distances), M=20, N=20, D=16, H=1, gradients=False)


def test_learned_tensors_have_the_names_of_the_mod() -> None:
    class Bias(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Parameter(torch.zeros(3))

        def forward(self, s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
            return s + self.table[h] + TABLE[h] + fixed[h] + by_name["x"][h]

    fixed, by_name = torch.zeros(3), {"x": torch.zeros(3, requires_grad=True)}
    assert sorted(c.name for c in list_learned(Bias().forward, None)) == ["TABLE", "by_name['x']", "self.table"]


def test_few_elements_are_allowed_what_chance_explains_and_tables_are_not() -> None:
    """An error of 2.4 times PyTorch's is chance for one number, and none for a thousand."""
    for count, passes in ((1, True), (1000, False)):
        generator = torch.Generator().manual_seed(0)
        exact = [torch.ones(count, dtype=torch.float64)] * 8
        pytorch = [x + torch.randn(count, generator=generator).double().sign() * 1e-3 for x in exact]
        result = measure_gradient(exact[0] + 2.4e-3, exact, pytorch, 1.2, 0.0)
        assert (result.error <= result.allowed) == passes and result.pytorch == pytest.approx(1e-3)
