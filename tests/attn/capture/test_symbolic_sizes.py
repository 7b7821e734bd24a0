"""Sizes that data decide: batches and lengths of tokens that a bool mask picks inside of a graph, which no guard may settle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from cuir import attention_with_kv_cache, create_block_mask, flex_attention, varlen_attention
from cuir.attn.capture.symbolic_sizes import are_equal, is_known, order_from_outermost

X = torch.randn(4, 2, 32, 32, generator=torch.Generator().manual_seed(0))
RETAINED, TOKENS = torch.tensor([True, False, True, True]), torch.arange(32) % 3 > 0


@pytest.fixture(autouse=True)
def _picked_by_data() -> Iterator[None]:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        yield
    torch._dynamo.reset()


def attend(q: torch.Tensor, k: torch.Tensor | None = None, **options: Any) -> Any:
    return flex_attention(q, q if k is None else k, q if k is None else k, backend="interpret", verify="off", **options)


def of_batches(x: torch.Tensor, retained: torch.Tensor, tokens: torch.Tensor) -> Any:
    return attend(x[retained])


def of_two_batches(x: torch.Tensor, retained: torch.Tensor, tokens: torch.Tensor) -> Any:
    return attend(x[retained], x[retained.flip(0)])


def of_batches_inside(x: torch.Tensor, retained: torch.Tensor, tokens: torch.Tensor) -> Any:
    return attend(x[retained].permute(1, 0, 2, 3).contiguous().permute(1, 0, 2, 3) * 1.0)


def of_heads_inside(x: torch.Tensor, retained: torch.Tensor, tokens: torch.Tensor) -> Any:
    return attend(x.transpose(1, 2)[retained].transpose(1, 2), score_mod=lambda s, b, h, i, j: s + h * j)


def of_odd_rows(x: torch.Tensor, retained: torch.Tensor, tokens: torch.Tensor) -> Any:
    return attend(x[retained][..., :31])


def of_lengths(x: torch.Tensor, retained: torch.Tensor, tokens: torch.Tensor) -> Any:
    y = x[:, :, tokens]
    return attend(y, block_mask=create_block_mask(lambda b, h, i, j: i >= j, None, None, y.shape[2], y.shape[2], device="cpu"))


def of_a_number(x: torch.Tensor, retained: torch.Tensor, tokens: torch.Tensor) -> Any:
    return attend(x[:, :, : tokens.sum().item()])  # type: ignore[misc]


@pytest.mark.sweep
@pytest.mark.parametrize("call", [of_batches, of_two_batches, of_batches_inside, of_heads_inside, of_odd_rows, of_lengths, of_a_number])
def test_sizes_that_data_decide(call: Callable[..., torch.Tensor]) -> None:
    """Outputs, gradients and strides are those of the call outside of the graph."""
    x, y = (X.clone().requires_grad_() for _ in range(2))
    result = torch.compile(call, backend="aot_eager", fullgraph=True)(x, RETAINED, TOKENS)
    exact = call(y, RETAINED, TOKENS)
    torch.testing.assert_close(result, exact)
    assert result.stride() == exact.stride()
    for o in (result, exact):
        (o * o.detach()).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


def attend_packed(x: torch.Tensor, retained: torch.Tensor, tokens: torch.Tensor) -> Any:
    q = x.reshape(-1, 2, 32)[tokens.repeat(4)].half()
    places = torch.arange(4, dtype=torch.int32)[retained] * 8
    return varlen_attention(q, q, q, places, places, tokens.sum().item(), causal=True, backend="interpret")[:24]  # type: ignore[arg-type]


def attend_cached(x: torch.Tensor, retained: torch.Tensor, tokens: torch.Tensor) -> Any:
    cache = x[retained].half()
    q = cache[:, :, :2].transpose(1, 2)
    return attention_with_kv_cache(q, cache, cache, cache_seqlens=2, layout="HND", backend="interpret")


@pytest.mark.parametrize("call", [attend_packed, attend_cached])
def test_sequences_that_data_decide(call: Callable[..., torch.Tensor]) -> None:
    torch.testing.assert_close(torch.compile(call, backend="aot_eager", fullgraph=True)(X, RETAINED, TOKENS), call(X, RETAINED, TOKENS))


def test_batches_that_differ_are_told_when_the_graph_runs() -> None:
    call = torch.compile(lambda x, a, b: attend(x[a], x[b]), backend="aot_eager", fullgraph=True)
    with pytest.raises(RuntimeError, match="Eq"):
        call(X, RETAINED, torch.tensor([True, True, False, False]))


def test_plain_sizes_are_compared_as_they_are() -> None:
    assert are_equal(3, 3) and not are_equal(3, 4) and is_known(True) and not is_known(False)
    assert order_from_outermost((1, 8, 8, 2)) == [1, 2, 3, 0]
