"""8-bit floats on a GPU: products of the tensor core, and casts."""

from __future__ import annotations

import pytest

from tests.gpu import float8_cases
from tests.gpu.isolation import isolated


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f8e4m3", "f8e5m2"])
def test_product(dtype: str) -> None:
    isolated(float8_cases.product_is_right, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f8e4m3", "f8e5m2"])
def test_casts(dtype: str) -> None:
    isolated(float8_cases.casts_are_right, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f8e4m3", "f8e5m2"])
def test_widened(dtype: str) -> None:
    isolated(float8_cases.widened_are_right, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f8e4m3", "f8e5m2"])
def test_beside_halves(dtype: str) -> None:
    isolated(float8_cases.beside_halves, dtype, seconds=300)
