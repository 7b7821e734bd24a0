"""assert_matches: right kernels pass, wrong ones fail with a short report, and wrong calls say what is wrong.

Problems of assert_matches on a GPU: right kernels pass, wrong ones and faults of the driver are told.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import corpus
import cuir
from cuir.testing import MismatchError, assert_matches, matching
from cuir.text.diagnostics import CuirError
from cuir.verification.spec_dispatch import prepare_specification
from cuir.verification.values.cases import Draw
from tests.testing.programs import SCALE, SECOND_TILE_WRONG


def product(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * factor


@pytest.mark.parametrize("kind", ["normal", "largest", "zero"])
def test_a_right_kernel_passes(kind: str) -> None:
    assert_matches(SCALE, product, M=65, kind=kind)
    assert_matches(cuir.check(SCALE), product, M=1, schedules=1)


@pytest.mark.parametrize(("rows", "is_wrong"), [(64, False), (65, True)])
def test_the_second_tile_is_judged(rows: int, is_wrong: bool) -> None:
    values = {"X": torch.randn(rows, 64).half(), "factor": 0.5}
    if not is_wrong:
        assert_matches(SECOND_TILE_WRONG, product, values)
        return
    with pytest.raises(MismatchError) as failure:
        assert_matches(SECOND_TILE_WRONG, product, values)
    assert failure.value.diagnostics[0].code == "V301" and "unit of work 1" in str(failure.value)
    assert "again: assert_matches(scale, ..., values, schedules=('in_order',))" in str(failure.value)


def test_values_of_the_caller_are_what_runs() -> None:
    def only_ones(x: torch.Tensor, factor: float) -> torch.Tensor:
        assert bool((x == 3).all()) and factor == 2.0
        return x * factor

    assert_matches(SCALE, only_ones, {"X": torch.full((5, 64), 3.0).half(), "factor": 2.0}, schedules=1)


def test_a_kernel_without_dims_takes_values_alone() -> None:
    program = cuir.parse("""
@kernel(arch="sm_90a")
def twice(X: Global[f32, 64, 64], Y: Global[f32, 64, 64]):
    with role("all", warpgroups=1):
        store(Y[:, :], load(X[:, :]) * 2.0)
""")
    assert_matches(program, lambda x: x * 2, {"X": torch.randn(64, 64)}, schedules=1)
    with pytest.raises(MismatchError):
        assert_matches(program, lambda x: x * 3, {"X": torch.randn(64, 64)}, schedules=1)


def test_a_failure_is_shrunk_outside_of_hypothesis() -> None:
    with pytest.raises(MismatchError, match="the smallest problem found"):
        assert_matches(SECOND_TILE_WRONG, product, M=200)


def test_without_dims_it_verifies() -> None:
    with pytest.raises(MismatchError, match="is wrong") as failure:
        assert_matches(SECOND_TILE_WRONG, product)
    assert len(str(failure.value).splitlines()) <= 30


def test_a_missing_fence_is_a_failure() -> None:
    text = corpus.programs()["gemm"].read_text(encoding="utf-8").replace("            fence_async()\n", "")

    def gemm(a: torch.Tensor, bt: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        x = a @ bt.T + bias
        return x * torch.sigmoid(1.702 * x)

    with pytest.raises(MismatchError, match="fence_async") as failure:
        assert_matches(cuir.parse(text), gemm, M=10, N=20, K=30, consts={"T": cuir.f16, "BM": 64, "BN": 64, "BK": 64})
    assert failure.value.diagnostics[0].code == "R403"


@pytest.mark.parametrize(
    ("values", "named", "message"),
    [
        (None, {"MM": 3}, "has no dim MM"),
        ({"factor": 1.0}, {}, "found none of M"),
        ({"Z": 3}, {}, "has no parameter Z"),
        ({"X": torch.zeros(3, 64)}, {}, "torch.float16 with 2 dims, found torch.float32"),
        ({"X": torch.zeros(3, 63).half()}, {}, "64 is 64 by the kernel, and 63 by the shape of X"),
        ({"X": torch.zeros(3, 64).half()}, {"M": 4}, "M is 4 by the argument, and 3 by the shape of X"),
        ({"factor": torch.zeros(3)}, {"M": 4}, "is a scalar, found a tensor"),
        (None, {"M": -1}, "an integer of at least 0, found -1"),
        (None, {"M": 3, "kind": "no"}, "cannot be drawn of kind 'no'"),
        (None, {"M": 3, "schedules": 0}, "at least 1"),
        (None, {"M": 3, "schedules": ("no",)}, "no such schedule"),
    ],
)
def test_a_wrong_call_is_an_error_and_no_failure(values: Any, named: dict[str, Any], message: str) -> None:
    with pytest.raises(CuirError, match=message):
        assert_matches(SCALE, product, values, **named)


def test_a_function_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(CuirError, match="factr"):
        assert_matches(SCALE, lambda x, factr: x * factr, M=3)


def check_device(program: cuir.Program, device: str) -> None:
    checked = cuir.check(program)
    spec = prepare_specification(lambda x, factor: x * factor, checked.origin, program, checked.consts)
    matching.check_on_gpu(program, checked, spec, Draw("one problem", {"M": 65}), device)


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
    monkeypatch.setattr(matching, "compile", lambda checked: Compiled())
    check_device(SCALE, "cpu")
    monkeypatch.setattr(Compiled, "launch", lambda self, arguments: arguments["Y"].fill_(1.0))
    with pytest.raises(CuirError, match="V301"):
        check_device(SCALE, "cpu")


def test_a_fault_of_the_driver_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Compiled, arguments: dict[str, torch.Tensor]) -> None:
        raise RuntimeError("illegal memory access")

    monkeypatch.setattr(matching, "compile", lambda checked: Compiled())
    monkeypatch.setattr(Compiled, "launch", fail)
    with pytest.raises(CuirError, match="V403"):
        check_device(SCALE, "cpu")
