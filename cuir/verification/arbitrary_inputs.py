"""Inputs that a specification draws itself: floats whose elements may be anything, as those of a scale beside each cached token."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from ..spec.functions import Value
from ..text.diagnostics import CuirError

_FILLERS = 2  # so many different numbers in what is not read are a filling, such as zeros or ones


def find_arbitrary(given: Mapping[str, Value], redraw: Callable[[], Mapping[str, Value]]) -> list[str]:
    """Names of floats that another generator gives other values: no tables, and nothing that follows from other inputs alone."""
    floats = {n: x for n, x in given.items() if isinstance(x, torch.Tensor) and x.is_floating_point() and x.numel()}
    if not floats:
        return []
    try:
        again = {n.lower(): x for n, x in redraw().items()}
    except CuirError:
        return []

    def differs(name: str, x: torch.Tensor) -> bool:
        other = again.get(name.lower())
        if not isinstance(other, torch.Tensor) or other.shape != x.shape:
            return False
        a, b = other.to(x.dtype).double(), x.double()  # the kernel's dtype has rounded x
        return 2 * int(((a != b) & ~(a.isnan() & b.isnan())).sum()) > x.numel()

    return [n for n, x in floats.items() if differs(n, x)]


def without_fillers(given: Mapping[str, Value], places: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Places of elements that are not read, but for tensors that the specification fills there: a kernel may rely on that."""
    kept: dict[str, torch.Tensor] = {}
    for n, where in places.items():
        x = given[n]
        assert isinstance(x, torch.Tensor)
        values = x.double()[where]
        if bool(values.isfinite().all()) and len(values.unique()) > _FILLERS:
            kept[n] = where
    return kept


__all__ = ["find_arbitrary", "without_fillers"]
