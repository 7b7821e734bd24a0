"""attention_with_kv_cache and varlen_attention under torch.compile: one graph without a break for other lengths, tables and captured tensors; caches are written where they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from cuir import attention_with_kv_cache, flex_attention, varlen_attention
from cuir.flex import create_nested_block_mask
from cuir.text.diagnostics import CuirError

HK, D, PAGE = 2, 64, 16
TABLE = torch.tensor([[3, 1], [4, 0]], dtype=torch.int32)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).half()


def make_bias(slopes: torch.Tensor) -> Callable[..., Any]:
    return lambda s, b, h, q, k: s + slopes[h] * k


def from_start(b: Any, h: Any, q: Any, k: Any, *, N: Any) -> Any:
    return k >= N - 20


def compile_counted(function: Callable[..., Any]) -> tuple[Callable[..., Any], Any]:
    """The function in a graph whose operators run as they stand, and what counts the graphs."""
    counter = CompileCounterWithBackend("aot_eager")
    return torch.compile(function, fullgraph=True, backend=counter), counter


def test_a_step_over_a_cache_is_one_graph() -> None:
    def step(q: Any, k: Any, v: Any, keys: Any, values: Any, lengths: Any, table: Any, mod: Any, sink: Any) -> Any:
        o, lse = attention_with_kv_cache(
            q * 2,
            keys,
            values,
            k,
            v,
            cache_seqlens=lengths,
            page_table=table,
            score_mod=mod,
            block_mask=from_start,
            causal=True,
            sink=sink,
            return_lse=True,
            backend="interpret",
        )
        return o + 1, lse

    call, counter = compile_counted(step)
    for turn, (lengths, table) in enumerate((([20, 3], TABLE), ([7, 30], TABLE.flip(1).contiguous()))):
        q, k, v = random(2, 1, 4, D, seed=turn), random(2, 1, HK, D, seed=turn + 5), random(2, 1, HK, D, seed=turn + 9)
        caches, rest = ([random(5, PAGE, HK, D, seed=7 + i) for i in range(2)] for _ in range(2))
        of = (
            torch.tensor(lengths, dtype=torch.int32),
            table,
            make_bias(torch.tensor([0.1, -0.2, 0.3, turn])),
            torch.tensor([0.5, turn, -1.0, 2.0]),
        )
        actual, expected = call(q, k, v, *caches, *of), step(q, k, v, *rest, *of)
        for x, y in (*zip(actual, expected), *zip(caches, rest)):
            torch.testing.assert_close(x, y, rtol=0, atol=0)
    assert counter.frame_count == 1


def test_a_cache_of_8_bits_that_is_read_alone_and_written() -> None:
    def step(q: Any, new: Any, keys: Any, values: Any, scales: Any) -> Any:
        inputs = {"page_table": TABLE, "k_scale": scales[0], "v_scale": scales[1], "backend": "interpret"}
        first = attention_with_kv_cache(q, keys, values, new, new, cache_seqlens=3, **inputs)
        return first + attention_with_kv_cache(q, keys, values, cache_seqlens=4, causal=True, **inputs)

    call, counter = compile_counted(step)
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
    def return_both(q: Any, k: Any, v: Any, cu: Any, mask: Any) -> Any:
        o, lse = varlen_attention(q, k, v, cu, cu, 40, block_mask=mask, causal=True, enable_gqa=True, return_lse=True, backend="interpret")
        return o * 2, lse

    def of_documents(ids: torch.Tensor) -> Callable[..., Any]:
        return lambda b, h, q, k: ids[q] == ids[k]

    call, counter = compile_counted(return_both)
    q, k, v = random(70, 4, D), random(70, HK, D, seed=1), random(70, HK, D, seed=2)
    for turn, places in enumerate(([0, 30, 30, 70], [0, 5, 40, 69])):
        cu, mask = torch.tensor(places, dtype=torch.int32), of_documents(torch.arange(70) // (turn + 9))
        for x, y in zip(call(q, k, v, cu, mask), return_both(q, k, v, cu, mask)):
            rows = slice(0, places[-1])
            x, y = (x[rows], y[rows]) if x.dim() == 3 else (x[:, rows], y[:, rows])
            torch.testing.assert_close(x, y, rtol=0, atol=0)
    assert counter.frame_count == 1


def from_half(b: Any, h: Any, q: Any, k: Any, *, M: Any, N: Any) -> Any:
    return (q * 2 < M) | (k < N - 1)


def train(result: str) -> Callable[..., Any]:
    """A step of packed sequences with gradients, whose mods come from outside of the compiled function, or from inside."""

    def outside(q: Any, k: Any, v: Any, cu: Any, slopes: Any, sink: Any) -> Any:
        o, lse = varlen_attention(
            q * 1,
            k,
            v,
            cu,
            cu,
            score_mod=make_bias(slopes),
            block_mask=from_half,
            causal=True,
            enable_gqa=True,
            sink=sink,
            return_lse=True,
            backend="interpret",
            verify="off",
        )
        return o * 2, lse

    def inside(q: Any, k: Any, v: Any, cu: Any, slopes: Any, sink: Any) -> Any:
        steep = slopes * 2

        def score_mod(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return s + steep[h] * (i - j)

        o, lse = varlen_attention(
            q * 1,
            k,
            v,
            cu,
            cu,
            score_mod=score_mod,
            causal=True,
            enable_gqa=True,
            sink=sink,
            return_lse=True,
            backend="interpret",
            verify="off",
        )
        return o * 2, lse

    return {"outside": outside, "inside": inside}[result]


@pytest.mark.thorough("compiles a backward graph")
@pytest.mark.parametrize("result", ["outside", "inside"])
def test_training_of_packed_sequences_is_one_graph(result: str) -> None:
    """For other places of as many sequences; outputs and all gradients are those of the call outside of the graph, and rows of no sequence have none."""
    step = train(result)
    call, counter = compile_counted(step)
    for turn, places in enumerate(([0, 13, 13, 40], [0, 5, 20, 38])):
        results = []
        for function in (call, step):
            q, k, v = (random(40, h, D, seed=turn + i).requires_grad_() for i, h in enumerate((4, HK, HK)))
            slopes, sink = (torch.tensor([0.1, -0.2, 0.3, x], requires_grad=True) for x in (turn, 0.5))
            o, lse = function(q, k, v, torch.tensor(places, dtype=torch.int32), slopes, sink)
            loss = (o.float() * o.detach().float()).sum() + torch.where(lse.isinf(), 0, lse).sum()
            results.append((o, lse, *torch.autograd.grad(loss, (q, k, v, slopes, sink))))
        for x, y in zip(*results):
            torch.testing.assert_close(x.float(), y.float(), rtol=1e-2, atol=2e-3)
        assert not results[0][2][places[-1] :].any()
    assert counter.frame_count == 1


def test_training_of_packed_sequences_refuses_weights_without_gradients() -> None:
    q, cu = random(8, 2, D).requires_grad_(), torch.tensor([0, 8], dtype=torch.int32)
    with pytest.raises(CuirError, match="X109"):
        compile_counted(lambda q: varlen_attention(q, q, q, cu, cu, normalize="sigmoid", backend="interpret"))[0](q)


def make_nested(lengths: list[int], seed: int, gradient: bool) -> torch.Tensor:
    parts = [random(n, HK, 32, seed=seed + n) for n in lengths]
    return torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=gradient)


@pytest.mark.parametrize("gradient", [False, pytest.param(True, marks=pytest.mark.thorough("compiles a backward graph"))])
def test_nested_tensors_are_one_graph(gradient: bool) -> None:
    slopes = torch.tensor([0.1, -0.2], requires_grad=gradient)

    def step(x: Any) -> Any:
        x = x.transpose(1, 2)
        mask = create_nested_block_mask(lambda b, h, i, j: i >= j, None, None, x)
        return flex_attention(x, x, x, make_bias(slopes), mask, backend="interpret", verify="off")

    call, counter = compile_counted(step)
    for turn, lengths in enumerate(([5, 9], [3, 11])):
        results = []
        for function in (call, step):
            x = make_nested(lengths, turn, gradient)
            o = function(x)
            results.append([o.transpose(1, 2).values(), o.offsets()])
            if gradient:
                results[-1] += torch.autograd.grad(o.values().sum(), (x, slopes))
                results[-1][2] = results[-1][2].values()
        for y, z in zip(*results):
            torch.testing.assert_close(y, z, rtol=1e-2, atol=2e-3)
    assert counter.frame_count == 1


def test_nested_tensors_of_two_lengths_and_with_gaps() -> None:
    def attend(x: Any, y: Any, z: Any) -> Any:
        return flex_attention(*(t.transpose(1, 2) for t in (x, y, z)), backend="interpret", verify="off").transpose(1, 2).values()

    def gaps(values: Any) -> Any:
        x = torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, 6, 20]), lengths=torch.tensor([4, 9])).transpose(1, 2)
        return flex_attention(x, x, x, backend="interpret", verify="off").transpose(1, 2).values()

    x, y, z = make_nested([5, 9], 0, False), make_nested([4, 6], 1, False), make_nested([4, 6], 2, False)
    call, _ = compile_counted(attend)
    torch.testing.assert_close(call(x, y, z), attend(x, y, z))
    with pytest.raises(RuntimeError, match="key and value must be nested alike"):
        call(x, y, make_nested([5, 5], 2, False))
    values, inside = random(20, HK, 32), [*range(4), *range(6, 15)]
    torch.testing.assert_close(compile_counted(gaps)[0](values)[inside], gaps(values)[inside], rtol=1e-2, atol=2e-3)
    with pytest.raises(CuirError, match="U403"):
        compile_counted(attend)[0](x, random(1, 5, HK, 32), z)
    with pytest.raises(CuirError, match="U109"):
        compile_counted(attend)[0](*(torch.nested.nested_tensor([random(3, HK, 32).double()], layout=torch.jagged) for _ in range(3)))


@pytest.mark.parametrize(
    ("says", "call"),
    [
        ("U404", lambda q, x: attention_with_kv_cache(q, x.bfloat16(), x.bfloat16(), cache_seqlens=3, backend="interpret")),
        ("U408", lambda q, x: attention_with_kv_cache(q, x, x, cache_seqlens=17, backend="interpret")),
        ("U402", lambda q, x: attention_with_kv_cache(q, x, x, q, cache_seqlens=3, backend="interpret")),
        ("U408", lambda q, x: varlen_attention(q[0], x[0], x[0], TABLE[0], TABLE[0, :1], backend="interpret")),
    ],
)
def test_wrong_calls_are_told_when_the_graph_is_made(says: str, call: Callable[..., Any]) -> None:
    with pytest.raises(CuirError, match=says):
        compile_counted(call)[0](random(1, 1, 2, D), random(1, PAGE, 2, D))


def test_gradients_over_a_cache_are_refused_when_the_graph_is_made() -> None:
    q, x = random(1, 1, 2, D).requires_grad_(), random(1, PAGE, 2, D)
    with pytest.raises(CuirError, match="U410"):
        compile_counted(lambda q, x: attention_with_kv_cache(q, x, x, cache_seqlens=3, backend="interpret"))[0](q, x)
