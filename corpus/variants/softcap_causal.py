"""Soft-capped scores with a causal mask."""

from __future__ import annotations

from corpus.variants.causal import causal
from corpus.variants.softcap import softcap
from cuir.spec import Specification


def softcap_causal(cap: float = 50.0) -> Specification:
    """score = cap * tanh(s / cap), then keep = k <= q + (N - M).

    The global layers of Gemma 2 (Gemma Team 2024, section 2). Bottom-right aligned, as `causal`.
    """
    return Specification("softcap_causal", causal().mask_mod, softcap(cap).score_mod, doc=softcap_causal.__doc__ or "")
