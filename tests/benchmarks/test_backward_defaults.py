"""The forms of a backward pass that are timed beside the one that a call gets, in the interpreter."""

from __future__ import annotations

import pytest

from benchmarks.backward_defaults import Problem
from cuir.performance.suites.cell_benchmark import Cell
from cuir.performance.timing.problem import Shape, compute_expected_gradients


@pytest.mark.parametrize(
    ("variant", "shape", "names"),
    [
        ("causal", Shape(1, 2, 1, 70, 90, 64), {"cuir", "apart", "spread", "reordered"}),
        ("full", Shape(1, 2, 2, 70, 90, 192), {"cuir", "apart"}),
    ],
)
def test_all_forms_give_the_gradients(variant: str, shape: Shape, names: set[str]) -> None:
    problem = Problem(Cell(variant, {}, "small", shape), "cpu", "interpret")
    calls = problem.calls()
    assert set(calls) == names
    expected = compute_expected_gradients(problem.spec, problem.q, problem.k, problem.v, problem.do, problem.scale)
    for name, call in calls.items():
        grads = call()
        assert not expected.judge(grads), name
