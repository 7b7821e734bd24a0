"""dQ of causal attention over the blocks of keys that lists name."""

from __future__ import annotations

from dataclasses import replace

from cuir.attn.verification.selected_specifications import make_selected_query_gradients
from cuir.spec import FunctionSpecification, Specification


def causal_selected_query_gradients() -> FunctionSpecification:
    """dQ [B, H, M, D], of dO, L and DL: the gradient of `causal_selected` with respect to Q."""
    made = make_selected_query_gradients(Specification("causal", lambda b, h, q, k, *, M, N: k <= q + (N - M)))
    return replace(made, name="causal_selected_query_gradients", doc=causal_selected_query_gradients.__doc__ or "")
