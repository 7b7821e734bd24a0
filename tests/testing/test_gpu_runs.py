"""Problems of assert_matches on a GPU: right kernels pass, wrong ones and faults of the driver are told."""

from __future__ import annotations

import pytest
import torch

import cuir
from cuir.testing import gpu_runs
from cuir.text.diagnostics import CuirError
from cuir.verification.spec_dispatch import prepare_specification
from cuir.verification.values.cases import Draw
from tests.testing.programs import SCALE, SECOND_TILE_WRONG


def check_device(program: cuir.Program, device: str) -> None:
    checked = cuir.check(program)
    spec = prepare_specification(lambda x, factor: x * factor, checked.origin, program, checked.consts)
    gpu_runs.check_on_gpu(program, checked, spec, Draw("one problem", {"M": 65}), device)


@pytest.mark.gpu
def test_kernels_run_and_are_judged() -> None:
    check_device(SCALE, "cuda")
    with pytest.raises(CuirError, match="V301"):
        check_device(SECOND_TILE_WRONG, "cuda")


class Compiled:
    """In place of a compiled kernel."""

    def launch(self, arguments: dict[str, torch.Tensor]) -> None:
        arguments["Y"].copy_(arguments["X"].float() * arguments["factor"])


def test_results_of_the_launch_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_runs, "compile", lambda checked: Compiled())
    check_device(SCALE, "cpu")
    monkeypatch.setattr(Compiled, "launch", lambda self, arguments: arguments["Y"].fill_(1.0))
    with pytest.raises(CuirError, match="V301"):
        check_device(SCALE, "cpu")


def test_a_fault_of_the_driver_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Compiled, arguments: dict[str, torch.Tensor]) -> None:
        raise RuntimeError("illegal memory access")

    monkeypatch.setattr(gpu_runs, "compile", lambda checked: Compiled())
    monkeypatch.setattr(Compiled, "launch", fail)
    with pytest.raises(CuirError, match="V403"):
        check_device(SCALE, "cpu")
