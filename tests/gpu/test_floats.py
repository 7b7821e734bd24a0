"""Every elementwise operation on a GPU: special values, random bits, masks that floats decide, i32 that wraps. `python -m pytest tests/gpu/test_floats.py -q`."""

from __future__ import annotations

import pytest

from tests.gpu import float_cases
from tests.gpu.isolation import isolated

pytestmark = pytest.mark.gpu


def test_every_operation() -> None:
    assert isolated(float_cases.on_gpu, 4, seconds=300.0) == []
