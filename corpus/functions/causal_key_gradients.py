"""dK and dV of causal attention, from what the forward pass kept, of the kernel that gives them alone."""

from __future__ import annotations

import corpus
from cuir.spec import FunctionSpecification
from cuir.spec.gradients import gradients


def causal_key_gradients() -> FunctionSpecification:
    """dK and dV of `causal` (bottom-right aligned) for dO, of key heads."""
    return gradients(corpus.variant("causal")(), keys_alone=True)
