"""ALiBi: a linear penalty on distance."""

from __future__ import annotations

from typing import Any

import torch

from cuir.spec import Specification


def alibi(heads: int | None = None) -> Specification:
    """score = s + 2^(-8 (h + 1) / H) * (k - q), no mask.

    Press et al. 2022; the slope of head h = 0..H-1. `heads` takes the place of H, for the slopes of a model with another number of heads.
    Combine with a causal mask for language models (`alibi_causal`): without one, later keys gain.
    """

    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any, *, H: int) -> Any:
        slope = torch.exp2(-8.0 * (h + 1) / (H if heads is None else heads))
        return score + slope * (kv_idx - q_idx)

    return Specification("alibi", score_mod=score_mod, doc=alibi.__doc__ or "")
