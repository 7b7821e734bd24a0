"""Causal attention with a learned sink logit for each head."""

from __future__ import annotations

import torch

from corpus.variants.causal import causal
from cuir.spec import Lengths, Specification


def sink_causal(sink: torch.Tensor | None = None) -> Specification:
    """p = exp(s) / (exp(sink[h]) + sum over the kept keys of exp(s)), keep = k <= q + (N - M); LSE is the logarithm of that denominator.

    `sink`: f32 [H], a logit like `s`, scaled already; without it, -2 for the first head to 6 for the last. The head may attend to nothing: gpt-oss (OpenAI 2025)
    and Xiao et al. 2023, section 3.3, a key without a value. A query without keys has O = 0 and LSE = sink[h]. Bottom-right aligned, as `causal`.
    """

    def sinks(lengths: Lengths) -> torch.Tensor:
        return torch.linspace(-2, 6, lengths.H) if sink is None else sink

    return Specification("sink_causal", causal().mask_mod, doc=sink_causal.__doc__ or "", sink=sinks)
