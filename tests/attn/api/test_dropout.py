"""Calls with dropout in the interpreter: against the replayed mask in float64, with gradients, whatever else a call asks for; seeds, compiled graphs, checkpoints; refusals."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import checkpoint

import cuir
from cuir import (
    CuirError,
    Dropout,
    Lengths,
    Specification,
    create_block_mask,
    draw_dropout_seed,
    dropout_mask,
    flex_attention,
    varlen_attention,
)
from cuir.attn.api import dense_calls
from cuir.flex import AuxRequest
from cuir.interp import run
from cuir.spec.gradients import forward

Mod = Callable[..., Any] | None
M = 70
DOCUMENTS = torch.arange(200) // 23
SEED = torch.tensor([2024, -7], dtype=torch.int32)
OPTIONS: dict[str, Any] = {"backend": "interpret", "verify": "off", "enable_gqa": True}
BOUNDS = {torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float32: 3e-6}


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def documents(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (DOCUMENTS[q] == DOCUMENTS[k]) & (q >= k)


def capped(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return 5.0 * torch.tanh(s / 5.0)


def tensors(
    dtype: torch.dtype = torch.float16, D: int = 64, DV: int | None = None, m: int = M, n: int = M, batch: int = 2
) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(D + m)
    shapes = (batch, 4, m, D), (batch, 2, n, D), (batch, 2, n, DV or D)
    return [torch.randn(shape, generator=g).to(dtype).requires_grad_() for shape in shapes]


def make_mask(mask_mod: Mod, m: int = M, n: int = M) -> Any:
    return None if mask_mod is None else create_block_mask(mask_mod, None, None, m, n, device="cpu")


def reference(
    spec: Specification, inputs: list[torch.Tensor], p: float, do: torch.Tensor, seed: torch.Tensor = SEED
) -> tuple[torch.Tensor, ...]:
    """O and gradients in float64 with the mask that `dropout_mask` gives."""
    exact = [x.detach().double().requires_grad_() for x in inputs]
    o, _ = forward(replace(spec, dropout=Dropout(p, seed)), *exact, inputs[0].shape[3] ** -0.5)
    return o.detach(), *torch.autograd.grad(o, exact, do.double())


def close(actual: Any, expected: Any, bound: float) -> None:
    for x, y in zip(actual, expected, strict=True):
        assert x.shape == y.shape and (x.double() - y).norm() <= bound * y.norm()


def code_of(error: Any) -> str:
    return str(error.value.diagnostics[0].code)


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize(("mask", "score"), [(None, None), (causal, capped), (documents, None)])
def test_outputs_and_gradients(mask: Mod, score: Mod, dtype: torch.dtype) -> None:
    inputs = tensors(dtype)
    o = flex_attention(*inputs, score, make_mask(mask), dropout_p=0.2, dropout_seed=SEED, **OPTIONS)
    do = torch.randn(o.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    result = o.detach(), *torch.autograd.grad(o, inputs, do)
    close(result, reference(Specification("wanted", mask, score), inputs, 0.2, do), BOUNDS[dtype])


@pytest.mark.sweep(4)
@pytest.mark.parametrize(("D", "DV", "m", "n"), [(192, 192, 40, 70), (64, 32, 33, 150), (128, 128, 130, 20)])
def test_other_sizes(D: int, DV: int, m: int, n: int) -> None:
    inputs = tensors(D=D, DV=DV, m=m, n=n)
    o = flex_attention(*inputs, dropout_p=0.4, dropout_seed=SEED, **OPTIONS)
    do = torch.randn(o.shape, generator=torch.Generator().manual_seed(1)).half()
    result = o.detach(), *torch.autograd.grad(o, inputs, do)
    close(result, reference(Specification("wanted"), inputs, 0.4, do), 1e-3)


def test_the_formula_in_plain_pytorch() -> None:
    """A user's own check: the mask is a tensor, and LSE is that of all weights."""
    q, k, v = (x.detach() for x in tensors())
    seed = draw_dropout_seed("cpu")
    o, lse = flex_attention(q, k, v, block_mask=make_mask(causal), return_lse=True, dropout_p=0.3, dropout_seed=seed, **OPTIONS)
    k, v = (x.repeat_interleave(2, 1).double() for x in (k, v))
    scores = (q.double() @ k.mT / 8).masked_fill(~torch.ones(M, M).tril().bool(), -math.inf)
    retained = dropout_mask(seed, 0.3, 2, 4, M, M)
    assert 0.65 < retained.double().mean() < 0.75
    close([o], [(scores.softmax(-1) * retained / 0.7) @ v], 1e-3)
    assert torch.allclose(lse.double(), scores.logsumexp(-1), atol=1e-5)
    plain = flex_attention(q, k[:, ::2].half(), v[:, ::2].half(), block_mask=make_mask(causal), return_lse=True, **OPTIONS)[1]
    assert torch.allclose(lse, plain, atol=1e-6)


def test_what_mods_have_learned() -> None:
    seeded = torch.Generator().manual_seed(2)
    table, sink = (torch.randn(shape, generator=seeded).requires_grad_() for shape in ((4, 2 * M), (4,)))
    inputs = tensors()

    def biased(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s + table[h, q - k + M]

    leaves = [*inputs, table, sink]
    o = flex_attention(*inputs, biased, make_mask(causal), sink=sink, dropout_p=0.2, dropout_seed=SEED, **OPTIONS)
    do = torch.randn(o.shape, generator=torch.Generator().manual_seed(1)).half()
    actual = torch.autograd.grad(o, leaves, do)
    exact = [x.detach().double().requires_grad_() for x in leaves]
    scores = exact[0] @ exact[1].repeat_interleave(2, 1).mT / 8
    place = torch.arange(M)[:, None] - torch.arange(M) + M
    scores = (scores + exact[3][:, place]).masked_fill(place < M, -math.inf)
    weights = torch.cat([scores, exact[4].view(1, 4, 1, 1).expand(2, 4, M, 1)], -1).softmax(-1)[..., :-1]
    expected = (weights * dropout_mask(SEED, 0.2, 2, 4, M, M) / 0.8) @ exact[2].repeat_interleave(2, 1)
    close(actual, torch.autograd.grad(expected, exact, do.double()), 1e-3)


def test_gradients_of_lse() -> None:
    inputs = tensors()
    o, lse = flex_attention(*inputs, return_lse=True, dropout_p=0.2, dropout_seed=SEED, **OPTIONS)
    do, dlse = torch.randn(o.shape).half(), torch.randn(lse.shape)
    actual = torch.autograd.grad((o, lse), inputs, (do, dlse))
    exact = [x.detach().double().requires_grad_() for x in inputs]
    scores = exact[0] @ exact[1].repeat_interleave(2, 1).mT / 8
    expected = (scores.softmax(-1) * dropout_mask(SEED, 0.2, 2, 4, M, M) / 0.8) @ exact[2].repeat_interleave(2, 1)
    close(actual, torch.autograd.grad((expected, scores.logsumexp(-1)), exact, (do.double(), dlse.double())), 1e-3)


@pytest.mark.parametrize("requests", ["q", "kv", "v"])
def test_some_gradients(requests: str) -> None:
    inputs = [x.requires_grad_(n in requests) for n, x in zip("qkv", tensors(), strict=True)]
    o = flex_attention(*inputs, block_mask=make_mask(causal), dropout_p=0.2, dropout_seed=SEED, **OPTIONS)
    do = torch.randn(o.shape, generator=torch.Generator().manual_seed(1)).half()
    expected = dict(zip("oqkv", reference(Specification("wanted", causal), inputs, 0.2, do), strict=True))
    close(torch.autograd.grad(o, [x for x in inputs if x.requires_grad], do), [expected[n] for n in requests], 1e-3)


def test_deterministic() -> None:
    inputs = tensors()
    torch.use_deterministic_algorithms(True)
    try:
        o = flex_attention(*inputs, block_mask=make_mask(causal), dropout_p=0.2, dropout_seed=SEED, **OPTIONS)
        do = torch.randn(o.shape, generator=torch.Generator().manual_seed(1)).half()
        result = torch.autograd.grad(o, inputs, do)
    finally:
        torch.use_deterministic_algorithms(False)
    close(result, reference(Specification("wanted", causal), inputs, 0.2, do)[1:], 1e-3)


def test_other_outputs_and_weights() -> None:
    q, k, v = (x.detach() for x in tensors())
    o, aux = flex_attention(q, k, v, return_aux=AuxRequest(lse=True, max_scores=True), dropout_p=0.2, dropout_seed=SEED, **OPTIONS)
    plain = flex_attention(q, k, v, return_aux=AuxRequest(lse=True, max_scores=True), **OPTIONS)[1]
    assert torch.equal(aux.max_scores, plain.max_scores) and torch.equal(aux.lse, plain.lse)
    spec = Specification("wanted", causal, normalize="sigmoid", dropout=Dropout(0.2, SEED))
    result = flex_attention(q, k, v, block_mask=make_mask(causal), normalize="sigmoid", dropout_p=0.2, dropout_seed=SEED, **OPTIONS)
    close(
        [o, result],
        [replace(spec, normalize="softmax", mask_mod=None).reference(q, k, v, 0.125)[0], spec.reference(q, k, v, 0.125)[0]],
        1e-3,
    )


def test_few_queries_and_keys_of_all_batches() -> None:
    """Queries of the shape of decoding, whose own kernel has no dropout, run on the ordinary one."""
    q, k, v = (x.detach() for x in tensors(m=1, n=300))
    for keys, values in ((k, v), (k[:1], v[:1])):
        actual = flex_attention(q, keys, values, dropout_p=0.5, dropout_seed=SEED, **OPTIONS)
        expected = Specification("wanted", dropout=Dropout(0.5, SEED)).reference(q, keys.expand_as(k), values.expand_as(v), 0.125)[0]
        close([actual], [expected], 1e-3)


def test_no_dropout_is_the_ordinary_call() -> None:
    """The same bits, and nothing is drawn from the generator."""
    q, k, v = (x.detach() for x in tensors())
    expected = flex_attention(q, k, v, block_mask=make_mask(causal), **OPTIONS)
    state = torch.get_rng_state()
    for options in ({"dropout_p": 0.0}, {"dropout_p": 0}, {"dropout_p": 0.0, "dropout_seed": SEED}):
        assert torch.equal(flex_attention(q, k, v, block_mask=make_mask(causal), **options, **OPTIONS), expected)
    assert torch.equal(torch.get_rng_state(), state)


def test_everything_dropped_gives_zeros() -> None:
    inputs = tensors()
    o = flex_attention(*inputs, dropout_p=1.0, **OPTIONS)
    assert not o.any() and not any(g.any() for g in torch.autograd.grad(o, inputs, torch.ones_like(o)))


def test_seeds_are_drawn_as_pytorch_draws() -> None:
    """Two calls draw other seeds of the default generator; torch.manual_seed, or a drawn seed, repeats a call."""
    q, k, v = (x.detach() for x in tensors())

    def call(**options: Any) -> Any:
        return flex_attention(q, k, v, dropout_p=0.5, **options, **OPTIONS)

    torch.manual_seed(3)
    first, second = call(), call()
    torch.manual_seed(3)
    assert not torch.equal(first, second) and torch.equal(call(), first) and torch.equal(call(), second)
    torch.manual_seed(3)
    seed = draw_dropout_seed("cpu")
    assert torch.equal(call(dropout_seed=seed), first) and torch.equal(call(dropout_seed=seed), first)


def test_other_probabilities_and_seeds_share_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (x.detach() for x in tensors())
    block_mask = make_mask(causal)
    flex_attention(q, k, v, block_mask=block_mask, dropout_p=0.5, **OPTIONS)
    monkeypatch.setattr(dense_calls, "prepare", lambda *_, **__: pytest.fail("prepared again"))
    for p in (0.1, 0.2, 0.5):
        result = flex_attention(q, k, v, block_mask=block_mask, dropout_p=p, dropout_seed=SEED, **OPTIONS)
        close([result], [Specification("wanted", causal, dropout=Dropout(p, SEED)).reference(q, k, v, 0.125)[0]], 1e-3)


def test_a_seed_that_is_written_to_before_the_backward_pass() -> None:
    inputs, seed = tensors(), SEED.clone()
    o = flex_attention(*inputs, dropout_p=0.5, dropout_seed=seed, **OPTIONS)
    seed.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        o.sum().backward()


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed(reentrant: bool) -> None:
    inputs = tensors()

    def attend(*qkv: torch.Tensor) -> torch.Tensor:
        o = flex_attention(*qkv, block_mask=make_mask(causal), dropout_p=0.5, **OPTIONS)
        assert isinstance(o, torch.Tensor)
        return o

    results = []
    for call in (attend, lambda *qkv: checkpoint(attend, *qkv, use_reentrant=reentrant)):
        torch.manual_seed(5)
        leaves = [x.detach().requires_grad_() for x in inputs]
        o = call(*leaves)
        o.sum().backward()
        results.append((o, *(x.grad for x in leaves)))
    assert all(torch.equal(x, y) for x, y in zip(*results, strict=True))


@pytest.mark.thorough
def test_compiled() -> None:
    """No graph break and one graph for all seeds; the draws are those of the call outside of it. Mods from outside, made inside, and masks obeyed as they stand."""
    inputs, size = tensors(), 30
    lists = make_mask(documents)

    def attend(*qkv: torch.Tensor) -> torch.Tensor:
        def window(b: Any, h: Any, q: Any, k: Any) -> Any:
            return (q - k <= size) & (q >= k)

        o = flex_attention(*qkv, capped, make_mask(window), dropout_p=0.5, **OPTIONS)
        return flex_attention(o, *qkv[1:], block_mask=lists, dropout_p=0.25, **OPTIONS)  # type: ignore[no-any-return]

    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(attend, backend=counter, fullgraph=True)
    outputs = []
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        expected = attend(*inputs)
        torch.manual_seed(seed)
        actual = compiled(*inputs)
        assert torch.equal(actual, expected)
        ours, eager = (torch.autograd.grad(o.float().square().sum(), inputs) for o in (actual, expected))
        close(ours, [x.double() for x in eager], 1e-3)
        outputs.append(actual)
    assert torch.equal(outputs[0], outputs[2]) and not torch.equal(outputs[0], outputs[1])
    assert counter.frame_count == 1


def test_probabilities_of_a_compiled_function() -> None:
    """A graph for each, whatever torch.compile takes for dynamic; NumPy's numbers are numbers."""
    q, k, v = (x.detach() for x in tensors())

    def attend(p: Any) -> Any:
        return flex_attention(q, k, v, dropout_p=p, dropout_seed=SEED, **OPTIONS)

    compiled = torch.compile(attend, backend="eager", fullgraph=True)
    for p in (0.1, 0.2, 0.3, 0, 1):
        assert torch.equal(compiled(p), attend(p))
    assert torch.equal(attend(np.float32(0.5)), attend(0.5))


def test_an_attention_of_a_specification() -> None:
    own_attention = cuir.attention(Specification("causal", causal, dropout=Dropout(0.4)), head_dim=64, verify="off")
    inputs = tensors()

    def attend(*qkv: torch.Tensor) -> torch.Tensor:
        return own_attention(*qkv, backend="interpret")  # type: ignore[return-value]

    for call in (attend, attend, torch.compile(attend, backend="aot_eager", fullgraph=True)):
        torch.manual_seed(9)
        o = call(*inputs)
        do = torch.ones_like(o)
        torch.manual_seed(9)
        expected = reference(Specification("wanted", causal), inputs, 0.4, do, draw_dropout_seed("cpu"))
        close((o.detach(), *torch.autograd.grad(o, inputs, do)), expected, 1e-3)


@pytest.mark.thorough
def test_packed_sequences() -> None:
    """The mask of one long sequence, the same with and without gradients."""
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(60, h, 64, generator=g).half().requires_grad_() for h in (4, 2, 2))
    starts = torch.tensor([0, 25, 25, 60], dtype=torch.int32)
    ids = torch.arange(60) // 25 * (torch.arange(60) < 50) + (torch.arange(60) >= 50)
    options = {"causal": True, "dropout_p": 0.3, "dropout_seed": SEED, **OPTIONS}
    o = varlen_attention(q, k, v, starts, starts, **options)
    with torch.no_grad():
        assert torch.equal(varlen_attention(q, k, v, starts, starts, **options), o)
    spec = Specification("wanted", lambda b, h, i, j: (ids[i] == ids[j]) & (i >= j))
    inputs = [x.transpose(0, 1)[None] for x in (q, k, v)]
    do = torch.randn(o.shape, generator=g).half()
    expected = reference(spec, inputs, 0.3, do.transpose(0, 1)[None])
    actual = o.detach(), *torch.autograd.grad(o, (q, k, v), do)
    close([x.transpose(0, 1)[None] for x in actual], expected, 1e-3)
    offsets = torch.tensor([0, 25, 60])
    nested = [torch.nested.nested_tensor_from_jagged(x.detach(), offsets).transpose(1, 2) for x in (q, k, v)]
    causal_nested = flex_attention(
        *nested, block_mask=cuir.flex.create_nested_block_mask(causal, 1, None, nested[0]), dropout_p=0.3, dropout_seed=SEED, **OPTIONS
    )
    assert torch.equal(causal_nested.transpose(1, 2).values(), o)
    compiled = torch.compile(varlen_attention, backend="eager", fullgraph=True)(q, k, v, starts, starts, **options)
    assert torch.equal(compiled, o)
    for x, y in zip(torch.autograd.grad(compiled, (q, k, v), do), actual[1:], strict=True):
        torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ({"dropout_p": -0.1}, "U413", "from 0 to 1"),
        ({"dropout_p": 1.5}, "U413", "from 0 to 1"),
        ({"dropout_p": math.nan}, "U413", "from 0 to 1"),
        ({"dropout_p": True}, "U413", "probability"),
        ({"dropout_p": "0.1"}, "U413", "probability"),
        ({"dropout_p": torch.tensor(0.1)}, "U413", "dropout_p.item()"),
        ({"dropout_p": 0.1, "dropout_seed": 17}, "U413", "draw_dropout_seed"),
        ({"dropout_seed": torch.zeros(2)}, "U413", r"int32 \[2\]"),
        ({"dropout_p": 0.1, "dropout_seed": torch.zeros(3, dtype=torch.int32)}, "U413", r"found int32 \[3\]"),
        ({"dropout_p": 0.1, "dropout_seed": torch.zeros(2, dtype=torch.int32, device="meta")}, "U407", "device of `query`"),
    ],
)
def test_refused(options: dict[str, Any], code: str, message: str) -> None:
    with pytest.raises(CuirError, match=message) as caught:
        flex_attention(*tensors(), **options, **OPTIONS)
    assert code_of(caught) == code


def test_gradients_of_other_weights_are_refused() -> None:
    with pytest.raises(CuirError) as caught:
        flex_attention(*tensors(), normalize="relu", dropout_p=0.1, **OPTIONS)
    assert code_of(caught) == "X109"


def test_a_seed_of_lengths_is_not_the_seed_of_calls() -> None:
    """Verification draws nothing from the generator."""
    state = torch.get_rng_state()
    Dropout().seed_for(Lengths(1, 1, 1, 5, 5))
    assert torch.equal(torch.get_rng_state(), state)


def test_a_compiled_kernel_is_called_again_with_other_seeds() -> None:
    """The launch of a probability is repeated, the seed among the tensors that are others each time. The kernel is the interpreter's, called as a compiled one is."""
    result: list[str] = []
    ours = cuir.attention(Specification("causal", causal, dropout=Dropout(0.4)), head_dim=64, verify="off")
    q, k, v = (x.detach() for x in tensors())
    ready = ours.ready(q, k, v, None, "interpret")
    kernel = Repeating(ready.checked, result)
    ready = replace(ready, kernel=kernel)  # type: ignore[arg-type]
    for turn, p in enumerate((0.2, 0.2, 0.6, 0.2, 0.6)):
        seed = torch.tensor([turn, 8], dtype=torch.int32)
        o, _ = ready.with_dropout((p, seed))(q, k, v)
        close([o], [Specification("wanted", causal, dropout=Dropout(p, seed)).reference(q, k, v, 0.125)[0]], 1e-3)
    assert result == ["called", "again", "called", "again", "again"]


class Repeating:
    """A compiled kernel to its caller."""

    def __init__(self, checked: Any, calls: list[str]):
        self.checked, self.calls = checked, calls

    def launch(self, arguments: dict[str, Any]) -> tuple[torch.Tensor, ...]:
        self.calls.append("called")
        lse = torch.empty(arguments["O"].shape[:-1])
        run(self.checked, {**arguments, "LSE": lse}, budget=math.inf)
        return arguments["O"], lse

    def make_replay(self, varying: dict[str, torch.Tensor], arguments: dict[str, Any]) -> Any:
        constant = {n: x for n, x in arguments.items() if n not in varying and n != "O"}
        calls = self.calls

        class Replay:
            def of(self, tensors: tuple[torch.Tensor, ...], captured: bool) -> tuple[torch.Tensor, ...]:
                calls.append("again")
                o, lse = torch.empty_like(arguments["O"]), torch.empty(arguments["O"].shape[:-1])
                run(checked, {**constant, **dict(zip(varying, tensors, strict=True)), "O": o, "LSE": lse}, budget=math.inf)
                return o, lse

        checked = self.checked
        return Replay()
