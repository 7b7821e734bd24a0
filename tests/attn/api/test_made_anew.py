"""Mods that each call makes anew, as a layer does: only what depends on the call is done, and nothing is taken for what it is not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad

from cuir import CuirError, flex_attention
from cuir.attn.api import prepared_calls
from tests.attn.launches import Launches

M, N, D = 40, 50, 64
Mod = Callable[..., Any]
Q, K, V = (torch.randn(1, 2, n, D).half() for n in (M, N, N))


def call(score: Mod) -> Any:
    return flex_attention(Q, K, V, score, verify="off")


def make_bias(bias: torch.Tensor) -> Mod:
    return lambda s, b, h, q, k: s + bias[h]


def test_mods_made_anew_do_what_depends_on_the_call_alone(launches: Launches) -> None:
    """Counted as calls of functions, which no other process delays: 461 when each call examined everything, 321 since."""
    bias, counted = torch.rand(2), 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    for _ in range(3):
        call(make_bias(bias))
    mod = make_bias(bias)
    sys.setprofile(count)
    try:
        call(mod)
    finally:
        sys.setprofile(None)
    assert counted < 340


def test_mods_made_anew_pass_their_own_tensors(launches: Launches) -> None:
    for _ in range(3):
        bias = torch.rand(2)
        call(make_bias(bias))
        inputs = next(v for n, v in launches.arguments[-1].items() if n.rstrip("_") == "bias")
        assert torch.equal(inputs, bias) and inputs.data_ptr() == bias.data_ptr()
    assert len(prepared_calls._TRACED) == 1


def tangent(x: torch.Tensor, use: Callable[[torch.Tensor], object]) -> None:
    with forward_ad.dual_level():
        use(forward_ad.make_dual(x, torch.ones_like(x)))


def use_outside_transform(x: torch.Tensor, use: Callable[[torch.Tensor], object]) -> None:
    """A batched tensor that its transform has left behind."""
    escapees: list[torch.Tensor] = []
    torch.vmap(lambda each: escapees.append(each) or each)(x[None])
    use(escapees[0])


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize(
    ("wrap", "code"),
    [
        (lambda x, use: torch.vmap(use)(x[None]), "U403"),
        (lambda x, use: torch.func.grad(lambda y: use(y))(x), "U403"),
        (tangent, "U410"),
        (use_outside_transform, "U403"),
    ],
)
def test_what_stands_for_others_is_refused_after_a_call_of_its_signature(
    launches: Launches, wrap: Callable[[torch.Tensor, Callable[[torch.Tensor], object]], object], code: str, captured: bool
) -> None:
    bias = torch.rand(2)
    call(make_bias(bias))
    use = (lambda x: call(make_bias(x))) if captured else (lambda x: flex_attention(x, K, V, make_bias(bias), verify="off"))
    with pytest.raises(CuirError, match=code):
        wrap(bias if captured else Q, use)
    call(make_bias(bias))
    assert len(launches.arguments) == 2


def test_what_fits_once_is_told_apart_from_what_does_not(launches: Launches) -> None:
    """Sizes, dtypes, strides of subclasses, and shared heads, after a call that fits."""
    bias, shared = torch.rand(2), Q.repeat(1, 2, 1, 1)
    call(make_bias(bias))
    flex_attention(shared, K, V, make_bias(torch.rand(4)), enable_gqa=True, verify="off")
    for code, refused in (
        ("U411", lambda: flex_attention(shared, K, V, make_bias(torch.rand(4)), verify="off")),
        ("U408", lambda: flex_attention(Q, K, V[:, :, 1:], make_bias(bias), verify="off")),
        ("U404", lambda: flex_attention(Q, K.float(), V, make_bias(bias), verify="off")),
        ("U403", lambda: flex_attention(Q, K.to_sparse(), V, make_bias(bias), verify="off")),
        ("U416", lambda: call(make_bias(torch.rand(1)))),
        ("U407.*`bias`", lambda: call(make_bias(bias.to("meta")))),
    ):
        with pytest.raises(CuirError, match=code):
            refused()
    call(make_bias(bias))
    assert len(launches.arguments) == 3
