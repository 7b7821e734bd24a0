"""float32 on a GPU: products of f32 operands in parts, and attention."""

from __future__ import annotations

import pytest

from tests.gpu import float32_cases
from tests.gpu.isolation import isolated


@pytest.mark.gpu
@pytest.mark.parametrize("loaded", [False, True], ids=["shared", "loaded"])
@pytest.mark.parametrize("shape", [(64, 32, 64, 64), (128, 64, 128, 40), (64, 8, 24, 8)], ids=str)
@pytest.mark.parametrize("parts", [1, 2])
def test_product(parts: int, shape: tuple[int, int, int, int], loaded: bool) -> None:
    isolated(float32_cases.product_is_right, parts, *shape, loaded)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "case",
    [(64, 64, 1000, 1000), (128, 128, 512, 700), (80, 48, 300, 300), (192, 128, 257, 513), (256, 256, 300, 200), (7, 1, 100, 100)],
    ids=str,
)
@pytest.mark.parametrize("parts", [1, 2])
def test_attention(parts: int, case: tuple[int, int, int, int]) -> None:
    isolated(float32_cases.attention_is_right, parts, *case)
