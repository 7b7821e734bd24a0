"""A kernel that hangs: the watchdog's build names the waits that do not end."""

from __future__ import annotations

import pytest

from tests.gpu import hang_cases as cases
from tests.gpu.isolation import isolated


@pytest.mark.gpu
@pytest.mark.parametrize("name", cases.FAULTY)
def test_the_waits_are_those_of_the_interpreter(name: str) -> None:
    assert set(isolated(cases.stuck, name, seconds=120)) == cases.expected(name)
