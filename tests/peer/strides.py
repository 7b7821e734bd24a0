"""Tensors that lie otherwise than rows after rows: odd starts, odd rows, dims in another order, columns outermost, and the strides of the result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention.flex_attention import _create_empty_block_mask, noop_mask

from tests.peer.cases import ATTENTION, BACKWARD, scenario
from tests.peer.judging import expect
from tests.peer.mods import FAST, alibi, identity
from tests.peer.paging import read_pages
from tests.peer.scores import B, D, H, S, block_mask
from tests.peer.trial import Trial, attention

STRIDES = {
    "offset": ((H * S * D, S * D, D, 1), 997),
    "transposed": ((H * D, D, B * H * D, 1), 499),
    "heads_and_positions_transposed": ((H * S * D, D, H * D, 1), 0),
    "odd_rows": ((S * (D + 1), B * S * (D + 1), D + 1, 1), 293),
}


def make_strided(t: Trial, shape: tuple[int, ...], strides: tuple[int, ...], start: int, dtype: torch.dtype, room: int = 2) -> torch.Tensor:
    """A view of random numbers with these strides, in units of elements. room: how many times the elements of `shape` there are behind it."""
    numbers = torch.randn(room * shape[0] * shape[1] * shape[2] * shape[3], dtype=dtype, device=t.device)
    return t.wanting(torch.as_strided(numbers, shape, strides, start))


def of(*names: str) -> dict[str, Any]:
    return {name: STRIDES[name] for name in names}


PAIRS = (("offset", "offset"), ("offset", "transposed"), ("heads_and_positions_transposed", "odd_rows"), ("odd_rows", "transposed"))


@scenario(
    ATTENTION,
    "strides",
    gradients=BACKWARD,
    dtype=FAST,
    q_s=of("offset", "transposed"),
    kv_s={f"{k}-{v}": (STRIDES[k], STRIDES[v]) for k, v in PAIRS},
    do_s=of("offset", "transposed", "heads_and_positions_transposed"),
)
def strided_inputs(t: Trial, dtype: torch.dtype, q_s: Any, kv_s: Any, do_s: Any) -> None:
    q = make_strided(t, (B, H, S // 2, D), *q_s, dtype)
    k, v = (make_strided(t, (B, H, S, D), *s, dtype) for s in kv_s)
    options = {"kernel_options": {"USE_TMA": True}}
    t.close(attention(alibi(8), lambda _: _create_empty_block_mask(q, k), **options), (q, k, v), 0.2, fullgraph=True)
    if not t.gradients:
        ours = read_pages(alibi(8), block_mask(t, noop_mask, B, 1, S // 2, S), k, v, **options)
        t.close(attention(alibi(8), **options), (q, k, v), 0.2, ours=ours)


ORDERS = ((0, 1, 2, 3), (1, 0, 2, 3), (0, 2, 1, 3), (2, 0, 1, 3), (0, 1, 3, 2))


def order_of(x: torch.Tensor) -> list[int]:
    """Dims from the innermost to the outermost."""
    return sorted(range(x.dim()), key=lambda i: (x.stride(i), -i))


@scenario(
    ATTENTION,
    "strides",
    gradients=BACKWARD,
    mode=("eager", "inductor", "paged_attention"),
    permute_order=ORDERS,
    shape=((2, 1, 128, 16), (4, 2, 64, 16)),
)
def flex_attention_stride_ordering(t: Trial, mode: str, permute_order: tuple[int, ...], shape: tuple[int, ...]) -> None:
    q, k, v = (t.wanting(torch.randn(shape, device=t.device).permute(permute_order)) for _ in range(3))
    ours = None
    if mode == "paged_attention":
        q, k, v = (x.detach() for x in (q, k, v))  # those of the original require no gradients here: pages have none
        ours = read_pages(identity, block_mask(t, noop_mask, q.shape[0], 1, q.shape[2], k.shape[2]), k, v)
    o = t.judge(attention(identity), (q, k, v), ours=ours, compiled=mode != "eager", paged=ours is not None)
    expected = order_of(t.torch_api.flex_attention(q, k, v))
    expect(order_of(o) == expected, f"O has its dims in the order {order_of(o)} of strides, PyTorch's in {expected}")


@scenario(
    ATTENTION,
    "strides",
    gradients=BACKWARD,
    mode=("eager", "inductor"),
    permute_order=ORDERS,
    shape=((2, 5, 128, 16), (4, 2, 64, 16)),
)
def flex_attention_backward_stride_ordering(t: Trial, mode: str, permute_order: tuple[int, ...], shape: tuple[int, ...]) -> None:
    tensors = [t.wanting(torch.randn(shape, device=t.device).permute(permute_order)) for _ in range(3)]
    o = t.judge(attention(), tensors, compiled=mode != "eager")
    if t.gradients:
        for x, grad in zip(tensors, torch.autograd.grad(o.sum(), tensors)):
            expect(
                order_of(grad) == order_of(x), f"a gradient has its dims in the order {order_of(grad)} of strides, its tensor {order_of(x)}"
            )


@scenario(ATTENTION, "strides", gradients=BACKWARD)
def non_contiguous_last_dim(t: Trial) -> None:
    for n in (16, 64):
        tensors = [t.wanting(torch.randn(4, 8, 64, n, dtype=torch.float16, device=t.device).transpose(2, 3)) for _ in range(3)]
        t.judge(attention(), tensors, fullgraph=True, dynamic=True)


@scenario(ATTENTION, "strides", gradients=BACKWARD)
def strided_backwards(t: Trial) -> None:
    n = t.length(4096)
    q, k, v = t.qkv((1, 2, n, 64))
    t.judge(slice_keys, (q, k, v), dynamic=True, fullgraph=True)


def slice_keys(api: Any) -> Callable[..., Any]:
    flex_attention = api.flex_attention
    return lambda q, k, v: flex_attention(q, k[:, :, :-128], v[:, :, :-128])


@scenario(ATTENTION, "strides", gradients=BACKWARD)
def eager_backward_strides(t: Trial) -> None:
    project = torch.nn.Linear(256, 3 * 256, device=t.device).requires_grad_(False)
    x = t.randn(1, 512, 256)

    def make(api: Any) -> Callable[..., Any]:
        flex_attention = api.flex_attention

        def call(x: Any) -> Any:
            weight, bias = project.weight.to(x.dtype), project.bias.to(x.dtype)
            parts = torch.nn.functional.linear(x, weight, bias).split(256, dim=2)
            return flex_attention(*(part.reshape(1, 512, 4, 64).transpose(1, 2) for part in parts))

        return call

    t.judge(make, (x,), fullgraph=True)
