"""Errors of a call inside of a graph are those of a call outside: of our type, with the same diagnostics, and without a word of PyTorch's."""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from cuir import attention_with_kv_cache, create_block_mask, flex_attention, varlen_attention
from cuir.text.diagnostics import CuirError

Q = torch.randn(1, 2, 32, 32, generator=torch.Generator().manual_seed(0))
BIAS = torch.zeros(2, 32)
PLACES = torch.tensor([0, 3], dtype=torch.int32)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def attend(**options: Any) -> Callable[[torch.Tensor], Any]:
    return lambda x: flex_attention(x, x, x, **{"backend": "interpret", "verify": "off", **options})


def short_mask() -> Any:
    return create_block_mask(lambda b, h, i, j: i >= j, None, None, 16, 32, device="cpu")


CALLS: dict[str, tuple[Callable[[torch.Tensor], Any], torch.Tensor]] = {
    "a head dim that is too large": (attend(), Q.new_zeros(1, 2, 32, 600)),
    "a dtype": (attend(), Q.double()),
    "a rank": (attend(), Q[0]),
    "no tensor": (lambda x: flex_attention(x, 3, x, backend="interpret"), Q),  # type: ignore[arg-type]
    "grouped heads": (lambda x: flex_attention(x, x[:, :1], x[:, :1], backend="interpret"), Q),
    "a device": (lambda x: flex_attention(x, x.to("meta"), x.to("meta"), backend="interpret"), Q),
    "a mask of other lengths": (attend(block_mask=short_mask()), Q),
    "a mask that is none": (attend(block_mask=3), Q),
    "a scale": (attend(scale=math.nan), Q),
    "a backend": (attend(backend="triton"), Q),
    "what is asked for": (attend(return_aux=3), Q),
    "weights without gradients": (attend(normalize="sigmoid"), Q.clone().requires_grad_()),
    "a sink": (attend(sink=torch.ones(3)), Q),
    "an operation in a mod": (attend(score_mod=lambda s, b, h, i, j: torch.linalg.det(s)), Q),
    "an index in a mod": (attend(score_mod=lambda s, b, h, i, j: s + BIAS[h, j + 1]), Q),
    "packed sequences": (lambda x: varlen_attention(x, x, x, PLACES, PLACES, backend="interpret"), Q),
    "places of sequences": (lambda x: varlen_attention(x[0], x[0], x[0], PLACES.float(), PLACES, backend="interpret"), Q.half()),
    "a cache": (lambda x: attention_with_kv_cache(x, x, x.float(), cache_seqlens=1, backend="interpret"), Q.half()),
}


def error_of(call: Callable[..., Any], *args: Any) -> CuirError:
    with pytest.raises(CuirError) as result:
        call(*args)
    return result.value


@pytest.mark.sweep(4)
@pytest.mark.parametrize(("call", "x"), CALLS.values(), ids=CALLS)
def test_an_error_is_the_same_inside_of_a_graph(call: Callable[..., Any], x: torch.Tensor) -> None:
    outside, inside = error_of(call, x), error_of(torch.compile(call, backend="eager", fullgraph=True), x)
    assert inside.diagnostics == outside.diagnostics and type(inside).__qualname__ == "CuirError"
    assert str(inside).startswith(str(outside)) and "PyTorch," not in str(inside) and "TORCH" not in str(inside)


@pytest.mark.parametrize(("backend", "fullgraph"), [("aot_eager", True), ("inductor", True), ("eager", False)])
def test_an_error_needs_no_certain_backend(backend: str, fullgraph: bool) -> None:
    for name in ("a dtype", "grouped heads", "an index in a mod"):
        call, x = CALLS[name]
        assert error_of(torch.compile(call, backend=backend, fullgraph=fullgraph), x).diagnostics == error_of(call, x).diagnostics


def test_an_error_names_the_line_that_was_traced_and_crosses_processes() -> None:
    error = error_of(torch.compile(lambda x: attend()(x.double()) + 1, backend="eager"), Q)
    assert f"{__file__}:" in str(error) and "note: torch.compile traced `return lambda x: flex_attention(" in str(error)
    repeated = pickle.loads(pickle.dumps(error))
    assert type(repeated) is CuirError and repeated.diagnostics == error.diagnostics


FROM_INSIDE: dict[str, tuple[Callable[[Any], Any], str, str]] = {
    "an index": (lambda table: lambda s, b, h, i, j: s + table[h, j + 1], "U416", "`table` has 32 elements along dim 1"),
    "a random number": (lambda table: lambda s, b, h, i, j: table[h, j] + torch.rand(()), "X120", "`rand` draws random numbers"),
    "no number": (lambda table: lambda s, b, h, i, j: s + table, "X123", r"found elements of shape \[2, 32\]"),
    "a branch": (
        lambda table: lambda s, b, h, i, j: s if table[h, j] > 0 else table[h, j],
        "X122",
        "cannot read a score_mod.*data-dependent branching",
    ),
    "arguments": (lambda table: lambda s, b: s + table[b, 0], "X122", "cannot read a score_mod.*Argument mismatch"),
}


@pytest.mark.sweep(4)
@pytest.mark.parametrize(("make", "code", "message"), FROM_INSIDE.values(), ids=FROM_INSIDE)
def test_an_error_of_a_mod_from_inside_is_ours_and_at_its_place(make: Callable[[Any], Any], code: str, message: str) -> None:
    def call(x: torch.Tensor) -> Any:
        table = BIAS * 1
        return flex_attention(x, x, x, make(table), backend="interpret", verify="off")

    error = error_of(torch.compile(call, backend="eager", fullgraph=True), Q)
    (result,) = error.diagnostics
    assert result.code == code and re.search(message, result.message)
    assert result.span is not None and result.span.source.name == __file__
    outside = error_of(call, Q).diagnostics[0]
    if code != "X122":
        assert outside.span is not None
        assert (result.message, result.span.line, result.hint) == (outside.message, outside.span.line, outside.hint)
    assert error_of(torch.compile(call, backend="eager"), Q).diagnostics[0].message in (outside.message, result.message)  # without a graph


def test_what_cannot_be_compared_is_refused_in_a_graph_alone() -> None:
    table = np.arange(4)
    call = attend(score_mod=lambda s, b, h, i, j: s + float(table[3]))
    call(Q)
    assert error_of(torch.compile(call, backend="eager", fullgraph=True), Q).diagnostics[0].code == "U418"


@pytest.mark.parametrize("transform", ["grad", "vmap", "jvp"])
def test_transforms_of_torch_func_are_refused(transform: str) -> None:
    """Also where the call was made before, without them."""
    of: dict[str, Callable[[torch.Tensor], Any]] = {
        "grad": torch.func.grad(lambda x: attend()(x).sum()),
        "vmap": lambda x: torch.vmap(attend())(x[None]),
        "jvp": lambda x: torch.func.jvp(attend(), (x,), (x,)),
    }
    attend()(Q)
    for call in (of[transform], torch.compile(of[transform], backend="eager", fullgraph=True)):
        assert "is within torch.func" in str(error_of(call, Q))


def test_forward_mode_and_jit_trace_are_refused() -> None:
    from torch.autograd import forward_ad

    attend()(Q)
    with forward_ad.dual_level():
        assert error_of(attend(), forward_ad.make_dual(Q, Q)).diagnostics[0].code == "U410"
        attend()(Q)
    with pytest.raises(CuirError, match=r"torch\.jit\.trace"):
        torch.jit.trace(attend(), (Q,))
