"""Calls of serving on a GPU: numbers, bits, synchronisation, graphs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.gpu import serving_cases as cases
from tests.gpu.isolation import run_isolated

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    "kind",
    [
        *cases.KINDS,
        "packed",
        "packed, 32 bits",
        "few",
        "many",
        "latent",
        "latent, two tokens",
        "latent, shared",
        "selected tokens",
        "selected tokens, two queries",
        "selected tokens, shared",
        "latent, 8 bits",
        "latent, 8 bits, two tokens",
        "latent, 8 bits, shared",
        "shared",
        "shared, 8 bits",
        "server",
        "server decoding",
        *cases.MIXED,
    ],
)
@pytest.mark.parametrize("case", [cases.beside_the_interpreter, cases.same_bits, cases.without_synchronisation, cases.compiled])
def test_serving(case: Callable[[str], object], kind: str) -> None:
    run_isolated(case, kind, seconds=300)


@pytest.mark.parametrize("kind", cases.KINDS)
def test_lengths_that_grow_in_a_graph(kind: str) -> None:
    run_isolated(cases.in_a_graph, kind, seconds=300)


def test_a_server_in_a_graph() -> None:
    run_isolated(cases.served_in_a_graph, seconds=300)


def test_other_places_in_a_graph() -> None:
    run_isolated(cases.other_places_in_a_graph, seconds=300)


def test_other_orders_in_a_graph() -> None:
    run_isolated(cases.other_orders_in_a_graph, seconds=300)


def test_other_lengths_of_shares_in_a_graph() -> None:
    run_isolated(cases.other_lengths_of_shares_in_a_graph, seconds=300)


@pytest.mark.parametrize(("dtype", "bound"), [("float16", 3e-3), ("float32", 1e-5)])
@pytest.mark.parametrize("compiler", [None, "inductor"])
def test_gradients_of_packed_sequences(dtype: str, bound: float, compiler: str | None) -> None:
    run_isolated(cases.packed_gradients, dtype, bound, "cuda", compiler, seconds=300)
