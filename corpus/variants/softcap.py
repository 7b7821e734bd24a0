"""Soft-capped scores."""

from __future__ import annotations

from typing import Any

import torch

from cuir.spec import Specification


def softcap(cap: float = 50.0) -> Specification:
    """score = cap * tanh(s / cap), no mask.

    On the scaled score, before any mask: Gemma 2 (Gemma Team 2024, section 2) and Grok.
    """

    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return cap * torch.tanh(score / cap)

    return Specification("softcap", score_mod=score_mod, doc=softcap.__doc__ or "")
