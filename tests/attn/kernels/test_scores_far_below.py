"""Scores far below -1e30, as learned biases or masks by large numbers give, in each kernel that computes a softmax in turns."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cuir import flex_attention
from tests.attn.kernels.test_split_kv import counts as counts  # a fixture
from tests.attn.serving.test_cached import Problem

BELOW = -(2.0**111)  # -2.6e33: times log2(e) it is a number of float32, and sums with scores round to it


def far_below(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return s + BELOW


def in_part(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return s + torch.where(k < 70, 4 * BELOW, torch.where(k < 130, BELOW, 2 * BELOW))


@pytest.mark.sweep(4)
@pytest.mark.parametrize(("score", "keys_that_count"), [(far_below, slice(None)), (in_part, slice(70, 130))])
@pytest.mark.parametrize(("dtype", "queries", "keys"), [(torch.float16, 70, 200), (torch.float32, 70, 200), (torch.bfloat16, 2, 600)])
def test_equal_scores_share_the_weight(score: Any, keys_that_count: slice, dtype: torch.dtype, queries: int, keys: int) -> None:
    q, k, v = (torch.randn(1, 2, n, 64).to(dtype) for n in (queries, keys, keys))
    o, lse = flex_attention(q, k, v, score, return_lse=True, backend="interpret")
    torch.testing.assert_close(o, v[:, :, keys_that_count].float().mean(2, keepdim=True).expand(o.shape).to(dtype), atol=2e-3, rtol=1e-2)
    torch.testing.assert_close(lse, torch.full_like(lse, BELOW))


def test_shares_of_keys_are_joined(counts: list[tuple[int, int]]) -> None:
    problem = Problem([512, 512], 16, (4, 2), M=3)  # shares alike: LSE so far below does not tell their numbers of keys
    o, lse = problem.call(score_mod=far_below)
    assert counts and counts[-1][1] > 1
    for b, tokens in enumerate(problem.values):
        mean = tokens.float().mean(0).repeat_interleave(2, 0)
        torch.testing.assert_close(o[b].float(), mean.expand(o[b].shape), atol=2e-3, rtol=1e-2)
    torch.testing.assert_close(lse, torch.full_like(lse, BELOW))
