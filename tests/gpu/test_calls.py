"""Calling a compiled kernel on a GPU: ways to pass arguments, errors, streams, graphs, threads, empty problems, cost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.gpu import call_cases as cases
from tests.gpu.isolation import run_isolated

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    "case",
    [
        cases.ways_of_calling,
        cases.known_signatures_with_other_tensors,
        cases.errors_of_a_call,
        cases.side_streams,
        cases.graphs,
        cases.threads,
        cases.nothing_to_do,
        cases.same_bits,
    ],
)
def test_calls(case: Callable[[], object]) -> None:
    run_isolated(case)


def test_a_warm_call_costs_little_more_than_its_launch() -> None:
    cost = run_isolated(cases.host_cost)
    print(cost)
    assert cost["warm call"] - cost["driver's launch alone"] <= 30.0  # alone on a machine: below 15
