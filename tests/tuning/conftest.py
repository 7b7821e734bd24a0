"""The expert kernel, parsed once."""

from __future__ import annotations

import pytest

from cuir import Program, parse
from tests.tuning.fakes import TEXT


@pytest.fixture(scope="session")
def program() -> Program:
    return parse(TEXT, "flash_fwd_sm90.cuir")
