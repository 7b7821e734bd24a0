"""Gradients of some of the inputs of `flex_attention`: those that require one, beside the dense formula in float64, and nothing launched or allocated for the others."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cuir import Specification, attention, create_block_mask, flex_attention
from cuir.attn.kernels import autograd as gradients
from cuir.attn.kernels import backward_kernels
from cuir.spec.specification import Lengths

from ..kernels.test_autograd import causal, close, dense, documents, tensors

N = 70


def near(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q - k < 100) & (k - q < 100)


def make_bias(table: torch.Tensor) -> Any:
    return lambda s, b, h, q, k: s + table[h, k]


def wide(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
    """O in float64: a sink is a key of its own, whose value is 0."""
    o, lse = dense(q, k, v, None, make_bias(table))
    return o * torch.sigmoid(lse - sink[:, None])[..., None]


def record_launches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """The launches from now on: kernels, and what they are given."""
    launches: list[tuple[str, dict[str, Any]]] = []
    launch = gradients._Interpreted.launch

    def record(self: Any, arguments: dict[str, Any]) -> object:
        launches.append((self.checked.name, arguments))
        return launch(self, arguments)

    monkeypatch.setattr(gradients._Interpreted, "launch", record)
    return launches


@pytest.mark.sweep
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("requests", "kernels"),
    [
        ("q", ["flash_bwd_dq"]),
        ("kv", ["prepare", "flash_bwd"]),
        ("v", ["prepare", "flash_bwd"]),
        ("t", ["prepare", "flash_bwd"]),
        ("qt", ["prepare", "flash_bwd", "finish"]),
        ("s", ["prepare"]),
    ],
)
def test_only_what_is_asked_for(requests: str, kernels: list[str], compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    launches = record_launches(monkeypatch)
    q, k, v = tensors(1, 2, 2, N, N, 64)
    g = torch.Generator().manual_seed(3)
    inputs = {"q": q, "k": k, "v": v, "t": torch.randn(2, N, generator=g), "s": torch.randn(2, generator=g)}
    for name in requests:
        inputs[name].requires_grad_()
    score_mod, sink = make_bias(inputs["t"]), inputs["s"]

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return flex_attention(q, k, v, score_mod, sink=sink, enable_gqa=True, backend="interpret", verify="off")

    o = (torch.compile(call, fullgraph=True, backend="aot_eager") if compiled else call)(q, k, v)
    do = torch.randn(o.shape, generator=g).half()
    result = torch.autograd.grad(o, [inputs[name] for name in requests], do)
    exact = {n: x.detach().double().requires_grad_() for n, x in inputs.items()}
    close(result, torch.autograd.grad(wide(*exact.values()), [exact[name] for name in requests], do.double()))
    assert [name for name, _ in launches] == kernels
    sizes = {n: x.untyped_storage().nbytes() for _, inputs in launches for n, x in inputs.items() if n in ("dQ", "dK", "dV")}
    written = {"dQ"} if "q" in requests else set()
    written |= {"dK", "dV"} if "v" in requests else set()
    assert all((size > 256) == (name in written) for name, size in sizes.items()), sizes


@pytest.mark.sweep
@pytest.mark.parametrize("requests", ["kv", "v", "k", "q", "qkv", "qv"])
@pytest.mark.parametrize(("keys", "values"), [(64, 128), (16, 72), (96, 64), (64, 192), (192, 128)])
def test_head_dims_that_differ(keys: int, values: int, requests: str) -> None:
    """Several blocks of queries for each block of keys: of the heads of a group, and of one."""
    g = torch.Generator().manual_seed(4)
    inputs = dict(
        zip("qkv", (torch.randn(1, h, n, d, generator=g).half() for h, n, d in ((2, 150, keys), (1, 130, keys), (1, 130, values))))
    )
    for name in requests:
        inputs[name].requires_grad_()
    o = flex_attention(*inputs.values(), enable_gqa=True, backend="interpret", verify="off")
    assert isinstance(o, torch.Tensor)
    do = torch.randn(o.shape, generator=g).half()
    exact = {n: x.detach().double().requires_grad_() for n, x in inputs.items()}
    expected = torch.autograd.grad(dense(*exact.values(), None, None)[0], [exact[name] for name in requests], do.double())
    close(torch.autograd.grad(o, [inputs[name] for name in requests], do), expected)


@pytest.mark.parametrize(("requests", "finished", "dim"), [("v", 2, 64), ("qkv", 3, 64), ("q", 0, 64), ("qkv", 3, 192)])
def test_heads_of_a_group_are_added_up(requests: str, finished: int, dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """dK and dV of key heads that several query heads share are sums in f32, which a launch each converts."""
    launches = record_launches(monkeypatch)
    monkeypatch.setattr(backward_kernels, "LEAST_SPREAD", 0)
    inputs = dict(zip("qkv", tensors(1, 4, 2, N, N, dim), strict=True))
    expected = [inputs[name].requires_grad_() for name in requests]
    block_mask = create_block_mask(causal, None, None, N, N, device="cpu")
    o = flex_attention(*inputs.values(), block_mask=block_mask, enable_gqa=True, backend="interpret", verify="off")
    do = torch.randn(o.shape, generator=torch.Generator().manual_seed(3)).half()  # type: ignore[union-attr]
    actual = torch.autograd.grad(o, expected, do)  # type: ignore[arg-type]
    exact = {n: x.detach().double().requires_grad_() for n, x in inputs.items()}
    close(actual, torch.autograd.grad(dense(*exact.values(), causal, None)[0], [exact[n] for n in requests], do.double()))
    assert [name for name, _ in launches].count("finish") == finished
    sums = [inputs["dK"].dtype for name, inputs in launches if name == "flash_bwd"]
    assert sums == ([torch.float32] if finished else [])


@pytest.mark.parametrize(
    ("mask", "heads", "length", "expected"),
    [
        (causal, (8, 2), 2048, True),
        (documents, (8, 2), 2048, True),
        (causal, (8, 8), 2048, False),
        (causal, (8, 2), 1024, False),
        (near, (8, 2), 2048, False),
        (None, (8, 2), 2048, False),
    ],
)
def test_where_they_are(mask: Any, heads: tuple[int, int], length: int, expected: bool) -> None:
    """Heads of a group that would not stay together, and have queries enough."""
    result = attention(mask or Specification("full"), dtype=torch.float16, head_dim=64, verify="off")
    assert backward_kernels.deals_heads(result, Lengths(1, *heads, length, length)) == expected


def test_what_no_score_reads_launches_nothing() -> None:
    q, k, v = tensors(1, 1, 1, 20, 20, 64)
    limit = torch.tensor(9.0, requires_grad=True)
    o = flex_attention(q, k, v, lambda s, b, h, q, k: torch.where(k < limit, s, -torch.inf), backend="interpret")
    assert torch.autograd.grad(o.sum(), limit, allow_unused=True) == (None,)  # type: ignore[union-attr]
