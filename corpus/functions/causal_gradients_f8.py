"""Gradients of causal attention of 8-bit floats, of the expert backward kernel."""

from __future__ import annotations

from dataclasses import replace

from cuir.attn.verification.fp8_specifications import make_fp8_gradients
from cuir.spec import FunctionSpecification, Specification


def causal_gradients_f8() -> FunctionSpecification:
    """dQ / scale, dK and dV of causal attention (bottom-right aligned) for dO in 8 bits with a scale for each key head."""
    made = make_fp8_gradients(Specification("causal", lambda b, h, q, k, *, M, N: k <= q + (N - M)))
    return replace(made, name="causal_gradients_f8", doc=causal_gradients_f8.__doc__ or "")
