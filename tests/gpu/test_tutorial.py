"""The examples of FlexAttention's tutorial, with the import changed, on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.attn.api.test_tutorial import EXAMPLES
from tests.gpu import tutorial_cases as cases
from tests.gpu.isolation import isolated

pytestmark = pytest.mark.gpu
PARTS = 11


@pytest.mark.parametrize("part", range(PARTS))
def test_examples(part: int) -> None:
    assert isolated(cases.right, part, PARTS, seconds=300) == sorted(EXAMPLES)[part::PARTS]


@pytest.mark.parametrize("case", [cases.grouped_queries, cases.compiled])
def test_calls_of_the_tutorial(case: Callable[[], None]) -> None:
    isolated(case, seconds=300)
