"""Parts of dK and dV of causal attention over the blocks of keys that lists name."""

from __future__ import annotations

from dataclasses import replace

from cuir.attn.verification.selected_specifications import make_selected_key_gradients
from cuir.spec import FunctionSpecification, Specification


def causal_selected_key_gradients() -> FunctionSpecification:
    """Parts of dK [PARTS, BN, D] and dV [PARTS, BN, DV], f32: what the slots of a unit add to the gradients of a block of keys."""
    made = make_selected_key_gradients(Specification("causal", lambda b, h, q, k, *, M, N: k <= q + (N - M)))
    return replace(made, name="causal_selected_key_gradients", doc=causal_selected_key_gradients.__doc__ or "")
