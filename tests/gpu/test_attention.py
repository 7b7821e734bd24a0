"""Numbers of the attention variants on a GPU: dtypes, head dims, block sizes, lengths, head ratios, strides; poisoned outputs, the same bits each time."""

from __future__ import annotations

import pytest
import torch

import corpus
from tests.gpu import attention_cases
from tests.gpu.isolation import isolated

VARIANTS = ("full", "causal", "sliding_window", "prefix_lm", "softcap", "alibi")
KERNELS = [
    *((v, f"d{d}{w}", dtype) for v in VARIANTS for d in (128, 64) for w, dtype in (("w3", "f16"), ("w2", "bf16"))),
    *((v, f"d{d}w2", "f16") for v in ("full", "causal") for d in (128, 64)),
    *((v, f"d{d}w2", "f16") for v in corpus.variants() if v not in VARIANTS for d in (128, 64)),
    *((v, c, "f16") for v in ("full", "causal", "sliding_window", "document") for c in ("d128w2c2", "d64w3c2")),
    ("combo", "d64w3", "bf16"),
    ("sink_causal", "d64w3", "bf16"),
    ("causal", "d128w3c2", "bf16"),
    ("full", "d128w1c4", "f16"),
    ("causal", "d128w1c4", "f16"),
]


@pytest.mark.gpu
@pytest.mark.parametrize(("variant", "config", "dtype"), KERNELS)
def test_against_float64(variant: str, config: str, dtype: str) -> None:
    isolated(attention_cases.right, variant, config, dtype, seconds=200)


@pytest.mark.parametrize("variant", sorted(corpus.variants()))
def test_every_case_has_an_expectation(variant: str) -> None:
    spec = corpus.variant(variant)()
    for case in attention_cases.CASES:
        B, H, HK, M, N, _ = case
        if B * H * M * N > 1 << 18:
            continue
        q, k, v = attention_cases.tensors(case, 16, torch.float16, "cpu")
        o, lse, half = attention_cases.expected(spec, q, k, v, 0.25, slice(0, H))
        assert o.shape == half.shape == (B, H, M, 16) and lse.shape == (B, H, M) and bool(torch.isfinite(o).all())
        group = H // HK
        last, last_lse, _ = attention_cases.expected(spec, q, k, v, 0.25, slice(H - group, H))
        torch.testing.assert_close((last, last_lse), (o[:, H - group :], lse[:, H - group :]))
