"""NaN that a selecting function spreads: an extreme of elements is NaN if one of them is.

A kernel that selects by comparisons drops it, since a NaN is greater than nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch

from .special_values import scatter_few

KIND = "nan"  # the kind of inputs
_FAR = 1e3  # elements at this value and its negative show which outputs read them

Outputs = Mapping[str, torch.Tensor]


def put_few(x: torch.Tensor, value: float, turn: int) -> torch.Tensor:
    """Put a value into some elements, the same ones for each value."""
    return scatter_few(x, (value,), turn, torch.Generator().manual_seed(0))


def find_spread(
    x: torch.Tensor, turn: int, plain: Outputs | None, evaluate: Callable[[torch.Tensor], Outputs | None]
) -> dict[str, torch.Tensor]:
    """Return the elements of outputs that NaN in some elements of x makes NaN, by name.

    The result is {} if the function does not say so.

    Only of outputs whose numbers are elements of x or their magnitudes, and that are a large number where x holds it:
    a NaN times 0 is of no extreme. Results that NaN moves to another place, as a sort does, are left out.

    plain: the function's results for x. evaluate: returns those for another x, None if it fails.
    """
    selections = [n for n, y in (plain or {}).items() if y.is_floating_point() and _is_selection(y, x)]
    if plain is None or not selections:
        return {}
    spread, above, below = (evaluate(put_few(x, v, turn)) for v in (math.nan, _FAR, -_FAR))
    if spread is None or above is None or below is None:
        return {}
    places: dict[str, torch.Tensor] = {}
    for n, y in spread.items():
        before = plain[n]
        new = y.isnan() & ~before.isnan() if y.shape == before.shape else torch.zeros_like(y, dtype=torch.bool)
        if y.shape != before.shape or not _is_equal(y[~new], before[~new]):
            return {}
        reads = (above[n].double() == _FAR) | (below[n].double().abs() == _FAR)
        if n in selections and bool((new & reads).any()):
            places[n] = new & reads
    return places


def _is_selection(output: torch.Tensor, x: torch.Tensor) -> bool:
    """Return whether all numbers of an output are elements of x, or their magnitudes."""
    numbers, elements = output.double(), x.double()
    numbers = numbers[numbers.isfinite()]
    return numbers.numel() > 0 and bool(torch.isin(numbers, torch.cat([elements.flatten(), elements.abs().flatten()])).all())


def _is_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


__all__ = ["KIND", "find_spread", "put_few"]
