"""Products in flight under several names."""

from __future__ import annotations

import pytest

from tests.gpu import handing_cases
from tests.gpu.isolation import isolated

EACH = 8


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(3))
def test_the_gpu_does_what_the_interpreter_does(seed: int) -> None:
    assert isolated(handing_cases.agree, seed, EACH, seconds=300) == 4 + EACH
