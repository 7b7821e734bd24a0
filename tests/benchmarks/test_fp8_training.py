"""The benchmark of attention in 8 bits: its errors, and the launch of the kernel alone."""

from __future__ import annotations

import pytest
import torch

import corpus
import cuir
from benchmarks.fp8_training import compute_errors, launch_kernel
from cuir.runtime import compiled


def test_errors_are_those_of_8_bits() -> None:
    errors = compute_errors("normal", 96, 64, True, "cpu")
    assert all(0.01 < e < 0.1 for e in errors["8 bits"].values()) and all(e < 0.01 for e in errors["bfloat16"].values())


def test_the_kernel_alone_takes_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the causal kernel in the interpreter."""
    lowered = []
    monkeypatch.setattr(cuir, "lower", lambda checked: checked)
    monkeypatch.setattr(compiled, "CompiledKernel", lambda checked: lambda **arguments: lowered.append(cuir.run(checked, arguments)))
    launch_kernel(torch.randn(1, 1, 64, 64).bfloat16(), True, {"BN": 64, "LATER": True})()
    assert lowered and "flash_bwd_f8_sm90" in corpus.kernels()
