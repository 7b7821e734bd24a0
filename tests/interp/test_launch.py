"""Ways to call the interpreter: an unchecked program, a schedule by its text, a list of what was wrong."""

from __future__ import annotations

import pytest
import torch

from cuir.diagnostics import CuirError
from cuir.interp import Schedule, run
from cuir.parser import parse

TEXT = """
@kernel(arch="sm_80")
def double(X: Global[T, M], Y: Global[T, M], *, T: const, FACTOR: const = 2):
    work = tiles(cdiv(M, 16))
    with role("all", warps=1):
        for t in work:
            i = t * 16 + rows(16)
            store(Y[i], X[i] * FACTOR)
"""


def test_a_program_is_checked_with_what_the_tensors_say() -> None:
    x, y = torch.arange(40.0), torch.zeros(40)
    report = run(parse(TEXT), {"X": x, "Y": y}, consts={"FACTOR": 3}, schedule="random:7")
    assert torch.equal(y, 3 * x) and report.schedule == "random:7" and report.units == 3


@pytest.mark.parametrize("schedule", ["in_order", "random:3", "adversarial:5", "adversarial:starve:1"])
def test_schedules_by_text(schedule: str) -> None:
    assert str(Schedule.parse(schedule)) == schedule
    run(parse(TEXT), {"X": torch.ones(5), "Y": torch.ones(5)}, schedule=schedule)


def test_wrong_calls_are_told() -> None:
    for changed, code in (({"schedule": "sometimes"}, "U111"), ({"grid": 0}, "U112"), ({"consts": {"NOPE": 1}}, "N111")):
        with pytest.raises(CuirError) as caught:
            run(parse(TEXT), {"X": torch.ones(5), "Y": torch.ones(5)}, **changed)  # type: ignore[arg-type]
        assert [d.code for d in caught.value.diagnostics] == [code]
