"""A learned bias for each relative position, read from a table."""

from __future__ import annotations

from typing import Any

import torch

from cuir.spec import Lengths, Specification


def relative_position_table(table: torch.Tensor | None = None, radius: int = 128) -> Specification:
    """score = s + table[h, clip(k - q, -radius, radius) + radius], no mask: farther keys share the bias of the ends.

    `table`: f32 [H, 2 radius + 1]; without it, cosines whose wavelength grows from head to head. Shaw et al. 2018 clip relative positions so; T5 (Raffel et al. 2020)
    adds a scalar to each logit. The bias is added to the scaled score.
    """

    def tables(lengths: Lengths) -> torch.Tensor:
        if table is not None:
            return table
        return torch.cos(torch.arange(-radius, radius + 1) / (1.0 + torch.arange(lengths.H))[:, None])

    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any, *, table: Any) -> Any:
        return score + table[h, torch.clamp(kv_idx - q_idx, -radius, radius) + radius]

    return Specification(
        "relative_position_table", score_mod=score_mod, captured={"table": tables}, doc=relative_position_table.__doc__ or ""
    )
