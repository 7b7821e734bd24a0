"""Causal attention to selected tokens of a cache of latent vectors in pages, whose first columns are the values."""

from __future__ import annotations

from dataclasses import replace

from cuir.attn.verification.serving_specifications import make_selected_tokens_specification
from cuir.spec import FunctionSpecification, Specification


def causal_selected_tokens() -> FunctionSpecification:
    """O [B, H, M, DV] and LSE f32 [B, H, M]: query q of sequence b, its token LENGTHS[b] - M + q, sees the tokens INDICES[b, q] up to itself.

    What is no token from 0 to LENGTHS[b] - 1 is none, and a token that is named twice counts twice. Token t is row t % PAGE of page
    PAGES[b, t // PAGE] of KEYS [NP, HK, PAGE, D]; its value is the first DV columns. A query without tokens has O = 0 and LSE = -inf.
    """
    made = make_selected_tokens_specification(Specification("causal", lambda b, h, q, k, *, M, N: k <= q + (N - M)))
    return replace(made, name="causal_selected_tokens", doc=causal_selected_tokens.__doc__ or "")
