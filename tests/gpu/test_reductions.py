"""Reductions and transposes give on the GPU what they give in the interpreter."""

from __future__ import annotations

import pytest

from tests.gpu import reduction_cases
from tests.gpu.isolation import isolated

pytestmark = pytest.mark.gpu


def test_reductions_of_every_shape() -> None:
    assert {shape: d for shape, d in isolated(reduction_cases.reduced).items() if not d <= 1e-4} == {}


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_a_transposed_view_loads_as_the_transpose(dtype: str) -> None:
    assert isolated(reduction_cases.transposed, dtype) == [True, True]


def test_a_value_per_key_is_added_to_the_columns_of_a_product() -> None:
    assert isolated(reduction_cases.distances) < 1e-5
