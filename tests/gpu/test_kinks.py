"""Gradients of parameters that begin at 0, on a GPU."""

from __future__ import annotations

import pytest

from tests.gpu import kink_cases as cases
from tests.gpu.isolation import isolated

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", cases.FUNCTIONS)
def test_begin_at_0(name: str, dtype: str) -> None:
    isolated(cases.begin_at_0, "cuda", name, dtype, 300, seconds=300)
