"""Random kernels, with their seeds on record: what the GPU computes is what the interpreter computes."""

from __future__ import annotations

import pytest

from tests.gpu import random_cases
from tests.gpu.isolation import isolated

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("seed", range(8))
def test_gpu_and_interpreter_agree(seed: int) -> None:
    counts = isolated(random_cases.agree, seed, seconds=200)
    assert counts["agree"] >= 6 and sum(counts.values()) == 8
