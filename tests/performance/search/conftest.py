"""The expert kernel, parsed once, and what of it fits the architecture, checked once."""

from __future__ import annotations

import pytest

from cuir import Program, parse
from cuir.performance.search.space import Consts, find_violation
from cuir.text.diagnostics import Diagnostic
from tests.performance.search.fakes import TEXT


@pytest.fixture(scope="session")
def program() -> Program:
    return parse(TEXT, "flash_fwd_sm90.cuir")


VIOLATIONS: dict[tuple[object, ...], Diagnostic | None] = {}


@pytest.fixture(autouse=True)
def once(monkeypatch: pytest.MonkeyPatch, program: Program) -> None:
    """Cache the reasons that rule out settings of the program: all tests try the same few."""

    def find_known(of: Program, kernel: str | None, consts: Consts, shared_bytes: int | None = None) -> Diagnostic | None:
        if of is not program:
            return find_violation(of, kernel, consts, shared_bytes)
        key = (kernel, shared_bytes, *sorted(consts.items(), key=lambda item: item[0]))
        if key not in VIOLATIONS:
            VIOLATIONS[key] = find_violation(of, kernel, consts, shared_bytes)
        return VIOLATIONS[key]

    monkeypatch.setattr("cuir.performance.search.search.find_violation", find_known)
