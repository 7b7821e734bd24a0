"""Atomic additions of subnormal numbers on a GPU, beside the interpreter. `python -m pytest tests/gpu/test_additions.py -q`."""

from __future__ import annotations

import pytest

from tests.gpu import addition_cases
from tests.gpu.isolation import isolated

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_sums_of_subnormal_numbers(dtype: str) -> None:
    assert isolated(addition_cases.differences, dtype, seconds=300.0) == []
