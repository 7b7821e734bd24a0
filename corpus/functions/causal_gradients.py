"""Gradients of causal attention, from what the forward pass kept, of the expert backward kernel."""

from __future__ import annotations

import corpus
from cuir.spec import FunctionSpecification
from cuir.spec.gradients import gradients


def causal_gradients() -> FunctionSpecification:
    """dQ / scale, dK and dV of `causal` (bottom-right aligned) for dO, of key heads."""
    return gradients(corpus.variant("causal")())
