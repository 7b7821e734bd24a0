"""`fp8_attention` in the interpreter: the error contract of its gradients against float64, and what is told of arguments that do not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import cuir
from cuir import CuirError, fp8_attention

INTERPRETED: dict[str, Any] = {"backend": "interpret", "verify": "off"}
ROUNDED = 2.0**-4  # largest relative error of a normal number of e4m3
SUBNORMAL = 2.0**-10 / 448  # largest error of others, of the largest number with their scale
SLACK = 1e-5  # of float32


def draw(at: tuple[int, int, int, int, int], D: int, DV: int, seed: int = 0, spread: float = 0.0) -> list[torch.Tensor]:
    """Queries, keys, values and a gradient, whose rows differ in size by powers of two to the normal deviate times `spread`."""
    B, H, HK, M, N = at
    g = torch.Generator().manual_seed(seed)
    shapes = ((H, M, D), (HK, N, D), (HK, N, DV), (H, M, DV))
    rows = [torch.exp2(torch.randn(B, h, n, 1, generator=g) * spread) for h, n, _ in shapes]
    return [(torch.randn(B, h, n, d, generator=g) * size).bfloat16() for (h, n, d), size in zip(shapes, rows, strict=True)]


def differentiate(
    call: Callable[..., torch.Tensor], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, do: torch.Tensor
) -> list[torch.Tensor]:
    """Return O and the gradients, in float64."""
    leaves = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    o = call(*leaves)
    o.backward(do.to(o.dtype))
    return [x.detach().double() for x in (o, *(leaf.grad for leaf in leaves))]  # type: ignore[union-attr]


def round_error(x: torch.Tensor, groups: int | None = None) -> torch.Tensor:
    """The contract's bound of what quantising costs each number; a scale is that of each head, or of groups of them."""
    heads = x if groups is None else x.unflatten(1, (groups, -1)).flatten(2, 3)
    most = heads.abs().amax((2, 3)).repeat_interleave(x.shape[1] // heads.shape[1], 1)[..., None, None]
    return torch.maximum(x.abs() * ROUNDED, most * SUBNORMAL) * (1 + SLACK)


@given(
    st.sampled_from([(1, 1), (4, 2), (3, 1)]),
    st.integers(1, 80),
    st.integers(1, 150),
    st.sampled_from([(64, 64), (32, 48), (128, 128)]),
    st.sampled_from([0.0, 2.0]),
    st.integers(0, 2**16),
)
@settings(max_examples=4, deadline=None)
def test_gradients_keep_the_contract(heads: tuple[int, int], M: int, N: int, dims: tuple[int, int], spread: float, seed: int) -> None:
    """Each element is off by what rounding the operands of its products costs, given the weights of quantised scores and O."""
    (H, HK), (D, DV) = heads, dims
    q, k, v, do = draw((1, H, HK, M, N), D, DV, seed, spread)
    o, dq, dk, dv = differentiate(lambda *x: fp8_attention(*x, **INTERPRETED), q, k, v, do)
    q8, k8 = (x.double() * s.double()[..., None, None] for x, s in map(cuir.quantize_fp8, (q, k)))
    q, k, v, do = (x.double() for x in (q, k, v, do))
    k8, kh, vh = (x.repeat_interleave(H // HK, 1) for x in (k8, k, v))
    p = (q8 @ k8.mT * D**-0.5).softmax(-1)
    of_do, of_v = round_error(do, HK), round_error(v).repeat_interleave(H // HK, 1)
    passed = do @ vh.mT
    exact = p * (passed - (p * passed).sum(-1, keepdim=True))
    of_rows = ((o - p @ vh).abs() * (do.abs() + of_do) + (p @ vh).abs() * of_do).sum(-1, keepdim=True)
    of_passed = do.abs() @ of_v.mT + of_do @ (vh.abs() + of_v).mT
    off = (
        p * (of_passed + of_rows) * (1 + 2**-8)
        + exact.abs() * 2**-8
        + p * SLACK * (passed.abs() + (p * passed.abs()).sum(-1, keepdim=True))
    )
    of_p = torch.maximum(p * ROUNDED, torch.full_like(p, 2.0**-18))

    def require(gradient: torch.Tensor, expected: torch.Tensor, bound: torch.Tensor) -> None:
        assert bool(((gradient - expected).abs() <= bound * (1 + SLACK) + expected.abs() * 2**-8 + 1e-30).all())

    require(dq, exact @ kh * D**-0.5, (off @ kh.abs()) * D**-0.5)
    per_key_head = [x.unflatten(1, (HK, -1)).sum(2) for x in (exact.mT @ q, off.mT @ q.abs())]
    require(dk, per_key_head[0] * D**-0.5, per_key_head[1] * D**-0.5)
    weighted = [x.unflatten(1, (HK, -1)).sum(2) for x in (p.mT @ do, p.mT @ of_do + of_p.mT @ (do.abs() + of_do))]
    require(dv, *weighted)


def test_rules_strides_and_a_batch_for_all() -> None:
    """Gradients lie as the inputs, and are about as large an error apart from float64 as inputs rounded to 8 bits make them."""
    q, k, v, do = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in draw((2, 4, 2, 40, 150), 72, 40))
    k, v = k[:1], v[:1]
    bias = torch.randn(4, generator=torch.Generator().manual_seed(1))
    mask = cuir.create_block_mask(lambda b, h, i, j: (i + j) % 3 != 0, None, None, 40, 150, device="cpu")

    def mod(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return 5 * torch.tanh(s / 5) + bias[h] * 0.1

    def exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = q.double(), *(x.double().repeat_interleave(2, 1) for x in (k, v))
        s = mod(q @ k.mT * 0.2, 0, torch.arange(4)[:, None, None], 0, 0)
        kept = (torch.arange(40)[:, None] + torch.arange(150)) % 3 != 0
        return s.masked_fill(~kept, -torch.inf).softmax(-1) @ v

    results = differentiate(lambda *x: fp8_attention(*x, mod, mask, 0.2, **INTERPRETED), q, k, v, do)
    for result, expected in zip(results, differentiate(exact, q, k, v, do), strict=True):
        assert float((result - expected).norm() / expected.norm()) < 0.08
    leaf = q.detach().clone().requires_grad_()
    fp8_attention(leaf, k, v, **INTERPRETED).sum().backward()
    assert leaf.grad is not None and leaf.grad.dtype == torch.bfloat16 and leaf.grad.stride() == leaf.stride()


def test_queries_without_keys_and_no_queries() -> None:
    q, k, v, do = draw((1, 1, 1, 6, 40), 64, 64)
    mask = cuir.create_block_mask(lambda b, h, i, j: j < i - 3, None, None, 6, 40, device="cpu")
    o, dq, dk, dv = differentiate(lambda *x: fp8_attention(*x, block_mask=mask, **INTERPRETED), q, k, v, do)
    assert not o[:, :, :4].any() and not dq[:, :, :4].any() and not dv[:, :, 2:].any() and dk.isfinite().all() and dv[:, :, :2].any()
    o, dq, dk, dv = differentiate(lambda *x: fp8_attention(*x, **INTERPRETED), q[:, :, :0], k, v, do[:, :, :0])
    assert o.numel() == dq.numel() == 0 and not dk.any() and not dv.any()


Q, K, V, DO = draw((1, 2, 1, 20, 30), 64, 64)
BIAS = torch.zeros(2, requires_grad=True)


def train(*more: Any, q: torch.Tensor = Q, v: torch.Tensor = V, **options: Any) -> torch.Tensor:
    return fp8_attention(q.clone().requires_grad_(), K.to(q.dtype), v, *more, **{**INTERPRETED, **options})


def in_order() -> torch.Tensor:
    torch.use_deterministic_algorithms(True)
    try:
        return train()
    finally:
        torch.use_deterministic_algorithms(False)


BAD: list[tuple[str, str, str, Callable[[], Any]]] = [
    ("dtype", "U404", "`query` must be bfloat16, found float16", lambda: train(q=Q.half(), v=V.half())),
    ("scale", "U413", "scale must be a finite number, found -1.0", lambda: train(scale=-1.0)),
    (
        "head dim",
        "U410",
        "gradients in 8 bits are for head dims to 128, found 64 and 136",
        lambda: train(v=V.repeat(1, 1, 1, 3)[..., :136]),
    ),
    ("captured", "U410", "`BIAS`, which a mod captures, requires a gradient", lambda: train(lambda s, b, h, i, j: s + BIAS[h])),
    ("deterministic mode", "U410", "dQ of attention in 8 bits is added up in an open order", in_order),
]


@pytest.mark.parametrize(("code", "message", "call"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_what_does_not_fit_is_told(code: str, message: str, call: Callable[[], Any]) -> None:
    with pytest.raises(CuirError) as raised:
        call()
    diagnostic = raised.value.diagnostics[0]
    assert diagnostic.code == code and message in diagnostic.message and (diagnostic.hint is not None or code == "U413")


def test_second_derivatives_and_written_captures_are_refused() -> None:
    leaf = Q.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(fp8_attention(leaf, K, V, **INTERPRETED).sum(), leaf, create_graph=True)
    with pytest.raises(CuirError, match="no second derivatives"):
        gradient.sum().backward()
    shift = torch.zeros(2)
    o = fp8_attention(Q.clone().requires_grad_(), K, V, lambda s, b, h, i, j: s + shift[h], **INTERPRETED)
    shift.add_(1)
    with pytest.raises(CuirError, match="has been modified by an inplace operation"):
        o.sum().backward()


def test_a_step_under_autocast_trains() -> None:
    """Masters of float32 are cast, as in other calls; their gradients are float32."""
    layer = torch.nn.Linear(64, 64)
    x = torch.randn(1, 2, 30, 64, generator=torch.Generator().manual_seed(2))
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
        loss = fp8_attention(y, y, y, **INTERPRETED).float().square().sum()
    loss.backward()
    assert layer.weight.grad is not None and layer.weight.grad.dtype == torch.float32 and layer.weight.grad.isfinite().all()
