"""Expected gradients in float64 of some heads of an attention problem, and errors of half precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from ...spec.gradients import forward
from ...spec.specification import Specification
from .problem import FACTOR, SLACK, compute_relative_error, select_head, split_rows

NAMES = ("dQ", "dK", "dV")
Part = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class ExpectedGradients:
    """Gradients of some heads.

    Attributes:
        parts: (batch, key head, dQ [G, M, D] of its G query heads, dK [N, D], dV [N, DV]) in float64.
        half_errors: The largest relative error of half precision of each of the three.
    """

    parts: tuple[tuple[int, int, Part], ...]
    half_errors: tuple[float, float, float]

    @property
    def bounds(self) -> tuple[float, ...]:
        """Greatest relative errors that are accepted."""
        return tuple(FACTOR * error + SLACK for error in self.half_errors)

    def errors(self, grads: Sequence[torch.Tensor]) -> tuple[float, ...]:
        """Return the largest relative errors of dQ [B, H, M, D], dK [B, HK, N, D] and dV [B, HK, N, DV]."""
        part_errors = [
            [compute_relative_error(x.double(), y) for x, y in zip(_part(grads, b, h), part, strict=True)] for b, h, part in self.parts
        ]
        # a NaN is the largest
        return tuple(float(torch.tensor(values).max()) for values in zip(*part_errors, strict=True))

    def judge(self, grads: Sequence[torch.Tensor]) -> str:
        """Return why gradients are wrong; empty if they are right."""
        for name, error, bound, half_error, x in zip(NAMES, self.errors(grads), self.bounds, self.half_errors, grads, strict=True):
            if not error <= bound:
                return f"relative error of {name} {error:.2e}, PyTorch in half precision has {half_error:.2e}"
            if not bool(torch.isfinite(x).all()):
                return f"{name} has numbers that are not finite: part of it was not written"
        return ""


def compute_expected_gradients(
    spec: Specification, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, do: torch.Tensor, scale: float
) -> ExpectedGradients:
    """Compute gradients of the first key head of the first batch and the last of the last.

    They are computed for some queries at a time, as float64 scores of all would not fit.
    """
    problem = _Problem(spec, q, k, v, do, scale)
    parts, half_errors = [], [0.0, 0.0, 0.0]
    for b, h in dict.fromkeys(((0, 0), (q.shape[0] - 1, k.shape[1] - 1))):
        expected, half = (_compute_group(problem, b, h, dtype) for dtype in (torch.float64, q.dtype))
        parts.append((b, h, expected))
        half_errors = [max(a, compute_relative_error(x, y)) for a, x, y in zip(half_errors, half, expected, strict=True)]
    return ExpectedGradients(tuple(parts), (half_errors[0], half_errors[1], half_errors[2]))


class _Problem(NamedTuple):
    """Attention with its inputs and the gradient of its output."""

    spec: Specification
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    do: torch.Tensor
    scale: float


def _compute_group(problem: _Problem, b: int, hk: int, dtype: torch.dtype) -> Part:
    """Return dQ of the query heads of a key head, and its dK and dV.

    They are computed in `dtype` and returned in float64.
    """
    spec, q, k, v, do, scale = problem
    group = q.shape[1] // k.shape[1]
    keys = [x[b : b + 1, hk : hk + 1].to(dtype) for x in (k, v)]
    dq, dk, dv = torch.zeros(group, *q.shape[2:], dtype=torch.float64, device=q.device), *(x[0, 0].double() * 0.0 for x in keys)
    for g in range(group):
        h = hk * group + g
        for rows in split_rows(q.shape[2], k.shape[2]):
            leaves = i, j, value = [x.detach().requires_grad_() for x in (q[b : b + 1, h : h + 1, rows].to(dtype), *keys)]
            with torch.enable_grad():
                o, _ = forward(select_head(spec, q, k, b, h, rows.start), i, j, value, scale)
            gradients = torch.autograd.grad(o, leaves, do[b : b + 1, h : h + 1, rows].to(dtype))
            dq[g, rows], dk, dv = gradients[0][0, 0].double(), dk + gradients[1][0, 0].double(), dv + gradients[2][0, 0].double()
    return dq, dk, dv


def _part(grads: Sequence[torch.Tensor], b: int, hk: int) -> Part:
    group = grads[0].shape[1] // grads[1].shape[1]
    return grads[0][b, hk * group : hk * group + group], grads[1][b, hk], grads[2][b, hk]


__all__ = ["NAMES", "ExpectedGradients", "compute_expected_gradients"]
