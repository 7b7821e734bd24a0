"""Writes between a call and its backward pass raise, and so do second derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._functorch import config
from torch.nn.attention.flex_attention import create_block_mask as create_theirs

import cuir
from cuir import CuirError, create_block_mask, flex_attention, varlen_attention
from cuir.spec import Specification

N, D = 48, 16
OPTIONS: dict[str, Any] = {"backend": "interpret", "verify": "off"}
Call = Callable[..., torch.Tensor]
DOCUMENTS, BIAS, SINK = torch.arange(N) // 8, torch.linspace(-1, 1, N), torch.zeros(1)
PLACES = torch.tensor([0, 20, N], dtype=torch.int32)


def same(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return DOCUMENTS[q_idx] == DOCUMENTS[kv_idx]


def biased(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score + BIAS[kv_idx]


MASK = create_block_mask(same, None, None, N, N, device="cpu")


def dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    o: torch.Tensor = flex_attention(q, k, v, biased, MASK, sink=SINK, **OPTIONS)
    return o


def attend_packed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    o: torch.Tensor = varlen_attention(
        *(x[0].transpose(0, 1) for x in (q, k, v)), PLACES, PLACES, score_mod=biased, block_mask=same, sink=SINK, **OPTIONS
    )
    return o.transpose(0, 1)[None]


def attend_nested(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    x = (torch.nested.nested_tensor_from_jagged(t[0].transpose(0, 1), PLACES).transpose(1, 2) for t in (q, k, v))
    o: torch.Tensor = flex_attention(*x, biased, MASK, sink=SINK, **OPTIONS).transpose(1, 2).values()
    return o.transpose(0, 1)[None]


def explicit() -> Call:
    attend = cuir.attention(Specification("same", same, biased, sink=SINK), head_dim=D, verify="off")
    return lambda q, k, v: attend(q, k, v, backend="interpret")  # type: ignore[return-value]


def compile_call(call: Call, backend: str) -> Call:
    return torch.compile(call, backend=backend, fullgraph=True)


CALLS: dict[str, Callable[[], Call]] = {
    "dense": lambda: dense,
    "packed": lambda: attend_packed,
    "nested": lambda: attend_nested,
    "explicit": explicit,
    "eager": lambda: compile_call(dense, "eager"),
    "aot_eager": lambda: compile_call(dense, "aot_eager"),
    "explicit, compiled": lambda: compile_call(explicit(), "eager"),
}


def inputs() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [x.half().requires_grad_() for x in torch.randn(3, 1, 1, N, D)]


def write_back(x: torch.Tensor) -> None:
    before = x.clone()
    x.add_(1)
    x.copy_(before)


WRITES: dict[str, Callable[[], object]] = {
    "of the mask": lambda: DOCUMENTS.copy_(torch.arange(N) // 8),
    "of the score": lambda: BIAS.add_(0.0),
    "of a sink": lambda: SINK.zero_(),
    "written back": lambda: write_back(DOCUMENTS),
    "through a view": lambda: DOCUMENTS[3:5].add_(0),
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", CALLS)
def test_a_captured_tensor_that_was_written_to_raises_as_with_pytorch(name: str) -> None:
    call, x = CALLS[name](), inputs()
    for write in (None, *WRITES.values()) if name == "dense" else (None, WRITES["of the mask"], WRITES["of a sink"]):
        o = call(*x)
        if write is None:
            assert all(g.isfinite().all() for g in torch.autograd.grad(o.float().square().sum(), x))
            continue
        write()
        with pytest.raises(RuntimeError, match=r"modified by an inplace operation.*at version \d+; expected version \d+ instead"):
            torch.autograd.grad(o.float().square().sum(), x)


def test_the_message_says_which_tensor_by_its_own_name() -> None:
    S = torch.zeros(N)  # a name of the kernel, where it has another one
    x = inputs()
    o = flex_attention(*x, lambda s, b, h, q, k: s + S[k], **OPTIONS)
    S.add_(1)
    with pytest.raises(RuntimeError, match=r"(?s)U421.*`S`, a captured tensor.*S = S\.clone\(\)"):
        o.float().sum().backward()  # type: ignore[union-attr]


def test_what_pytorch_does_not_count_is_not_counted() -> None:
    """A read, other tensors, a second backward pass, and a tensor made under inference mode."""
    x = inputs()
    o = dense(*x)
    DOCUMENTS.view(2, -1).sum()
    first = torch.autograd.grad(o.float().square().sum(), x, retain_graph=True)
    assert all(torch.equal(a, b) for a, b in zip(first, torch.autograd.grad(o.float().square().sum(), x), strict=True))
    with torch.inference_mode():
        ids = torch.arange(N) // 8
    mask = create_block_mask(lambda b, h, i, j: ids[i] == ids[j], None, None, N, N, device="cpu")
    o = flex_attention(*x, biased, mask, sink=SINK, **OPTIONS)
    assert all(torch.equal(a, b) for a, b in zip(first, torch.autograd.grad(o.float().square().sum(), x), strict=True))


@pytest.mark.parametrize(
    "call", [attend_packed, pytest.param(attend_nested, marks=pytest.mark.thorough("nested tensors are packed ones behind their offsets"))]
)
def test_offsets_and_blocks_may_be_written_to_as_a_call_keeps_what_it_made_of_them(call: Call) -> None:
    x = inputs()
    first = torch.autograd.grad(call(*x).float().square().sum(), x)
    o = call(*x)
    PLACES[1] = 40
    repeated = torch.autograd.grad(o.float().square().sum(), x)
    PLACES[1] = 20
    assert all(torch.equal(a, b) for a, b in zip(first, repeated, strict=True))
    mask = create_theirs(same, None, None, N, N, device="cpu", BLOCK_SIZE=16)
    mask.kv_num_blocks[..., 0] = 0
    o = flex_attention(*x, None, mask, **OPTIONS)
    first = torch.autograd.grad(o.float().square().sum(), x, retain_graph=True)
    mask.kv_num_blocks.zero_()
    assert all(torch.equal(a, b) for a, b in zip(first, torch.autograd.grad(o.float().square().sum(), x), strict=True))


# ---- second derivatives
@pytest.mark.sweep
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("needs", [(True, False, False), (True, True, True)], ids=["query", "all"])
@config.patch(donated_buffer=False)  # with which PyTorch itself refuses create_graph
def test_a_gradient_is_given_under_create_graph_and_not_differentiated(name: str, needs: tuple[bool, ...]) -> None:
    call, x = CALLS[name](), inputs()
    for t, need in zip(x, needs, strict=True):
        t.requires_grad_(need)
    learned = [t for t, need in zip(x, needs, strict=True) if need]
    o = call(*x)
    plain = torch.autograd.grad(o.float().square().sum(), learned, retain_graph=True)
    first = torch.autograd.grad(o.float().square().sum(), learned, create_graph=True)
    assert all(torch.equal(a, b.detach()) for a, b in zip(plain, first, strict=True))
    with pytest.raises(RuntimeError):
        torch.autograd.grad(o.float().sum() + first[0].float().square().sum(), x[0])


def test_a_penalty_of_what_lies_before_raises_whatever_it_is_differentiated_by() -> None:
    layer, x = torch.nn.Linear(D, 3 * D), torch.randn(1, 1, N, D, requires_grad=True)
    table, sink = torch.zeros(N, requires_grad=True), torch.zeros(1, requires_grad=True)
    q, k, v = layer(x).chunk(3, -1)
    o = flex_attention(q, k, v, lambda s, b, h, i, j: s + table[j].tanh(), sink=sink, **OPTIONS)
    gradients = torch.autograd.grad(o.square().sum(), (x, table, sink), create_graph=True)  # type: ignore[union-attr]
    for of in gradients:
        for by in (x, table, sink, layer.weight):
            with pytest.raises(RuntimeError, match=r"U410.*no second derivatives"):
                torch.autograd.grad(of.square().sum(), by, retain_graph=True)
    (constant,) = torch.autograd.grad((o.detach() * x).sum(), x, create_graph=True)
    assert not constant.requires_grad


def test_an_optimizer_that_steps_before_the_backward_pass_is_told_which_tensor_it_wrote() -> None:
    table = torch.zeros(N, requires_grad=True)
    o = flex_attention(*inputs(), lambda s, b, h, q, k: s + table[k], **OPTIONS)
    with torch.no_grad():
        table.add_(1)
    with pytest.raises(RuntimeError, match=r"U421.*`table`.*at version 1; expected version 0"):
        o.float().sum().backward()  # type: ignore[union-attr]


def test_gradients_of_a_batch_of_outputs_at_once_are_refused() -> None:
    q, k, v = (torch.randn(1, 2, 20, 16, requires_grad=True) for _ in range(3))
    o = flex_attention(q, k, v, backend="interpret")
    with pytest.raises(CuirError, match=r"U403.*a batch of outputs at once"):
        torch.autograd.grad(o, [q], torch.randn(3, 1, 2, 20, 16), is_grads_batched=True)
