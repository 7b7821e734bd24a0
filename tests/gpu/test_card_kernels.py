"""Kernels for older architectures on this GPU, which runs their machine code or their PTX: named by CUIR_ARCH."""

from __future__ import annotations

import pytest

from cuir.attn.kernels.card_kernels import VARIABLE
from tests.gpu import card_cases as cases
from tests.gpu.isolation import run_isolated


@pytest.mark.gpu("sm_75")
@pytest.mark.parametrize("dim", [64, 128])
def test_kernels_for_turing(dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "sm_75")
    run_isolated(cases.forward, "sm_75", dim, "float16", seconds=600)


@pytest.mark.gpu("sm_80")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("dim", [64, 72, 128, 256])
def test_kernels_for_ampere(dim: int, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "sm_80")
    run_isolated(cases.forward, "sm_80", dim, dtype, seconds=600)
