"""Causal attention of the last tokens of each sequence over a cache of latent vectors of 8-bit numbers in pages, with a scale a head or a token."""

from __future__ import annotations

from dataclasses import replace

from cuir.attn.verification.serving_specifications import make_cached_specification
from cuir.spec import FunctionSpecification, Specification


def cached_latent_decode_f8() -> FunctionSpecification:
    """O [B, H, M, DV] and LSE f32 [B, H, M]: query q of sequence b is its token LENGTHS[b] - M + q, and sees it and what comes before.

    Token t is row t % PAGE of page PAGES[b, t // PAGE] of KEYS [NP, HK, PAGE, D], e4m3, times KSCALE, [1, HK, 1] or [NP, HK, PAGE].
    Its value is the first DV columns.
    A query without keys has O = 0 and LSE = -inf.
    """
    made = make_cached_specification(Specification("causal", lambda b, h, q, k, *, M, N: k <= q + (N - M)), scaled=True, latent=True)
    return replace(made, name="cached_latent_decode_f8", doc=cached_latent_decode_f8.__doc__ or "")
