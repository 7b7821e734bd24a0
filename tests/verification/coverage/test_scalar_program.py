import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import cuir
from cuir.interp.expression_watches import watch_runs
from cuir.interp.interpreted_launch import forget_entered
from cuir.verification.coverage.conditions import collect_conditions
from cuir.verification.coverage.observed_sides import observe
from cuir.verification.coverage.scalar_program import ScalarProgram, Unknown

from .planted import check_body

BODY = """if n % 3 == 2 and t > 4:
                f = 2.0 if (h ^ 1) == 0 else f
            for k in range(m + 1):
                f = min(f, 2.0) if bit(k, 1) else f
            m = min(m, max(n, t - 3) // 4 + m)"""
CHECKED = check_body(BODY)
PROGRAM = ScalarProgram(CHECKED, collect_conditions(CHECKED))


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 70), st.integers(1, 4))
def test_it_sees_what_the_interpreter_sees(b: int, h: int, m: int, grid: int) -> None:
    """The same sides, of every condition, without the data."""
    observed = observe(CHECKED)
    forget_entered(CHECKED)
    x = torch.zeros(b, h, m, 32, dtype=torch.float16)
    with watch_runs():
        cuir.run(CHECKED, {"X": x, "Y": torch.empty_like(x)}, grid=grid)
    masks = PROGRAM.evaluate({"B": b, "H": h, "M": m}, min(grid, PROGRAM.units({"B": b, "H": h, "M": m})))
    visited = observed.masks()
    assert {
        c.text: (masks.sides[c.number], visited[c.number])
        for c in observed.conditions
        if c.role >= 0 and masks.sides[c.number] != visited[c.number]
    } == {}


def test_units() -> None:
    assert PROGRAM.units({"B": 2, "H": 3, "M": 33}) == 18


def test_numbers_of_turns_are_kept() -> None:
    masks = PROGRAM.evaluate({"B": 1, "H": 1, "M": 40})
    loop = next(c for c in collect_conditions(CHECKED) if c.kind == "turns")
    assert masks.turns[loop.number] == {1, 2, 3} and masks.units == {3}


def test_a_launch_that_is_too_long_is_unknown() -> None:
    with pytest.raises(Unknown):
        PROGRAM.evaluate({"B": 100, "H": 100, "M": 1}, turns=1000)


def test_scalars_are_read_from_inputs() -> None:
    checked = check_body("f = 2.0 if L[b] > 3 else 2.0", ", L: Global[i32, B]")
    expected = [c for c in collect_conditions(checked) if c.text == "L[b] > 3"]
    program = ScalarProgram(checked, expected)
    with pytest.raises(Unknown):
        program.evaluate({"B": 2, "H": 1, "M": 1})
    tensors = {"L": np.array([1, 9], dtype=np.int32)}
    assert program.evaluate({"B": 2, "H": 1, "M": 1}, tensors=tensors.__getitem__).sides[expected[0].number] == 3
    assert program.evaluate({"B": 1, "H": 1, "M": 1}, tensors=tensors.__getitem__).sides[expected[0].number] == 2
