"""Descriptions of further outputs of the forward attention kernel.

Such an output has a number of each query: f32 [B, H, M], stored where LSE is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class RowState:
    """A number of each query that a kernel extends the state of its softmax by, f32 [R, 1].

    Attributes:
        name: that no other state of the table has.
        description: of the number, for a comment in the kernel.
        begin: its value before the first block of keys, an expression of R.
        step: its value behind another block, an expression of its name; of S and c, whose product has the block's
            base-2 logits, -inf where the mask drops a pair; of P, the block's weights before the normalisation; and of
            alpha, the factor that converts earlier sums of such weights to the scale of P.
        merge: the function that joins the states of two parts of the keys, so that x joined with x is x. With the
            prefix `row_` it joins a row of them. None for a state that kernels which share out the keys cannot have.
    """

    name: str
    description: str
    begin: str
    step: str
    merge: str | None = None


@dataclass(frozen=True)
class AttentionOutput:
    """A further output of the attention kernel.

    Attributes:
        name: of the kernel's tensor, and in `Specification.outputs`.
        description: a plural, for messages.
        states: numbers that the kernel keeps for it.
        write_value: returns for a `normalize` of a specification the expression that is stored. It reads the states;
            LN2, by which base-2 logits become scores; and calls of `normalise`, which multiplies a sum of P by the
            factor that makes weights of P.
        compute: returns the output in float64 from scores and weights (before dropout) [B, H, M, N] of queries with
            keys.
        without_keys: its value for a query without keys.
        allow: returns the absolute error that is allowed, from the expected output and from the error that is allowed
            for LSE, which is that of scores.
        request_field: the field of PyTorch's AuxRequest and AuxOutput, which is also an option of `Specification`. None
            for an output that only `Specification.outputs` asks for.
    """

    name: str
    description: str
    states: tuple[RowState, ...]
    write_value: Callable[[str], str]
    compute: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    without_keys: float
    allow: Callable[[torch.Tensor, float], torch.Tensor]
    request_field: str | None = None

    def compute_expected(self, scores: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Compute the output [B, H, M] in float64 from scores and weights of all queries [B, H, M, N]."""
        if not scores.shape[-1]:
            return scores.new_full(scores.shape[:-1], self.without_keys)
        return torch.where((scores == -torch.inf).all(-1), self.without_keys, self.compute(scores, weights))


__all__ = ["AttentionOutput", "RowState"]
