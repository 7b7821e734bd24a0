"""Causal attention whose scores have a second product, of queries and keys of positions."""

from __future__ import annotations

import torch

from cuir.spec import FunctionSpecification


def second_keys() -> FunctionSpecification:
    """O = softmax(scale * (Q K^T + Q2 K2^T)) V where k <= q + (N - M).

    A query without keys has O = 0. LSE is that of the softmax.

    DeepSeek-AI 2024, "DeepSeek-V2", section 2.1.3: queries and keys that carry the position, beside those that do not.
    """

    def reference(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, q2: torch.Tensor, k2: torch.Tensor, scale: float
    ) -> dict[str, torch.Tensor]:
        group, M, N = q.shape[1] // k.shape[1], q.shape[2], k.shape[2]
        k, k2, v = (x.repeat_interleave(group, 1) for x in (k, k2, v))
        keep = torch.arange(N) <= torch.arange(M)[:, None] + (N - M)
        s = ((q @ k.mT + q2 @ k2.mT) * scale).masked_fill(~keep, -torch.inf)
        p = s.softmax(-1).masked_fill(~keep.any(-1, keepdim=True), 0.0)
        return {"O": p @ v, "LSE": s.logsumexp(-1)}

    return FunctionSpecification(
        "second_keys", reference, doc=second_keys.__doc__ or "", parameters="Q2: Global[T, B, H, M, E], K2: Global[T, B, HK, N, E]"
    )
