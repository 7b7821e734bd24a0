"""Causal attention of packed sequences, whose tokens follow each other in one tensor."""

from __future__ import annotations

from dataclasses import replace

from cuir.attn.verification.serving_specifications import make_packed_specification
from cuir.spec import FunctionSpecification, Specification


def causal_packed() -> FunctionSpecification:
    """O [H, TQ, DV] and LSE f32 [H, TQ]: sequence b has rows QSTART[b] .. QEND[b] - 1 of Q, O and LSE, and KSTART[b] .. KEND[b] - 1 of K and V [HK, TK, ..].

    Its last query sees all its keys, and each one before it a key less. A query without keys has O = 0 and LSE = -inf; rows of no sequence are anything.
    """
    made = make_packed_specification(Specification("causal", lambda b, h, q, k, *, M, N: k <= q + (N - M)))
    return replace(made, name="causal_packed", doc=causal_packed.__doc__ or "")
