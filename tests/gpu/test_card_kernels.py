"""Kernels for older architectures on this GPU, which runs their machine code or their PTX: named by CUIR_ARCH."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cuir.attn.kernels.card_kernels import VARIABLE
from tests.gpu import backward_cases, serving_cases
from tests.gpu import card_cases as cases
from tests.gpu.isolation import run_isolated


@pytest.mark.gpu("sm_75")
@pytest.mark.parametrize(("dim", "dim_v"), [(64, 64), (128, 128), (192, 128)])
def test_kernels_for_turing(dim: int, dim_v: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "sm_75")
    run_isolated(cases.forward, "sm_75", dim, dim_v, "float16", seconds=600)


@pytest.mark.gpu("sm_75")
@pytest.mark.parametrize(
    ("name", "dim"), [*((name, 64) for name in backward_cases.PROBLEMS), ("ALiBi, causal", 40), ("ALiBi, causal", 128)]
)
@pytest.mark.parametrize("case", [backward_cases.numbers, backward_cases.deterministic])
def test_gradients_for_turing(case: Callable[..., None], name: str, dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "sm_75")
    run_isolated(case, "cuda", name, 300, dim, "float16", seconds=300)


@pytest.mark.gpu("sm_75")
@pytest.mark.parametrize(
    "kind", ["16 bits", "packed", "few", "server", "server decoding", "latent", "latent, two tokens", "latent, shared"]
)
@pytest.mark.parametrize("case", [serving_cases.beside_the_interpreter, serving_cases.same_bits])
def test_serving_for_turing(case: Callable[..., None], kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "sm_75")
    run_isolated(case, kind, seconds=600)


@pytest.mark.gpu("sm_75")
def test_gradients_of_packed_sequences_for_turing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "sm_75")
    run_isolated(serving_cases.packed_gradients, seconds=300)


@pytest.mark.gpu("sm_80")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(("dim", "dim_v"), [(64, 64), (72, 72), (128, 128), (192, 128), (256, 256)])
def test_kernels_for_ampere(dim: int, dim_v: int, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "sm_80")
    run_isolated(cases.forward, "sm_80", dim, dim_v, dtype, seconds=600)


@pytest.mark.gpu("sm_80")
@pytest.mark.parametrize(
    ("name", "dim"),
    [*((name, 64) for name in backward_cases.PROBLEMS), ("ALiBi, causal", 40), ("ALiBi, causal", 128), ("ALiBi, causal", 256)],
)
@pytest.mark.parametrize("case", [backward_cases.numbers, backward_cases.deterministic])
def test_gradients_for_ampere(case: Callable[..., None], name: str, dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "sm_80")
    run_isolated(case, "cuda", name, 300, dim, "float16", seconds=300)


@pytest.mark.gpu("sm_80")
@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("case", [backward_cases.numbers, backward_cases.deterministic])
def test_gradients_of_single_precision_for_ampere(case: Callable[..., None], dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "sm_80")
    run_isolated(case, "cuda", "ALiBi, causal", 300, dim, "float32", seconds=300)


@pytest.mark.gpu("sm_80")
@pytest.mark.parametrize(
    "kind",
    [
        "16 bits",
        "32 bits",
        "packed",
        "packed, 32 bits",
        "few",
        "server",
        "server decoding",
        "latent",
        "latent, two tokens",
        "latent, shared",
    ],
)
@pytest.mark.parametrize("case", [serving_cases.beside_the_interpreter, serving_cases.same_bits])
def test_serving_for_ampere(case: Callable[..., None], kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "sm_80")
    run_isolated(case, kind, seconds=600)


@pytest.mark.gpu("sm_80")
def test_gradients_of_packed_sequences_for_ampere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "sm_80")
    run_isolated(serving_cases.packed_gradients, seconds=300)
