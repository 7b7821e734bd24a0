"""Lanes of one worker that depend on each other through memory."""

from __future__ import annotations

import pytest

from tests.gpu import join_cases
from tests.gpu.isolation import isolated


@pytest.mark.gpu
def test_the_gpu_does_what_the_interpreter_does() -> None:
    isolated(join_cases.agree, seconds=120)


@pytest.mark.gpu
def test_rows_of_warps() -> None:
    isolated(join_cases.rows, seconds=120)
