"""The cost of a predicate for a pair."""

from __future__ import annotations

import pytest
import torch

from cuir.attn.masks.pair_costs import per_pair
from cuir.attn.tracing.trace import trace
from cuir.spec.specification import Specification

TABLE = torch.zeros(8, dtype=torch.int32)


def cost(mod: object) -> float:
    keep = trace(Specification("mask", mod)).keep  # type: ignore[arg-type]
    assert keep is not None
    return per_pair(keep)


def test_what_follows_from_the_query_alone_is_free_and_from_the_key_half() -> None:
    assert cost(lambda b, h, q, k: (q % 7 < 3) & (k >= 0)) == cost(lambda b, h, q, k: (q < 3) & (k >= 0))
    assert cost(lambda b, h, q, k: k % 7 < q) < cost(lambda b, h, q, k: (k + q) % 7 < q)


def test_limits_cost_a_comparison_however_they_are_written() -> None:
    assert cost(lambda b, h, q, k: q - k <= 100) == cost(lambda b, h, q, k: k >= q - 100) == 1


def test_reads_beside_each_other_are_cheap_and_others_are_not() -> None:
    together, difference = cost(lambda b, h, q, k: TABLE[k + 1] == q), cost(lambda b, h, q, k: TABLE[k * 2] == q)
    assert together < difference < cost(lambda b, h, q, k: TABLE[k ^ q] == q)


@pytest.mark.parametrize("shared", [True, False])
def test_what_is_used_twice_counts_once(shared: bool) -> None:
    def mod(b, h, q, k):  # type: ignore[no-untyped-def]
        rest = (q - k) % 9
        return (rest < 3) | ((rest if shared else (q - k) % 11) > 5)

    assert (cost(mod) < 20) == shared
