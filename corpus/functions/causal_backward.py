"""Gradients of causal attention, from what the forward pass kept."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from cuir.spec import FunctionSpecification


def causal_backward() -> FunctionSpecification:
    """dQ [B, H, M, D] (added to), dK and dV [B, H, N, D] of `causal` (bottom-right aligned), for dO [B, H, M, D]; of one key head for each query head, to be added up.

    The kernel reads LSE, the logarithm of each query's sum, and DL = row_sum(O * dO), both f32 [B, H, M]; the gradients are autograd's.
    """

    def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, do: torch.Tensor, scale: float) -> tuple[torch.Tensor, ...]:
        q, k, v = (x.detach().requires_grad_() for x in (q, _per_head(k, q), _per_head(v, q)))
        o, _ = _forward(q, k, v, scale)
        return torch.autograd.grad(o, (q, k, v), do)

    def inputs(sizes: Mapping[str, int], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, do: torch.Tensor, scale: float) -> dict[str, torch.Tensor]:  # fmt: skip
        q, k, v, do = (x.double() for x in (q, k, v, do))
        o, lse = _forward(q, _per_head(k, q), _per_head(v, q), scale)
        return {"LSE": lse, "DL": (o * do).sum(-1)}

    return FunctionSpecification("causal_backward", reference, inputs, doc=causal_backward.__doc__ or "")


def _per_head(x: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return x.repeat_interleave(q.shape[1] // x.shape[1], 1)


def _forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """O and LSE. A query without keys has O = 0 and LSE = -inf, and no gradient."""
    M, N = q.shape[2], k.shape[2]
    keep = torch.arange(N) <= torch.arange(M)[:, None] + (N - M)
    s = (q @ k.mT * scale).masked_fill(~keep, -torch.inf)
    p = s.masked_fill(~keep.any(-1, keepdim=True), 0.0).softmax(-1) * keep  # a softmax of -inf alone is NaN, as is its gradient
    return p.to(v.dtype) @ v, s.logsumexp(-1)
