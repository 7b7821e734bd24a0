"""Random kernels, with their seeds on record: what the GPU computes is what the interpreter computes."""

from __future__ import annotations

import pytest

from tests.gpu import random_cases
from tests.gpu.isolation import isolated

SEEDS, EACH = range(26), 8  # 208 kernels


@pytest.mark.gpu
@pytest.mark.parametrize("seed", SEEDS)
def test_gpu_and_interpreter_agree(seed: int) -> None:
    assert isolated(random_cases.agree, seed, EACH, seconds=300) == EACH


def test_seeds_give_as_many_kernels_as_is_said() -> None:
    assert len(SEEDS) * EACH >= 200
    drawn = random_cases.lowered(SEEDS[-1], EACH)
    assert len({case.text for case, _ in drawn}) == EACH == len({cuda.digest for _, cuda in drawn})
