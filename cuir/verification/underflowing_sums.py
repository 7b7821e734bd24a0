"""Problems in which products of normal f32 numbers are subnormal, and their sum is not: atomic additions of f32 take each part for 0."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch

from ..spec.functions import Value

KIND = "underflow"  # of inputs
_SUM = -121.5  # binary exponent of the sums: far above 2^-126, and parts of them below
_PROBES = (-20, -30)  # exponents of inputs by which the growth of the outputs is found
_LEAST = -120  # exponent of inputs: normal numbers

Outputs = Mapping[str, torch.Tensor]


def make_underflowing(tensors: Mapping[str, torch.Tensor], tried: Callable[[Mapping[str, Value]], Outputs]) -> dict[str, Value] | None:
    """Positive values as small as their sums of products may be; None if outputs do not fall as products do.

    tried: outputs that are added to, for values in place of the tensors.
    """

    def scaled(exponent: float) -> dict[str, Value]:
        return {n: (x.double().abs() * 2.0**exponent).to(x.dtype) for n, x in tensors.items()}

    if not tensors:
        return None
    high, low = (_exponent(tried(scaled(e))) for e in _PROBES)
    if not math.isfinite(high) or not math.isfinite(low):
        return None
    degree = (high - low) / (_PROBES[0] - _PROBES[1])
    exponent = _PROBES[0] - (high - _SUM) / degree if degree >= 1.9 else -math.inf
    return scaled(math.floor(exponent)) if exponent >= _LEAST else None


def _exponent(outputs: Outputs) -> float:
    """The binary exponent of the root mean square of all outputs; infinite if that is none."""
    squares = torch.cat([x.double().flatten() ** 2 for x in outputs.values()]) if outputs else torch.zeros(1)
    mean = squares.mean().item() if squares.numel() else 0.0
    return math.log2(mean) / 2 if 0 < mean < math.inf else math.inf


__all__ = ["KIND", "make_underflowing"]
