"""Problems that verification adds after it has seen how loops turned."""

from __future__ import annotations

from typing import Any

import pytest

from cuir import check, parse
from cuir.spec import FunctionSpecification
from cuir.text.diagnostics import CuirError
from cuir.verification import spec_dispatch
from cuir.verification.spec_dispatch import find_wider_cases

TEXT = """\
@kernel(arch="sm_90a")
def copy(X: Global[f32, M, 32], Y: Global[f32, M, 32]):
    work = tiles(cdiv(M, 32))
    with role("all", warps=1):
        for t in work:
            x = X[t * 32 + rows(32), cols(32)]
            for i in range(M - 70):
                x = x + 0.0
            store(Y[t * 32 + rows(32), cols(32)], x)
"""


@pytest.mark.parametrize(("code", "retained"), [("D402", False), ("R401", True)])
def test_a_longer_problem_beyond_the_time_limit_is_left_out(code: str, retained: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    program = parse(TEXT)

    def fail(*_: Any, **__: Any) -> None:
        raise CuirError.of(code, "as a slow machine, or a fault, would have it")

    monkeypatch.setattr(spec_dispatch, "run", fail)
    assert bool(find_wider_cases(program, check(program), FunctionSpecification("copy", lambda X: X))) is retained
