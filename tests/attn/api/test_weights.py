"""flex_attention and attention with weights that are no softmax, and with sinks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import corpus
import cuir
from cuir import check, create_block_mask, flex_attention, parse, transfer
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
