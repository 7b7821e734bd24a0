"""Numbers of Python from those that callers have, such as NumPy's scalars."""

from __future__ import annotations

import numbers
import operator
from typing import Any


def plain_number(x: Any) -> Any:
    """A real number as an int or a float of Python, NumPy's and fractions included. Anything else, bools and tensors too, is given back as it is."""
    if x is None or isinstance(x, (int, float)) or not isinstance(x, numbers.Real):
        return x
    return operator.index(x) if isinstance(x, numbers.Integral) else float(x)


__all__ = ["plain_number"]
