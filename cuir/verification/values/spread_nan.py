"""NaN that a selecting function spreads: an extreme of elements is NaN if one of them is.

A kernel that selects by comparisons drops it, since a NaN is greater than nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch

from .special_values import scatter_few

KIND = "nan"  # the kind of inputs
_FAR = 1e3  # elements at this value and its negative show which outputs read them

Outputs = Mapping[str, torch.Tensor]


def put_few(x: torch.Tensor, value: float, turn: int) -> torch.Tensor:
    """Put a value into some elements, the same ones for each value."""
    return scatter_few(x, (value,), turn, torch.Generator().manual_seed(0))


def list_others(inputs: Mapping[str, object], name: str) -> list[torch.Tensor]:
    """Return the float tensors among inputs but the named one."""
    return [x for n, x in inputs.items() if n != name and isinstance(x, torch.Tensor) and x.is_floating_point() and x.numel()]


def find_spread(
    x: torch.Tensor,
    turn: int,
    plain: Outputs | None,
    evaluate: Callable[[torch.Tensor], Outputs | None],
    others: Sequence[torch.Tensor] = (),
) -> dict[str, torch.Tensor]:
    """Return the elements of outputs that NaN in some elements of x makes NaN, by name.

    The result is {} if the function does not say so.

    Only of outputs whose numbers are elements of inputs or their magnitudes, and that are a large number where x holds
    it, or x's element itself: a NaN times 0 is of no extreme. Results that NaN moves to another place, as a sort does,
    are left out.

    plain: the function's results for x. evaluate: returns those for another x, None if it fails. others: other inputs
    of which outputs may have elements, such as bounds.
    """
    selections = [n for n, y in (plain or {}).items() if y.is_floating_point() and _is_selection(y, [x, *others])]
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
        if others and y.shape == x.shape:  # a bound hides the large number
            reads |= before.double() == x.double()
        if n in selections and bool((new & reads).any()):
            places[n] = new & reads
    return places


def _is_selection(output: torch.Tensor, inputs: Sequence[torch.Tensor]) -> bool:
    """Return whether all numbers of an output are elements of inputs, or their magnitudes."""
    numbers, elements = output.double(), torch.cat([x.double().flatten() for x in inputs])
    numbers = numbers[numbers.isfinite()]
    return numbers.numel() > 0 and bool(torch.isin(numbers, torch.cat([elements, elements.abs()])).all())


def _is_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


__all__ = ["KIND", "find_spread", "list_others", "put_few"]
