"""Floats that a specification draws and whose elements are arbitrary, such as scales of cached tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from ...spec.function_specification import Value
from ...text.diagnostics import CuirError

_FILLERS = 2  # at most so many distinct values in unread elements are a filling, such as zeros or ones


def find_arbitrary(inputs: Mapping[str, Value], redraw: Callable[[], Mapping[str, Value]]) -> list[str]:
    """Return names of floats that take other values under another generator.

    Not tables, and not what follows from other inputs alone.
    """
    floats = {n: x for n, x in inputs.items() if isinstance(x, torch.Tensor) and x.is_floating_point() and x.numel()}
    if not floats:
        return []
    try:
        redrawn = {n.lower(): x for n, x in redraw().items()}
    except CuirError:
        return []

    def differs(name: str, x: torch.Tensor) -> bool:
        second = redrawn.get(name.lower())
        if not isinstance(second, torch.Tensor) or second.shape != x.shape:
            return False
        a, b = second.to(x.dtype).double(), x.double()  # the kernel's dtype has rounded x
        return 2 * int(((a != b) & ~(a.isnan() & b.isnan())).sum()) > x.numel()

    return [n for n, x in floats.items() if differs(n, x)]


def without_fillers(inputs: Mapping[str, Value], places: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the places of unread elements, except in tensors that the specification fills there.

    A kernel may rely on such a filling.
    """
    unfilled: dict[str, torch.Tensor] = {}
    for n, places_of_name in places.items():
        x = inputs[n]
        assert isinstance(x, torch.Tensor)
        values = x.double()[places_of_name]
        if bool(values.isfinite().all()) and len(values.unique()) > _FILLERS:
            unfilled[n] = places_of_name
    return unfilled


__all__ = ["find_arbitrary", "without_fillers"]
