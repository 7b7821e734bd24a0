"""attention_with_kv_cache and varlen_attention under torch.compile: one graph without a break for other lengths, tables and captured tensors; caches are written where they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from cuir import attention_with_kv_cache, varlen_attention

HK, D, PAGE = 2, 64, 16
TABLE = torch.tensor([[3, 1], [4, 0]], dtype=torch.int32)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).half()


def biased(slopes: torch.Tensor) -> Callable[..., Any]:
    return lambda s, b, h, q, k: s + slopes[h] * k


def from_start(b: Any, h: Any, q: Any, k: Any, *, N: Any) -> Any:
    return k >= N - 20


def compiled(function: Callable[..., Any]) -> tuple[Callable[..., Any], Any]:
    """The function in a graph whose operators run as they stand, and what counts the graphs."""
    counter = CompileCounterWithBackend("aot_eager")
    return torch.compile(function, fullgraph=True, backend=counter), counter


def test_a_step_over_a_cache_is_one_graph() -> None:
    def step(q: Any, k: Any, v: Any, keys: Any, values: Any, lengths: Any, table: Any, mod: Any, sink: Any) -> Any:
        o, lse = attention_with_kv_cache(
            q * 2, keys, values, k, v, cache_seqlens=lengths, page_table=table, score_mod=mod, block_mask=from_start, causal=True, sink=sink, return_lse=True,
            backend="interpret",
        )  # fmt: skip
        return o + 1, lse

    call, counter = compiled(step)
    for turn, (lengths, table) in enumerate((([20, 3], TABLE), ([7, 30], TABLE.flip(1).contiguous()))):
        q, k, v = random(2, 1, 4, D, seed=turn), random(2, 1, HK, D, seed=turn + 5), random(2, 1, HK, D, seed=turn + 9)
        caches, others = ([random(5, PAGE, HK, D, seed=7 + i) for i in range(2)] for _ in range(2))
        of = (
            torch.tensor(lengths, dtype=torch.int32),
            table,
            biased(torch.tensor([0.1, -0.2, 0.3, turn])),
            torch.tensor([0.5, turn, -1.0, 2.0]),
        )
        got, wanted = call(q, k, v, *caches, *of), step(q, k, v, *others, *of)
        for x, y in (*zip(got, wanted), *zip(caches, others)):
            torch.testing.assert_close(x, y, rtol=0, atol=0)
    assert counter.frame_count == 1


def test_a_cache_of_8_bits_that_is_read_alone_and_written() -> None:
    def step(q: Any, new: Any, keys: Any, values: Any, scales: Any) -> Any:
        given = {"page_table": TABLE, "k_scale": scales[0], "v_scale": scales[1], "backend": "interpret"}
        first = attention_with_kv_cache(q, keys, values, new, new, cache_seqlens=3, **given)
        return first + attention_with_kv_cache(q, keys, values, cache_seqlens=4, causal=True, **given)

    call, counter = compiled(step)
    sides = []
    for function in (call, step):
        caches = [random(5, PAGE, HK, D, seed=i).to(torch.float8_e4m3fn) for i in range(2)]
        scales = [random(5, HK, PAGE, seed=3 + i).float().abs() for i in range(2)]
        o = function(random(2, 1, 4, D, seed=8), random(2, 1, HK, D, seed=9), *caches, scales)
        sides.append([o, *(x.float() for x in caches), *scales])
    for x, y in zip(*sides):
        torch.testing.assert_close(x, y, rtol=0, atol=0)
    assert counter.frame_count == 1


def test_packed_sequences_are_one_graph() -> None:
    def both(q: Any, k: Any, v: Any, cu: Any, mask: Any) -> Any:
        o, lse = varlen_attention(q, k, v, cu, cu, 40, block_mask=mask, causal=True, enable_gqa=True, return_lse=True, backend="interpret")
        return o * 2, lse

    def of_documents(ids: torch.Tensor) -> Callable[..., Any]:
        return lambda b, h, q, k: ids[q] == ids[k]

    call, counter = compiled(both)
    q, k, v = random(70, 4, D), random(70, HK, D, seed=1), random(70, HK, D, seed=2)
    for turn, places in enumerate(([0, 30, 30, 70], [0, 5, 40, 69])):
        cu, mask = torch.tensor(places, dtype=torch.int32), of_documents(torch.arange(70) // (turn + 9))
        for x, y in zip(call(q, k, v, cu, mask), both(q, k, v, cu, mask)):
            rows = slice(0, places[-1])
            x, y = (x[rows], y[rows]) if x.dim() == 3 else (x[:, rows], y[:, rows])
            torch.testing.assert_close(x, y, rtol=0, atol=0)
    assert counter.frame_count == 1


@pytest.mark.parametrize(
    ("says", "call"),
    [
        ("U404", lambda q, x: attention_with_kv_cache(q, x.bfloat16(), x.bfloat16(), cache_seqlens=3, backend="interpret")),
        ("U408", lambda q, x: attention_with_kv_cache(q, x, x, cache_seqlens=17, backend="interpret")),
        ("U402", lambda q, x: attention_with_kv_cache(q, x, x, q, cache_seqlens=3, backend="interpret")),
        ("U410", lambda q, x: attention_with_kv_cache(q.requires_grad_(), x, x, cache_seqlens=3, backend="interpret")),
        ("U410", lambda q, x: varlen_attention(q[0], x[0].requires_grad_(), x[0], TABLE[0], TABLE[0], backend="interpret")),
        ("U408", lambda q, x: varlen_attention(q[0], x[0], x[0], TABLE[0], TABLE[0, :1], backend="interpret")),
    ],
)
def test_wrong_calls_are_told_when_the_graph_is_made(says: str, call: Callable[..., Any]) -> None:
    with pytest.raises(Exception, match=says):
        compiled(call)[0](random(1, 1, 2, D), random(1, PAGE, 2, D))
