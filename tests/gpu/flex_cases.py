"""What flex_attention promises on a GPU, one function each; `test_flex.py` runs them in processes of their own."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention import flex_attention as theirs

from cuir import CuirError, Specification, api, create_block_mask, flex_attention
from cuir.flex import kernels

Mod = Callable[..., Any]
SLACK = 2e-5


def tensors(heads: int, key_heads: int, m: int, n: int, dim: int, dtype: torch.dtype, batch: int = 2) -> tuple[torch.Tensor, ...]:
    g = torch.Generator("cuda").manual_seed(m + n)
    return tuple(
        torch.randn(batch, h, s, dim, device="cuda", generator=g).to(dtype) for h, s in ((heads, m), (key_heads, n), (key_heads, n))
    )


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def documents(seed: int, n: int, batch: int = 2) -> Mod:
    ids = torch.randint(0, 5, (batch, n), device="cuda", generator=torch.Generator("cuda").manual_seed(seed)).sort(-1).values
    return lambda b, h, q, k: ids[b, q] == ids[b, k]


def alibi(heads: int) -> Mod:
    slopes = torch.tensor([2.0 ** -(i + 1) for i in range(heads)], device="cuda")
    return lambda s, b, h, q, k: s + slopes[h] * (k - q)


def check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, score: Mod | None, mask: Mod | None, mine: Any = None, **options: Any) -> None:
    """Against float64: at most 1.5 x the error that PyTorch has in half precision."""
    spec, scale = Specification("wanted", mask, score), options.get("scale") or q.shape[3] ** -0.5
    block_mask = mine if mine is not None else create_block_mask(mask, None, None, q.shape[2], k.shape[2]) if mask else None
    found = flex_attention(q, k, v, score, block_mask, return_lse=True, **{"verify": "off", **options})
    assert isinstance(found, tuple)
    wanted, lse = spec.reference(q, k, v, scale)
    own = (spec.half(q, k, v, scale)[0].double() - wanted).norm()
    assert (found[0].double() - wanted).norm() <= 1.5 * own + SLACK * wanted.norm()
    torch.testing.assert_close(found[1].double(), lse, atol=2e-3, rtol=1e-4)


def numbers() -> None:
    for dim, dtype in ((128, torch.float16), (64, torch.bfloat16)):
        for score, mask in (
            (None, None),
            (None, causal),
            (alibi(4), causal),
            (None, documents(0, 1000)),
            (None, lambda b, h, q, k: q >= k + 30),
        ):
            check(*tensors(4, 4, 700, 1000, dim, dtype), score, mask)  # type: ignore[misc]
    check(*tensors(8, 2, 300, 300, 128, torch.float16), None, causal, enable_gqa=True, scale=0.2)  # type: ignore[misc]


def verified_once() -> None:
    check(*tensors(2, 2, 300, 300, 64, torch.float16), None, causal, verify="quick")  # type: ignore[misc]


def block_masks_of_pytorch() -> None:
    q, k, v = tensors(4, 4, 640, 640, 64, torch.float16)
    for mask in (causal, documents(1, 640)):
        check(q, k, v, None, mask, theirs.create_block_mask(mask, None, None, 640, 640, device="cuda"))


def one_kernel() -> None:
    made = []
    compile = api.compile

    def counted(*args: Any, **named: Any) -> Any:
        made.append(named)
        return compile(*args, **named)

    api.compile = counted
    for seed, (m, n) in enumerate([(512, 512), (512, 512), (700, 333), (90, 1500)]):
        check(*tensors(4, 4, m, n, 64, torch.float16), None, documents(seed, max(m, n)))  # type: ignore[misc]
    assert len(made) == len({str(consts) for consts in made}), "a kernel was compiled twice"
    assert len(kernels._SETTINGS) == 1


def errors() -> None:
    q, k, v = tensors(2, 2, 64, 64, 64, torch.float16)
    slopes = torch.ones(2)
    for code, call in (
        ("U502", lambda: flex_attention(q.cpu(), k.cpu(), v.cpu())),
        ("U407", lambda: flex_attention(q, k.cpu(), v)),
        ("U407", lambda: flex_attention(q, k, v, lambda s, b, h, i, j: s * slopes[h])),
    ):
        with pytest.raises(CuirError) as raised:
            call()
        assert raised.value.diagnostics[0].code == code


def host_cost() -> dict[str, float]:
    """Of a warm call, in microseconds: a causal mask, and one with captured data."""
    found = {}
    for name, mask in (("causal", causal), ("documents", documents(0, 128))):
        q, k, v = tensors(2, 2, 128, 128, 64, torch.float16)
        block_mask = create_block_mask(mask, None, None, 128, 128)
        times = []
        for _ in range(300):
            start = time.perf_counter()
            flex_attention(q, k, v, None, block_mask, verify="off")
            times.append((time.perf_counter() - start) * 1e6)
        torch.cuda.synchronize()
        found[name] = statistics.median(times[50:])
    return found
