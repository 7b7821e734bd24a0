"""Batches of servers over pages, in the interpreter, against float64: which sequences decode, what pads a batch, and the rules of layers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from cuir.integrations.batches import Batch, CallOptions, attend, rules_of
from tests.attn.serving.test_packed_cache import Problem

H, HK = 4, 2


def batch_of(problem: Problem, rows: int | None = None, causal: bool = True, invariant: bool = False) -> Batch:
    queries, keys = problem.lengths
    assert problem.table is not None
    starts = torch.tensor([0, *queries]).cumsum(0).int()
    lengths = torch.tensor(keys, dtype=torch.int32)
    return Batch.of(starts, queries, lengths, problem.table, sum(queries) if rows is None else rows, H // HK, causal, invariant)


def attend_batch(problem: Problem, batch: Batch, behind: int = 0, invariant: bool = False, **rules: Any) -> torch.Tensor:
    q = torch.cat([*problem.q, torch.full((behind, H, 64), math.nan, dtype=torch.float16)])
    out = torch.full_like(q, 7.0)
    attend(
        q, *(x.transpose(1, 2) for x in problem.caches), batch, rules_of(**rules), 0.125, out, CallOptions("interpret", "off", invariant)
    )  # type: ignore[arg-type]
    return out


@pytest.mark.parametrize(
    ("queries", "each", "rest"),
    [
        ([1, 1, 1], [1], 0),  # all decode
        ([1, 1, 40, 7], [1], 2),  # then prompts
        ([3, 3, 1, 50], [3], 2),  # with guesses of a draft
        ([40, 1], [], 2),  # nobody stands in front
        ([33, 33], [], 2),  # too many queries for the kernel of few
    ],
)
def test_who_decodes(queries: list[int], each: list[int], rest: int) -> None:
    problem = Problem(queries, [n + 20 for n in queries], 16, (H, HK))
    batch = batch_of(problem)
    assert [part.each for part in batch.parts if part.starts is None] == each
    assert sum(len(part.lengths) for part in batch.parts if part.starts is not None) == rest
    expected, _ = problem.compute_expected(causal=True)
    assert torch.allclose(attend_batch(problem, batch).double(), expected, atol=4e-3)


def test_sequences_that_pad_a_batch() -> None:
    """Padding of a CUDA graph: without queries, rows behind the others'; outside of a graph without rows."""
    problem = Problem([1, 1, 0, 0], [30, 20, 0, 0], 16, (H, HK))
    expected, _ = problem.compute_expected(causal=True)
    for rows, sequences in ((4, 4), (2, 2)):
        batch = batch_of(problem, rows)
        assert [len(part.lengths) for part in batch.parts] == [sequences]
        out = attend_batch(problem, batch, rows - 2)
        assert torch.allclose(out[:2].double(), expected, atol=4e-3) and bool((out[2:] == 0).all())
    assert not Batch.of(torch.zeros(3, dtype=torch.int32), [0, 0], torch.zeros(2), torch.zeros(2, 1), 0, 2).parts


def test_rules() -> None:
    slopes, cap, window = torch.tensor([0.5, 0.2, 0.1, 0.05]), 3.0, 9
    problem = Problem([1, 1, 30], [40, 12, 35], 16, (H, HK))

    def score(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        M, N = (lengths[b] for lengths in problem.lengths)
        return cap * torch.tanh(s / cap) + slopes[h] * (k - (q + N - M))

    def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
        M, N = (lengths[b] for lengths in problem.lengths)
        return k > q + N - M - window

    out = attend_batch(problem, batch_of(problem), softcap=cap, slopes=slopes, window=window)
    expected, _ = problem.compute_expected(score, mask, causal=True)
    assert torch.allclose(out.double(), expected, atol=4e-3)


def test_sinks() -> None:
    problem, sink = Problem([1, 25], [40, 25], 16, (H, HK)), torch.tensor([0.5, -1.0, 2.0, 0.0])
    expected, lse = problem.compute_expected(causal=True)
    share = 1 / (1 + (sink[:, None] - lse).exp())
    assert torch.allclose(attend_batch(problem, batch_of(problem), sink=sink).double(), expected * share.T[..., None], atol=4e-3)


def test_a_token_has_its_bits_as_a_query_that_decodes_and_in_a_prompt() -> None:
    """The last of 40 queries of a prompt, and the same token behind a server's 39 others: bits of one kernel."""
    prompt = Problem([40, 3], [600, 90], 16, (H, HK))
    decoding = Problem([1, 3], [600, 90], 16, (H, HK))
    decoding.q[0], decoding.q[1] = prompt.q[0][-1:], prompt.q[1]
    decoding.caches, decoding.table = prompt.caches, prompt.table
    whole, last = (attend_batch(p, batch_of(p, invariant=True), invariant=True) for p in (prompt, decoding))
    assert torch.equal(whole[39:], last)
    batch = batch_of(decoding, invariant=True)
    assert [part.each for part in batch.parts] == [0] and batch_of(decoding).parts[0].each == 1
