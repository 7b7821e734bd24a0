"""Causal attention of the last tokens of each sequence over a cache of keys and values in pages."""

from __future__ import annotations

from dataclasses import replace

from cuir.attn.verification.serving_specifications import make_cached_specification
from cuir.spec import FunctionSpecification, Specification


def cached_decode() -> FunctionSpecification:
    """O [B, H, M, D] and LSE f32 [B, H, M]: query q of sequence b is its token LENGTHS[b] - M + q, and sees it and what comes before.

    Token t is row t % PAGE of page PAGES[b, t // PAGE] of KEYS and VALUES [NP, HK, PAGE, D]. A query without keys has O = 0 and LSE = -inf.
    """
    made = make_cached_specification(Specification("causal", lambda b, h, q, k, *, M, N: k <= q + (N - M)))
    return replace(made, name="cached_decode", doc=cached_decode.__doc__ or "")
