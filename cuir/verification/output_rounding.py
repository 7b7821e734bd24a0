"""Rounding of expected numbers to an output's dtype; 8-bit floats saturate."""

from __future__ import annotations

import torch

from ..arguments.binding import TORCH

_SATURATING = frozenset(stored for dtype, stored in TORCH.items() if dtype.saturates)

_EXPONENT = 0x7FF << 52  # the bits of a float64's exponent


def saturates(dtype: torch.dtype) -> bool:
    """Return whether numbers beyond a dtype's range become its largest number."""
    return dtype in _SATURATING


def saturate(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Clamp numbers to the range of a saturating dtype; others stay as they are."""
    if not saturates(dtype):
        return x
    largest = torch.finfo(dtype).max
    return x.clamp(-largest, largest)


def round_to(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Round to the nearest numbers of the dtype, as a kernel's cast does."""
    return saturate(x, dtype).to(dtype)


def half_steps(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return half of the distance to the next number of the dtype, for the larger of both elements."""
    limits = torch.finfo(x.dtype)
    larger = torch.maximum(x.double().abs(), y.double().abs()).clamp(limits.smallest_normal, limits.max)
    powers = (larger.view(torch.int64) & _EXPONENT).view(torch.float64)  # the powers of 2 below, much faster than frexp and ldexp
    return powers * (limits.eps / 2)
