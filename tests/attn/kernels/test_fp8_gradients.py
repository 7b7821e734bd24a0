"""Kernels of gradients in 8 bits: their settings follow from the score, and each is verified."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from cuir import Program, Specification, attention
from cuir.attn.capture.first_call_progress import Progress
from cuir.attn.kernels import transfers
from cuir.attn.kernels.fp8_gradients import Fp8Gradients
from cuir.checking.checked import Const
from cuir.checking.checker import check
from cuir.spec import FunctionSpecification
from cuir.verification.function_problems import make_draws
from cuir.verification.spec_dispatch import check_case, prepare_specification

SCALES = torch.exp2(torch.randn(2, 8, generator=torch.Generator().manual_seed(0)))


def scaled(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return s * SCALES[b % 2, h % 8].clamp(min=2.0**-56)


def capped(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return 5 * torch.tanh(scaled(s, b, h, i, j) / 5)


@pytest.mark.thorough("problems of two kernels, each of which a first call verifies; calls test their numbers")
@pytest.mark.parametrize(("score", "sloped"), [(scaled, False), (capped, True)])
def test_kernels_of_a_rule_compute_its_gradients(score: Callable[..., Any], sloped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Judge two of the problems that a first call verifies; a factor of each head is no slope that depends on the pair."""
    judged: list[float] = []

    def judge(
        program: Program, mods: Specification, key: object, consts: dict[str, Const], level: str, progress: object, kernel: str
    ) -> None:
        checked = check(program, kernel, consts)
        spec = prepare_specification(mods, checked.origin, program, checked.consts)
        assert isinstance(spec, FunctionSpecification)
        for case in make_draws(checked, spec, "quick")[:2]:
            judged.extend(row["error / allowed"] for row in check_case(program, checked, spec, case))  # type: ignore[misc]

    monkeypatch.setattr(transfers, "verify_or_recall", judge)
    spec = Specification("odd", lambda b, h, i, j: (i + j) % 3 != 0, score)
    gradients = Fp8Gradients(attention(spec, dtype="f8e4m3", head_dim=64))
    consts = gradients.part.step.consts
    assert (consts["SLOPES"], consts["LATER"]) == (sloped, not sloped)
    gradients.part.prove(Progress("odd"))
    assert len(judged) >= 2 and all(0 <= x <= 1 for x in judged)
