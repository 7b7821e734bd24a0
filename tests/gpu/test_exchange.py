"""Data handed from CTA to CTA of a cluster in a tensor, on a GPU."""

from __future__ import annotations

import pytest

from cuir.checking.checker import check
from cuir.interp import run
from cuir.syntax.parser import parse
from tests.gpu import exchange_cases
from tests.gpu.isolation import isolated


@pytest.mark.gpu
def test_exchange() -> None:
    isolated(exchange_cases.right, seconds=200)


@pytest.mark.parametrize("schedule", ["in_order", "adversarial:reverse", "random:1"])
def test_it_is_right_in_the_interpreter(schedule: str) -> None:
    given = exchange_cases.arguments(3, "cpu")
    run(check(parse(exchange_cases.EXCHANGE, "exchange.cuir")), given, schedule=schedule)
    assert given["Y"].equal(exchange_cases.wanted(given["X"], 5))
