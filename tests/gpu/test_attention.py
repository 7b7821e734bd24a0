"""Numbers of the attention variants on a GPU: dtypes, head dims, block sizes, lengths, head ratios, strides; poisoned outputs, the same bits each time."""

from __future__ import annotations

import pytest

from tests.gpu import attention_cases
from tests.gpu.isolation import isolated

pytestmark = pytest.mark.gpu

VARIANTS = ("full", "causal", "sliding_window", "prefix_lm", "softcap", "alibi")
KERNELS = [
    *((v, f"d{d}{w}", dtype) for v in VARIANTS for d in (128, 64) for w, dtype in (("w3", "f16"), ("w2", "bf16"))),
    *((v, f"d{d}w2", "f16") for v in ("full", "causal") for d in (128, 64)),
]


@pytest.mark.parametrize(("variant", "config", "dtype"), KERNELS)
def test_against_float64(variant: str, config: str, dtype: str) -> None:
    isolated(attention_cases.right, variant, config, dtype, seconds=200)
