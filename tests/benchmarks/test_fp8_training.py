"""The benchmark of attention in 8 bits: its errors, and the launch of the kernel alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import cuir
from benchmarks.fp8_training import compute_errors, launch_kernel
from cuir.runtime import compiled


def test_errors_are_those_of_8_bits() -> None:
    errors = compute_errors("normal", 96, 64, True, "cpu")
    assert all(0.01 < e < 0.1 for e in errors["8 bits"].values()) and all(e < 0.01 for e in errors["bfloat16"].values())


def test_the_kernel_alone_takes_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of the causal kernel in the interpreter."""
    launched: list[dict[str, Any]] = []

    def compile(program: cuir.Program, kernel: str, consts: dict[str, Any]) -> Callable[..., None]:
        checked = cuir.check(program, kernel, consts)
        return lambda **arguments: launched.append(dict(arguments)) or cuir.run(checked, arguments)

    monkeypatch.setattr(compiled, "compile", compile)
    launch_kernel(torch.randn(1, 1, 64, 64).bfloat16(), True, {"BN": 64, "LATER": True})()
    assert launched[0]["dK"].isfinite().all() and launched[0]["dV"].any()
