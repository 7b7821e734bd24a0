"""flex_attention on a GPU: numbers, kernels that are shared, masks of PyTorch, errors, cost of a warm call."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.gpu import flex_cases as cases
from tests.gpu.isolation import isolated

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("case", [
    cases.numbers, cases.verified_once, cases.block_masks_of_pytorch, cases.one_kernel, cases.errors,
])  # fmt: skip
def test_flex(case: Callable[[], object]) -> None:
    isolated(case, seconds=600)


def test_a_warm_call_is_cheap() -> None:
    cost = isolated(cases.host_cost, seconds=200)
    print(cost)
    assert max(cost.values()) <= 200.0
