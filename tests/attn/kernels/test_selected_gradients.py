"""Kernels of gradients over selected blocks: how they go through the queries that select a block, and that they are verified."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cuir import Program, Specification, attention
from cuir.attn.capture.first_call_progress import Progress
from cuir.attn.kernels import selected_gradients
from cuir.attn.kernels.experts import origin_of
from cuir.attn.kernels.selected_gradients import SelectedGradients, SelectedSizes
from cuir.checking.checked import Const
from cuir.checking.checker import check
from cuir.runtime.launchable import find_spills, require_launchable
from cuir.spec import FunctionSpecification
from cuir.syntax.types import BF16, F16, DType
from cuir.verification.function_problems import make_draws
from cuir.verification.spec_dispatch import check_case


@given(st.integers(1, 300), st.integers(1, 300), st.sampled_from([16, 32, 64, 128]))
def test_slots_fill_steps(per: int, span: int, block: int) -> None:
    way = SelectedSizes(per, span, block).choose_slots()
    rows = way.queries * way.heads
    assert span % way.queries == 0 and 64 % rows == 0 and rows >= 8 and way.step * rows == 64
    assert way.keys <= 64 and way.block % way.keys == 0


@pytest.mark.sweep
@pytest.mark.parametrize("kernel", ["by_queries", "by_keys"])
def test_kernels_of_a_rule_compute_its_gradients(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Judge two of the problems that a first call verifies."""
    judged: list[float] = []

    def judge(
        program: Program, spec: FunctionSpecification, key: object, consts: dict[str, Const], level: str, progress: object, name: str
    ) -> None:
        checked = check(program, name, consts)
        for case in make_draws(checked, spec, "quick")[:2]:
            judged.extend(row["error / allowed"] for row in check_case(program, checked, spec, case))  # type: ignore[misc]

    monkeypatch.setattr(selected_gradients, "verify_or_recall", judge)
    bias = torch.randn(8, 300, generator=torch.Generator().manual_seed(0))
    spec = Specification("biased", lambda b, h, i, j: (i + j) % 3 != 0, lambda s, b, h, i, j: 5 * torch.tanh(s / 5) + bias[h, j])
    gradients = SelectedGradients(attention(spec, head_dim=64), SelectedSizes(4, 2, 16))
    getattr(gradients, kernel).prove(Progress("biased"))
    assert len(judged) >= 2 and all(0 <= x <= 1 for x in judged)


@pytest.mark.thorough
@pytest.mark.nvcc
@pytest.mark.parametrize(
    "sizes", [SelectedSizes(16, 1, 64), SelectedSizes(16, 128, 64), SelectedSizes(1, 128, 64), SelectedSizes(8, 8, 32)], ids=str
)
@pytest.mark.parametrize(("dtype", "D"), [(BF16, 128), (F16, 128), (BF16, 64)], ids=str)
def test_registers_of_keys_do_not_spill(sizes: SelectedSizes, dtype: DType, D: int) -> None:
    slots = sizes.choose_slots()
    consts: dict[str, Const] = {"T": dtype, "D": D, "BM": slots.queries, "GROUP": slots.heads, "BN": slots.keys, "WG": slots.warpgroups}
    checked = check(origin_of("selected_bwd_sm90"), "flash_bwd", consts)
    assert find_spills(require_launchable(checked), compile=True) == ""
