"""Structures of attention that no mask and no score says, each a function: targets of `cuir eval` beside the variants of the corpus.

Name one as `benchmarks/structures.py:retention`.
"""

from __future__ import annotations

import torch

from cuir.spec import FunctionSpecification


def dropped_weights() -> FunctionSpecification:
    """O = (R * softmax(scale * Q K^T)) V, every query with every key; R has a factor for each pair: 0 for a weight that is dropped, else 1 / (1 - p). The softmax is that of all keys, and LSE with it."""

    def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, r: torch.Tensor, scale: float) -> dict[str, torch.Tensor]:
        group = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(group, 1) for x in (k, v))
        s = q @ k.mT * scale
        return {"O": (r * s.softmax(-1)) @ v, "LSE": s.logsumexp(-1)}

    return FunctionSpecification("dropped_weights", reference, doc=dropped_weights.__doc__ or "", parameters="R: Global[T, B, H, M, N]")


def gated_scores() -> FunctionSpecification:
    """O = softmax(scale * Q K^T * sigmoid(scale * Q2 K2^T)) V, every query with every key; Q2 is of the shape of Q, K2 of K. LSE is that of the softmax."""

    def reference(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, q2: torch.Tensor, k2: torch.Tensor, scale: float
    ) -> dict[str, torch.Tensor]:
        group = q.shape[1] // k.shape[1]
        k, v, k2 = (x.repeat_interleave(group, 1) for x in (k, v, k2))
        s = q @ k.mT * scale * torch.sigmoid(q2 @ k2.mT * scale)
        return {"O": s.softmax(-1) @ v, "LSE": s.logsumexp(-1)}

    return FunctionSpecification(
        "gated_scores", reference, doc=gated_scores.__doc__ or "", parameters="Q2: Global[T, B, H, M, D], K2: Global[T, B, HK, N, D]"
    )


def gated_values() -> FunctionSpecification:
    """O = P (sigmoid(G) V) with P = softmax(scale * Q K^T), every query with every key; G has a number for each key of each key head. The softmax knows nothing of the gate.

    Qiu et al. 2025, "Gated Attention for Large Language Models", section 2.2, the gate at the values (G2), one for a head. LSE is that of the softmax.
    """

    def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, scale: float) -> dict[str, torch.Tensor]:
        group = q.shape[1] // k.shape[1]
        k, v, g = (x.repeat_interleave(group, 1) for x in (k, v, g))
        s = q @ k.mT * scale
        return {"O": s.softmax(-1) @ (torch.sigmoid(g)[..., None] * v), "LSE": s.logsumexp(-1)}

    return FunctionSpecification("gated_values", reference, doc=gated_values.__doc__ or "", parameters="G: Global[T, B, HK, N]")


def joint_attention() -> FunctionSpecification:
    """O = softmax(scale * [Q K^T, Q K2^T]) [V; V2]: every query with every key of both; K2 and V2 have a length of their own. LSE is that of the one softmax.

    Esser et al. 2024, "Scaling Rectified Flow Transformers", section 4 (text and image attend to both), with the sequences where they lie.
    """

    def reference(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, k2: torch.Tensor, v2: torch.Tensor, scale: float
    ) -> dict[str, torch.Tensor]:
        group = q.shape[1] // k.shape[1]
        k, v, k2, v2 = (x.repeat_interleave(group, 1) for x in (k, v, k2, v2))
        s = q @ torch.cat((k, k2), 2).mT * scale
        return {"O": s.softmax(-1) @ torch.cat((v, v2), 2), "LSE": s.logsumexp(-1)}

    return FunctionSpecification(
        "joint_attention", reference, doc=joint_attention.__doc__ or "", parameters="K2: Global[T, B, HK, L, D], V2: Global[T, B, HK, L, D]"
    )


def largest_weight() -> FunctionSpecification:
    """O = P V and TOP = the largest of P for each query, with P = softmax(scale * Q K^T), every query with every key; TOP of a query without keys is 0. LSE is that of the softmax."""

    def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> dict[str, torch.Tensor]:
        group = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(group, 1) for x in (k, v))
        s = q @ k.mT * scale
        p = s.softmax(-1)
        top = p.amax(-1) if p.shape[-1] else torch.zeros(p.shape[:-1], dtype=p.dtype)
        return {"O": p @ v, "LSE": s.logsumexp(-1), "TOP": top}

    return FunctionSpecification("largest_weight", reference, doc=largest_weight.__doc__ or "", parameters="TOP: Global[f32, B, H, M]")


def normed_output() -> FunctionSpecification:
    """O = A / sqrt(mean over the head dim of A^2 + 1e-5) * W[h] with A = softmax(scale * Q K^T) V, every query with every key; W has a weight for each column of each head.

    The norm of each head behind the attention: Ye et al. 2024, "Differential Transformer", section 2.1; Sun et al. 2023, "Retentive Network", equation 8.
    """

    def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, w: torch.Tensor, scale: float) -> dict[str, torch.Tensor]:
        group = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(group, 1) for x in (k, v))
        a = (q @ k.mT * scale).softmax(-1) @ v
        return {"O": a * (a.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * w[:, None]}

    return FunctionSpecification("normed_output", reference, doc=normed_output.__doc__ or "", parameters="W: Global[T, H, D]")


def residual_attention() -> FunctionSpecification:
    """O = X + softmax(scale * Q K^T) V, every query with every key; X is of the shape of O. The sum is rounded once."""

    def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, x: torch.Tensor, scale: float) -> dict[str, torch.Tensor]:
        group = q.shape[1] // k.shape[1]
        k, v = (y.repeat_interleave(group, 1) for y in (k, v))
        return {"O": x + (q @ k.mT * scale).softmax(-1) @ v}

    return FunctionSpecification(
        "residual_attention", reference, doc=residual_attention.__doc__ or "", parameters="X: Global[T, B, H, M, D]"
    )


def retention() -> FunctionSpecification:
    """O = (scale * Q K^T * D) V with D = exp(-|A[h]| * (i - k)) where k <= i, else 0, and i = q + (N - M); A has a number for each head. A query without keys has O = 0.

    Sun et al. 2023, "Retentive Network", equation 5, the parallel form, without the rotation and the norm.
    """

    def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, a: torch.Tensor, scale: float) -> dict[str, torch.Tensor]:
        group = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(group, 1) for x in (k, v))
        far = torch.arange(q.shape[2])[:, None] + (k.shape[2] - q.shape[2]) - torch.arange(k.shape[2])
        fade = torch.where(far >= 0, torch.exp(-a.abs()[:, None, None] * far.clamp(min=0)), 0.0)
        return {"O": (q @ k.mT * scale * fade) @ v}

    return FunctionSpecification("retention", reference, doc=retention.__doc__ or "", parameters="A: Global[f32, H]")


def rms_queries() -> FunctionSpecification:
    """O = softmax(scale * Q' K^T) V, Q' = Q / sqrt(mean over the head dim of Q^2 + 1e-6), every query with every key.

    The norm of queries without its weights (Henry et al. 2020, "Query-Key Normalization for Transformers", as root mean square). LSE is that of the softmax.
    """

    def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> dict[str, torch.Tensor]:
        group = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(group, 1) for x in (k, v))
        s = q * (q.square().mean(-1, keepdim=True) + 1e-6).rsqrt() @ k.mT * scale
        return {"O": s.softmax(-1) @ v, "LSE": s.logsumexp(-1)}

    return FunctionSpecification("rms_queries", reference, doc=rms_queries.__doc__ or "", parameters="")


def row_entropy() -> FunctionSpecification:
    """O = P V and ENT = -(sum over the keys of P log P), in natural logarithms, with P = softmax(scale * Q K^T), every query with every key. LSE is that of the softmax.

    Used to watch attention collapse: Zhai et al. 2023, "Stabilizing Transformer Training by Preventing Attention Entropy Collapse", section 3.
    """

    def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> dict[str, torch.Tensor]:
        group = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(group, 1) for x in (k, v))
        s = q @ k.mT * scale
        p, lse = s.softmax(-1), s.logsumexp(-1)
        return {"O": p @ v, "LSE": lse, "ENT": lse - (p * s).sum(-1)}

    return FunctionSpecification("row_entropy", reference, doc=row_entropy.__doc__ or "", parameters="ENT: Global[f32, B, H, M]")


def squared_relu() -> FunctionSpecification:
    """O = (relu(scale * Q K^T)^2 / max(N, 1)) V, every query with every key.

    Hua et al. 2022, "Transformer Quality in Linear Time", section 3.2, without its offsets.
    """

    def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> dict[str, torch.Tensor]:
        group = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(group, 1) for x in (k, v))
        return {"O": torch.relu(q @ k.mT * scale).square() / max(k.shape[2], 1) @ v}

    return FunctionSpecification("squared_relu", reference, doc=squared_relu.__doc__ or "", parameters="")


def sum_of_weights() -> FunctionSpecification:
    """O = (softmax(S) + lam * sigmoid(S)) V with S = scale * Q K^T, every query with every key; lam is a number."""

    def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, lam: float) -> dict[str, torch.Tensor]:
        group = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(group, 1) for x in (k, v))
        s = q @ k.mT * scale
        return {"O": (s.softmax(-1) + lam * torch.sigmoid(s)) @ v}

    return FunctionSpecification("sum_of_weights", reference, doc=sum_of_weights.__doc__ or "", parameters="lam: f32")


def two_values() -> FunctionSpecification:
    """O = P V and O2 = P V2 with P = softmax(scale * Q K^T), every query with every key; V2 is of the shape of V, O2 of O. P is worked out once."""

    def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, v2: torch.Tensor, scale: float) -> dict[str, torch.Tensor]:
        group = q.shape[1] // k.shape[1]
        k, v, v2 = (x.repeat_interleave(group, 1) for x in (k, v, v2))
        p = (q @ k.mT * scale).softmax(-1)
        return {"O": p @ v, "O2": p @ v2}

    return FunctionSpecification(
        "two_values", reference, doc=two_values.__doc__ or "", parameters="V2: Global[T, B, HK, N, D], O2: Global[T, B, H, M, D]"
    )
