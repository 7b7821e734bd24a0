"""`torch.use_deterministic_algorithms`: gradients by kernels that add nothing up between CTAs, right, and with the same bits under every schedule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import cuir
from cuir.attn.kernels.backward_kernels import RequestedGradients
from cuir.verification.inputs import find_accumulated
from cuir.verification.schedules import run_under_all

from ..kernels.test_autograd import causal, close, compute_gradients, documents, softcap, tensors


@pytest.fixture(autouse=True)
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    ("shape", "mask_mod", "score_mod"),
    [
        ((2, 4, 2, 70, 130, 128), documents, softcap),
        ((1, 1, 1, 60, 60, 64, 128), causal, softcap),
        ((1, 2, 1, 140, 70, 256), causal, softcap),
    ],
)
def test_gradients(shape: tuple[int, ...], mask_mod: Any, score_mod: Any) -> None:
    close(*compute_gradients(tensors(*shape), mask_mod, score_mod))


@pytest.mark.parametrize("step", ["flash_bwd", "flash_bwd_dq"])
def test_the_same_bits_under_every_schedule(step: str) -> None:
    q, k, v = tensors(1, 2, 1, 140, 140, 64)
    attention = cuir.attention(causal, dtype=torch.float16, head_dim=64, verify="off")
    checked = attention.gradients(RequestedGradients(in_order=True)).plan.steps[step].checked
    assert not find_accumulated(checked) and find_accumulated(attention.gradients().plan.steps["flash_bwd"].checked) == {"dQ"}
    inputs = {"Q": q, "K": k, "V": v, "dO": q.flip(2), "L": torch.ones(1, 2, 256), "DL": torch.zeros(1, 2, 256), "scale": 0.125}
    outputs = {"dK": k.clone(), "dV": v.clone(), "dQ": torch.zeros(1, 2, 140, 64)}
    if step == "flash_bwd_dq":  # which makes the rows itself
        outputs = {"dQ": q.clone(), "FO": q.clone(), "FL": torch.ones(1, 2, 140)}
    assert len(run_under_all(checked, inputs | outputs, grid=2)) > 10
