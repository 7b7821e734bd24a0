"""Inputs for which products of normal f32 numbers are subnormal, and their sum is not.

Atomic additions of f32 flush each part to 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch

from ...spec.function_specification import Value

KIND = "underflow"  # the kind of inputs
_SUM = -121.5  # binary exponent of the sums: far above 2^-126, with parts below
_PROBES = (-20, -30)  # exponents of inputs at which the growth of the outputs is measured
_LEAST = -120  # the least exponent of inputs, which stay normal

Outputs = Mapping[str, torch.Tensor]


def make_underflowing(tensors: Mapping[str, torch.Tensor], evaluate: Callable[[Mapping[str, Value]], Outputs]) -> dict[str, Value] | None:
    """Return positive values as small as their sums of products may be.

    None if outputs do not fall as products do. evaluate: returns outputs that are added to, for values in place of the
    tensors.
    """

    def scale(exponent: float) -> dict[str, Value]:
        return {n: (x.double().abs() * 2.0**exponent).to(x.dtype) for n, x in tensors.items()}

    if not tensors:
        return None
    high, low = (_compute_exponent(evaluate(scale(e))) for e in _PROBES)
    if not math.isfinite(high) or not math.isfinite(low):
        return None
    degree = (high - low) / (_PROBES[0] - _PROBES[1])
    exponent = _PROBES[0] - (high - _SUM) / degree if degree >= 1.9 else -math.inf
    return scale(math.floor(exponent)) if exponent >= _LEAST else None


def _compute_exponent(outputs: Outputs) -> float:
    """Return the binary exponent of the root mean square of all outputs; infinite if there is none."""
    squares = torch.cat([x.double().flatten() ** 2 for x in outputs.values()]) if outputs else torch.zeros(1)
    mean = squares.mean().item() if squares.numel() else 0.0
    return math.log2(mean) / 2 if 0 < mean < math.inf else math.inf


__all__ = ["KIND", "make_underflowing"]
