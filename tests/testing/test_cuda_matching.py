"""assert_cuda_matches: right kernels pass, a failure is the report, a wrong call is no failure."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

from cuir.cuda import KernelCall, load
from cuir.testing import MismatchError, assert_cuda_matches
from cuir.text.diagnostics import CuirError
from tests.cli.commands.test_cuda_check import STORE

pytestmark = pytest.mark.nvcc
SOURCE = Path(__file__).parent.parent / "ptx/kernels.cu"


def launch(kernel: str) -> KernelCall:
    return KernelCall(1, 128, torch.randn(1000), torch.zeros(1), 1000, kernel=kernel)


def add_up(x: torch.Tensor, out: torch.Tensor, n: int) -> torch.Tensor:
    return x.sum()[None]


def test_a_right_kernel_passes() -> None:
    assert_cuda_matches(SOURCE, lambda: launch("reduce_right"), add_up, arch="sm_90")


def test_a_fault_is_reported_with_the_schedule_that_shows_it() -> None:
    module = load(SOURCE, arch="sm_90")
    with pytest.raises(MismatchError, match=r"(?s)goes wrong, schedule last.*error\[R401\].*again: assert_cuda_matches") as error:
        assert_cuda_matches(module, lambda: launch("reduce_faulty"), add_up, schedules=("last",))
    assert error.value.diagnostics[0].code == "R401"


def test_wrong_numbers_fail_and_a_wrong_call_raises() -> None:
    module = load(SOURCE, arch="sm_90")
    with pytest.raises(MismatchError, match=r"out\[0\] is .* `double_sum` gives"):

        def double_sum(x: torch.Tensor, out: torch.Tensor, n: int) -> torch.Tensor:
            return 2 * x.sum()[None]

        assert_cuda_matches(module, lambda: launch("reduce_right"), double_sum, schedules=1)
    with pytest.raises(CuirError, match=r"has [0-9]+ kernels"):
        assert_cuda_matches(module, lambda: KernelCall(1, 128, torch.zeros(4)))


def test_what_no_gpu_minds_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "save.ptx").write_text(STORE, encoding="utf-8")

    def save() -> KernelCall:
        return KernelCall(1, 1, torch.zeros(4, dtype=torch.int32))

    with pytest.warns(UserWarning, match=r"(?s)warning\[M416\].*may read shared memory when its CTA has ended"):
        assert_cuda_matches(tmp_path / "save.ptx", save, lambda y: torch.full((4,), 7))
    with pytest.raises(MismatchError, match="1 more in") as error, warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_cuda_matches(tmp_path / "save.ptx", save, lambda y: torch.full((4,), 8))
    assert [d.code for d in error.value.diagnostics][1:] == ["M416"]
