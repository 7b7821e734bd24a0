"""Gradients of some of the inputs of `flex_attention`: those that require one, beside the dense formula in float64, and nothing launched or allocated for the others."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cuir import flex_attention
from cuir.flex import gradients

from .test_gradients import close, dense, tensors

N = 70


def biased(table: torch.Tensor) -> Any:
    return lambda s, b, h, q, k: s + table[h, k]


def wide(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
    """O in float64: a sink is a key of its own, whose value is 0."""
    o, lse = dense(q, k, v, None, biased(table))
    return o * torch.sigmoid(lse - sink[:, None])[..., None]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("asked", "kernels"),
    [
        ("q", ["prepare", "flash_bwd_dq"]),
        ("kv", ["prepare", "flash_bwd"]),
        ("v", ["prepare", "flash_bwd"]),
        ("t", ["prepare", "flash_bwd"]),
        ("qt", ["prepare", "flash_bwd", "finish"]),
        ("s", ["prepare"]),
    ],
)  # fmt: skip
def test_only_what_is_asked_for(asked: str, kernels: list[str], compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    launched: dict[str, dict[str, Any]] = {}
    interpreted = gradients._interpreted

    def told(checked: Any) -> Any:
        return lambda **given: (launched.update({checked.name: given}), interpreted(checked)(**given))

    monkeypatch.setattr(gradients, "_interpreted", told)
    q, k, v = tensors(1, 2, 1, N, N, 64)
    g = torch.Generator().manual_seed(3)
    given = {"q": q, "k": k, "v": v, "t": torch.randn(2, N, generator=g), "s": torch.randn(2, generator=g)}
    for name in asked:
        given[name].requires_grad_()
    score_mod, sink = biased(given["t"]), given["s"]

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return flex_attention(q, k, v, score_mod, sink=sink, enable_gqa=True, backend="interpret", verify="off")

    o = (torch.compile(call, fullgraph=True, backend="aot_eager") if compiled else call)(q, k, v)
    do = torch.randn(o.shape, generator=g).half()
    found = torch.autograd.grad(o, [given[name] for name in asked], do)
    exact = {n: x.detach().double().requires_grad_() for n, x in given.items()}
    close(found, torch.autograd.grad(wide(*exact.values()), [exact[name] for name in asked], do.double()))
    assert list(launched) == kernels
    sizes = {n: x.untyped_storage().nbytes() for given in launched.values() for n, x in given.items() if n in ("dQ", "dK", "dV")}
    written = {"dQ"} if "q" in asked else set()
    written |= {"dK", "dV"} if "v" in asked else set()
    assert all((size > 256) == (name in written) for name, size in sizes.items()), sizes


def test_what_no_score_reads_launches_nothing() -> None:
    q, k, v = tensors(1, 1, 1, 20, 20, 64)
    limit = torch.tensor(9.0, requires_grad=True)
    o = flex_attention(q, k, v, lambda s, b, h, q, k: torch.where(k < limit, s, -torch.inf), backend="interpret")
    assert torch.autograd.grad(o.sum(), limit, allow_unused=True) == (None,)  # type: ignore[union-attr]
