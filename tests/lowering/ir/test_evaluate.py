"""The evaluator gives the interpreter's bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cuir.interp import run
from cuir.lowering.ir.build import build
from cuir.lowering.ir.evaluate import evaluate
from tests.lowering.ir import cases

BITS = {2: torch.int16, 4: torch.int32}


def same_bits(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Bit by bit, but for how a NaN looks."""
    if not found.is_floating_point():
        return torch.equal(found, wanted)
    view = BITS[found.element_size()]
    return torch.equal(found.isnan(), wanted.isnan()) and torch.equal(
        found.nan_to_num(0.0, torch.inf, -torch.inf).view(view), wanted.nan_to_num(0.0, torch.inf, -torch.inf).view(view)
    )


def as_interpreted(case: cases.Case, kernel: Any = None, **options: Any) -> None:
    found, wanted = case.fresh(), case.fresh()
    run(case.checked, wanted, **options)
    evaluate(kernel or build(case.checked), found, ctas=case.ctas)
    for name in case.written:
        assert same_bits(found[name], wanted[name]), name


@pytest.mark.parametrize("name", cases.NAMES)
def test_programs(name: str) -> None:
    as_interpreted(cases.case(name))


@pytest.mark.parametrize("name", cases.VARIANTS)
def test_variants(name: str) -> None:
    as_interpreted(cases.variant(name))
