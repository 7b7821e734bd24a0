"""The largest score of each query, MAX_SCORES.

It is in the units of the scores, and -inf for a query without keys. The softmax's own reference will not do: it may lag
behind the maximum, where that grows little.
"""

from __future__ import annotations

import math

import torch

from .attention_output import AttentionOutput, RowState


def write_value(normalize: str) -> str:
    """Return the expression that is stored; only relu's logits are not base-2."""
    return "most" if normalize == "relu" else "most * LN2"


MAX_SCORES = AttentionOutput(
    name="MAX_SCORES",
    description="the largest scores",
    states=(
        RowState("most", "the largest score so far, as `score` scales it", "full(f32, [R, 1], -inf)", "max(most, row_max(S) * c)", "max"),
    ),
    write_value=write_value,
    compute=lambda scores, weights: scores.amax(-1),
    without_keys=-math.inf,
    allow=lambda expected, allowed_of_lse: torch.full_like(expected, allowed_of_lse),
    request_field="max_scores",
)

__all__ = ["MAX_SCORES"]
