"""dQ of causal attention, from what the forward pass kept, of the kernel that gives it alone."""

from __future__ import annotations

import corpus
from cuir.spec import FunctionSpecification
from cuir.spec.gradients import gradients


def causal_query_gradients() -> FunctionSpecification:
    """dQ of `causal` (bottom-right aligned) for dO."""
    return gradients(corpus.variant("causal")(), queries_alone=True)
