"""Conversion of callers' numbers, such as NumPy's scalars, to Python's."""

from __future__ import annotations

import numbers
import operator
from typing import Any


def plain_number(x: Any) -> Any:
    """Return a real number (NumPy's, a fraction) as a Python int or float.

    Anything else, bools and tensors included, is returned unchanged.
    """
    if x is None or isinstance(x, (int, float)) or not isinstance(x, numbers.Real):
        return x
    return operator.index(x) if isinstance(x, numbers.Integral) else float(x)


__all__ = ["plain_number"]
