"""flex_attention and attention with weights that are no softmax, and with sinks.

`return_aux`: LSE and the largest score of each query, as PyTorch's flex_attention gives them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops.flex_attention import math_attention
from torch.nn.attention import flex_attention as torch_flex
from torch.nn.attention.flex_attention import AuxRequest

import corpus
import cuir
from cuir import attention, check, create_block_mask, flex_attention, parse, transfer
from cuir.attn.api import prepared_calls
from cuir.attn.splicing.specification_copies import bound_reads
from cuir.spec.specification import Lengths, Specification
from cuir.syntax.types import F16
from cuir.text.diagnostics import CuirError
from cuir.verification import Case, check_numbers

Q, K, V = (torch.randn(1, heads, 70, 64, generator=torch.Generator().manual_seed(i)).half() for i, heads in enumerate((4, 2, 2)))


def causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return kv_idx <= q_idx


MASK = create_block_mask(causal, None, None, 70, 70, device="cpu")


def run(**options: Any) -> torch.Tensor:
    result = flex_attention(Q, K, V, block_mask=MASK, enable_gqa=True, backend="interpret", **options)
    assert isinstance(result, torch.Tensor)
    return result


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    "options", [{"normalize": "sigmoid"}, {"normalize": "relu"}, {"sink": torch.tensor([0.0, 1.0, 2.0, 3.0])}, {"sink": 1.5}]
)
def test_a_call_computes_what_the_specification_says(options: dict[str, Any]) -> None:
    spec = Specification("spec", causal, **options)
    expected = spec.reference(Q, K, V, 0.125)[0]
    for _ in range(2):
        assert (run(**options) - expected).norm() <= 6e-4 * expected.norm()
    explicit = cuir.attention(spec, head_dim=64)
    assert torch.equal(explicit(Q, K, V, backend="interpret"), run(**options))  # type: ignore[arg-type]


def test_calls_are_told_apart_by_their_weights() -> None:
    results = [
        run(),
        run(normalize="sigmoid"),
        run(normalize="relu"),
        run(sink=1.0),
        run(sink=torch.ones(4)),
        run(sink=torch.zeros(4)),
        run(),
    ]
    same = [(i, j) for i in range(7) for j in range(i) if torch.equal(results[i], results[j])]
    assert same == [(4, 3), (6, 0)]


def test_sinks_of_few_heads_are_verified() -> None:
    """With more heads than the sink has, as it would be with zeros behind it; so is a table that a mod reads for its head."""
    slopes = torch.tensor([0.5, 0.25])
    expert = parse(corpus.kernels()["flash_fwd_sm90"].read_text(encoding="utf-8"))
    for spec in (
        Specification("sink", causal, sink=slopes),
        Specification("slopes", causal, lambda s, b, h, q, k: s + slopes[h] * (k - q)),
    ):
        program = transfer(expert, spec).program
        checked = check(program, None, {"T": F16, "D": 64, "BM": 64, "BN": 64})
        assert check_numbers(program, checked, bound_reads(spec), Case("six heads", Lengths(1, 6, 2, 40, 70))).lse < 1e-5


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"sink": torch.zeros(3)}, "U408"),
        ({"sink": torch.zeros(8)}, "U408"),
        ({"normalize": "sigmoid", "sink": 1.0}, "X103"),
        ({"normalize": "max"}, "X103"),
    ],
)
def test_refusals(options: dict[str, Any], code: str) -> None:
    with pytest.raises(CuirError) as caught:
        run(**options)
    assert caught.value.diagnostics[0].code == code


M, N, D = 90, 200, 64
Mod = Callable[..., Any]
TABLE = torch.arange(N) // 40


def documents(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (TABLE[q] == TABLE[k]) & (q < 80)


def late(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k + 20


def capped(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return 20 * torch.tanh(s / 20) + h


def hidden(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return torch.where(k % 3 == 0, s, -float("inf"))


def tensors(spread: float = 1.0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, 2, n, D, generator=g).half() for n in (M, N, N))
    return q, (k * torch.linspace(0.1, spread, N)[:, None]).half(), v


@pytest.mark.sweep
@pytest.mark.parametrize("score", [None, capped, hidden], ids=["plain", "capped", "hidden"])
@pytest.mark.parametrize("mod", [None, documents, late], ids=["all", "documents", "late"])
@pytest.mark.parametrize("spread", [1.0, 30.0])
def test_as_pytorch_gives_them(score: Mod | None, mod: Mod | None, spread: float) -> None:
    q, k, v = tensors(spread)
    mask = create_block_mask(mod, None, None, M, N, "cpu") if mod else None
    whole = mask if mask is not None else create_block_mask(torch_flex.noop_mask, None, None, M, N, "cpu")
    floats = (x.float() for x in (q, k, v))
    _, lse, most = math_attention(
        *floats, score or torch_flex._identity, whole.as_tuple(), D**-0.5, {}
    )  # in powers of 2, as PyTorch's kernels give them
    o, aux = flex_attention(q, k, v, score, mask, return_aux=AuxRequest(lse=True, max_scores=True), backend="interpret")
    assert aux.max_scores.dtype == most.dtype == torch.float32 and aux.max_scores.shape == (2, 2, M)
    torch.testing.assert_close(aux.max_scores, most * math.log(2), atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(aux.lse, lse * math.log(2), atol=2e-3, rtol=1e-4)
    assert torch.equal(o, flex_attention(q, k, v, score, mask, backend="interpret"))


def test_what_is_not_asked_for_is_not_given() -> None:
    q, k, v = tensors()
    for lse in (False, True):
        for most in (False, True):
            prepared_calls._ATTENTIONS.clear()
            prepared_calls._WARM.clear()
            _, aux = flex_attention(q, k, v, return_aux=AuxRequest(lse=lse, max_scores=most), backend="interpret")
            assert (aux.lse is not None, aux.max_scores is not None) == (lse, most)
            assert ["MAX_SCORES" in kernel.transferred.text for kernel in prepared_calls._ATTENTIONS.values()] == [most]
    with pytest.raises(CuirError, match=r"U413.*return_lse"):
        flex_attention(q, k, v, return_lse=True, return_aux=AuxRequest(lse=True), backend="interpret")


def test_beside_other_weights() -> None:
    q, k, v = tensors()
    for options in ({"normalize": "relu"}, {"normalize": "sigmoid"}, {"sink": torch.ones(2)}):
        spec = Specification("wanted", late, capped, **options)  # type: ignore[arg-type]
        mask = create_block_mask(late, None, None, M, N, "cpu")
        _, aux = flex_attention(q, k, v, capped, mask, return_aux=AuxRequest(max_scores=True), backend="interpret", **options)  # type: ignore[call-overload]
        torch.testing.assert_close(aux.max_scores.double(), spec.most(q, k, D**-0.5), atol=1e-4, rtol=1e-5)


def test_warm_calls_tell_the_two_apart() -> None:
    q, k, v = tensors()
    mask = create_block_mask(documents, None, None, M, N, "cpu")
    first = flex_attention(q, k, v, None, mask, return_aux=AuxRequest(max_scores=True), backend="interpret")[1].max_scores
    for _ in range(2):
        assert flex_attention(q, k, v, None, mask, return_aux=AuxRequest(lse=True), backend="interpret")[1].max_scores is None
        repeated = flex_attention(q, k, v, None, mask, return_aux=AuxRequest(max_scores=True), backend="interpret")[1]
        assert torch.equal(repeated.max_scores, first) and repeated.lse is None


def test_the_explicit_form() -> None:
    q, k, v = tensors()
    spec = Specification("asked", late, max_scores=True)
    attend = attention(spec, head_dim=D)
    o, lse, most = attend(q, k, v, return_lse=True, backend="interpret")
    torch.testing.assert_close(most.double(), spec.most(q, k, D**-0.5), atol=1e-4, rtol=1e-5)
    assert torch.equal(attend(q, k, v, backend="interpret"), o)  # type: ignore[arg-type]
    torch.compiler.reset()
    compiled = torch.compile(lambda *qkv: attend(*qkv, return_lse=True, backend="interpret"), fullgraph=True, backend="eager")
    for a, b in zip(compiled(q, k, v), (o, lse, most), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_in_a_graph(backend: str) -> None:
    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any) -> Any:
        return flex_attention(q * 1.0, k, v, capped, mask, return_aux=AuxRequest(lse=True, max_scores=True), backend="interpret")

    torch.compiler.reset()
    qkv, mask = tensors(), create_block_mask(documents, None, None, M, N, "cpu")
    with torch.no_grad():
        o, aux = torch.compile(call, fullgraph=True, backend=backend)(*qkv, mask)
    expected, second = call(*qkv, mask)
    assert torch.equal(o, expected) and torch.equal(aux.lse, second.lse) and torch.equal(aux.max_scores, second.max_scores)
