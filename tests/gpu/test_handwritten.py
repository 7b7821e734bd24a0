"""Right kernels of people who read only the pages: what the lowering makes of their styles computes what their references say."""

from __future__ import annotations

import pytest

from tests.gpu import handwritten_cases
from tests.gpu.isolation import isolated


@pytest.mark.gpu
@pytest.mark.parametrize("file", sorted(handwritten_cases.ENTRIES))
def test_right_kernels_are_right_on_a_gpu(file: str) -> None:
    assert isolated(handwritten_cases.judged, file, seconds=300) > 5
