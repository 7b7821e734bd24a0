"""Tensors without numbers (fake, meta), tensors that wrap others, and dispatch modes: calls are operators of PyTorch there, and nothing is interpreted or compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.nn.attention.flex_attention import AuxRequest
from torch.utils.flop_counter import FlopCounterMode

from cuir import attention, attention_with_kv_cache, create_block_mask, flex_attention, varlen_attention
from cuir.attn.api import operator
from cuir.attn.kernels import attention_kernel
from cuir.text.diagnostics import CuirError

BIAS = torch.randn(2, 64, generator=torch.Generator().manual_seed(0))
CAUSAL = create_block_mask(lambda b, h, i, j: i >= j, None, None, 64, 64, device="cpu")
PLACES = [0, 5, 20]


def make_bias(bias: torch.Tensor) -> Callable[..., Any]:
    return lambda s, b, h, i, j: s + bias[h, j]


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel is made ready."""

    def run(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a kernel is made ready for tensors without numbers")

    monkeypatch.setattr(attention_kernel.Attention, "ready", run)


@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_call_and_its_gradients_have_shapes_alone(device: str) -> None:
    """Compute gradients of a call with data: of query, key, value and captured tensors, in the strides of query."""
    bias = BIAS.clone().requires_grad_()
    with FakeTensorMode() if device == "cpu" else torch.device("meta"):
        q = torch.randn(1, 64, 2, 32, dtype=torch.bfloat16, requires_grad=True)
        k = torch.randn(1, 2, 64, 32, dtype=torch.bfloat16, requires_grad=True)
        o, lse = flex_attention(q.transpose(1, 2), k, k, make_bias(bias), CAUSAL, return_lse=True)
        o.sum().backward()
    assert o.shape == (1, 2, 64, 32) and o.stride() == q.transpose(1, 2).stride() and o.dtype == torch.bfloat16 and o.device == q.device
    assert lse.shape == (1, 2, 64) and lse.dtype == torch.float32
    assert q.grad is not None and q.grad.shape == q.shape and k.grad is not None and k.grad.stride() == k.stride()
    if device == "cpu":
        assert all(isinstance(x, FakeTensor) for x in (o, lse, q.grad, k.grad))


@pytest.mark.usefixtures("idle")
def test_tensors_on_a_gpu_that_is_not_there() -> None:
    with FakeTensorMode():
        q = torch.randn(1, 2, 64, 32, device="cuda")
        o, aux = flex_attention(q, q, q, return_aux=AuxRequest(lse=True, max_scores=True))
    assert o.device.type == aux.lse.device.type == "cuda" and aux.max_scores.shape == (1, 2, 64)


@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize("gradient", [False, True])
def test_packed_and_nested_sequences_have_shapes_alone(gradient: bool) -> None:
    with FakeTensorMode(shape_env=ShapeEnv()):
        q = torch.randn(20, 2, 32, dtype=torch.float16, requires_grad=gradient)
        cu = torch.tensor(PLACES, dtype=torch.int32)
        o, lse = varlen_attention(q, q, q[:, :, :16], cu, cu, causal=True, return_lse=True)
        nested = torch.nested.nested_tensor_from_jagged(q, cu.long(), min_seqlen=5, max_seqlen=15).transpose(1, 2)
        of_nested = flex_attention(nested, nested, nested)
        if gradient:
            (o.sum() + of_nested.values().sum()).backward()
    assert o.shape == (20, 2, 16) and lse.shape == (2, 20) and of_nested.transpose(1, 2).values().shape == (20, 2, 32)
    assert not gradient or (q.grad is not None and q.grad.shape == q.shape)


@pytest.mark.usefixtures("idle")
def test_a_cache_and_the_explicit_form_have_shapes_alone() -> None:
    result = attention(lambda s, b, h, i, j: s * 2, head_dim=64)
    with FakeTensorMode():
        q, cache = torch.randn(2, 1, 4, 64).half(), torch.randn(2, 64, 2, 64).half()
        assert attention_with_kv_cache(q, cache, cache, q[:, :, :2], q[:, :, :2], cache_seqlens=3).shape == (2, 1, 4, 64)
        x = torch.randn(1, 2, 40, 64).half()
        assert result(x, x, x).shape == x.shape  # type: ignore[union-attr]
    on_meta = [torch.empty(20, 2, 32, device="meta").half(), torch.empty(3, device="meta", dtype=torch.int32)]
    assert varlen_attention(*on_meta[:1] * 3, *on_meta[1:] * 2).shape == (20, 2, 32)


@pytest.mark.usefixtures("idle")
def test_mods_that_nothing_compares_have_shapes_too() -> None:
    table = np.arange(3)
    with FakeTensorMode():
        q = torch.randn(1, 2, 64, 32)
        assert flex_attention(q, q, q, lambda s, b, h, i, j: s + float(table[2])).shape == q.shape


def test_errors_are_those_of_tensors_with_numbers() -> None:
    results = []
    for mode in (FakeTensorMode(), torch.device("cpu")):
        with mode, pytest.raises(CuirError) as error:
            q = torch.randn(1, 2, 64, 600)
            flex_attention(q, q, q)
        results.append(error.value.diagnostics)
    assert results[0] == results[1]


def test_fake_calls_leave_no_trace_in_calls_with_numbers() -> None:
    mod = make_bias(BIAS)
    q = torch.randn(1, 2, 64, 32, generator=torch.Generator().manual_seed(1))
    before = flex_attention(q, q, q, mod, CAUSAL, backend="interpret")
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(q)
        assert isinstance(flex_attention(fake, fake, fake, mod, CAUSAL, backend="interpret"), FakeTensor)
    torch.testing.assert_close(flex_attention(q, q, q, mod, CAUSAL, backend="interpret"), before, rtol=0, atol=0)
    traced = torch.compile(lambda x: flex_attention(x, x, x, mod, CAUSAL, backend="interpret"), backend="eager", fullgraph=True)
    torch.testing.assert_close(traced(q), before, rtol=0, atol=0)


def test_make_fx_and_modes_see_an_operator() -> None:
    q = torch.randn(1, 2, 64, 32, generator=torch.Generator().manual_seed(1))

    def call(x: torch.Tensor) -> Any:
        return flex_attention(x, x, x, make_bias(BIAS), CAUSAL, backend="interpret")

    graph = make_fx(call)(q)
    assert [n.target for n in graph.graph.nodes if "cuir" in str(n.target)] == [operator.OPERATOR]
    torch.testing.assert_close(graph(q * 2), call(q * 2))
    with FlopCounterMode(display=False):
        torch.testing.assert_close(call(q), graph(q))
    table = np.arange(3)
    with FlopCounterMode(display=False):  # what an operator cannot hold is called as outside of the mode
        assert flex_attention(q, q, q, lambda s, b, h, i, j: s + float(table[2]), backend="interpret").shape == q.shape


@pytest.mark.parametrize("compiled", [False, True])
def test_a_dtensor_is_refused_with_what_to_write(compiled: bool, tmp_path: Any) -> None:
    distributed = torch.distributed
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

        q = distribute_tensor(torch.randn(1, 2, 32, 32), init_device_mesh("cpu", (1,)), [Shard(1)])

        def call(x: torch.Tensor) -> Any:
            return flex_attention(x, x, x, backend="interpret")

        with pytest.raises(CuirError, match=r"U403.*found a DTensor\n.*x\.to_local\(\)"):
            (torch.compile(call, backend="eager", fullgraph=True) if compiled else call)(q)
    finally:
        distributed.destroy_process_group()


def test_a_handle_of_another_process_is_refused() -> None:
    q = torch.randn(1, 2, 64, 32)
    with pytest.raises(CuirError, match=r"U418.*this process has not met"):
        operator.OPERATOR(q, q, q, [], "cuir_0123456789abcdef", 0.1, False, "interpret", "off")


def test_handles_are_told_apart_by_what_mods_are() -> None:
    def within(size: int) -> Callable[..., Any]:
        return lambda b, h, i, j: i - j < size

    handles = [operator.register_mods(within(size), None) for size in (5, 6, 5)]
    assert handles[0] == handles[2] != handles[1]
