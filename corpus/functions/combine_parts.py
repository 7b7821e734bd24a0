"""Attention over all keys from attention over parts of them."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from cuir.spec import FunctionSpecification


def combine_parts() -> FunctionSpecification:
    """O [B, H, M, D] from the outputs OS [SP, B, H, M, D] and LSEs LS [SP, B, H, M] of parts; up to 16 queries. A query of which no part has a key gives 0."""

    def reference(os: torch.Tensor, ls: torch.Tensor) -> torch.Tensor:
        total = ls.logsumexp(0)
        weights = (ls - total.masked_fill(total == -torch.inf, 0.0)).exp()
        return (weights[..., None] * os).sum(0)

    def sizes(drawn: Mapping[str, int]) -> dict[str, int]:
        return {"M": min(drawn["M"], 16)}

    def inputs(sizes: Mapping[str, int], generator: torch.Generator, ls: torch.Tensor) -> dict[str, torch.Tensor]:
        """Some parts, and all of some queries, have no key; others are far above or below the rest, as those of large logits are."""
        far = 120.0 * torch.randint(-1, 2, ls.shape, generator=generator) * (torch.rand(ls.shape[1:], generator=generator) < 0.5)
        empty = torch.rand(ls.shape, generator=generator) < 0.2
        empty[..., ::5] |= torch.rand(ls.shape[1:], generator=generator)[..., ::5] < 0.5
        return {"LS": (ls + far).masked_fill(empty, -torch.inf)}

    return FunctionSpecification("combine_parts", reference, inputs, sizes, doc=combine_parts.__doc__ or "")
