"""Expressions on halves give on the GPU what they give in the interpreter."""

from __future__ import annotations

import pytest

from tests.gpu import expression_cases
from tests.gpu.isolation import isolated

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_expressions(dtype: str) -> None:
    found = isolated(expression_cases.differences, dtype)
    assert {e: d for e, d in found.items() if d > 1e-4} == {}
