"""Numbers of outputs as messages print them: integers whole, floats with as many digits as tell two apart, and which elements have overflowed."""

from __future__ import annotations

import torch

_WHOLE = 2.0**53  # below it every float64 that is an integer is the one that was computed


def show_number(x: float, digits: int = 6) -> str:
    """Print a number: an integer in full, another one with so many significant digits."""
    if isinstance(x, (bool, int)):
        return str(x)
    return str(int(x)) if x.is_integer() and abs(x) < _WHOLE else f"{x:.{digits}g}"


def show_different(x: float, y: float) -> tuple[str, str]:
    """Print two numbers with enough digits to tell them apart."""
    for digits in (6, 9, 17):
        a, b = show_number(x, digits), show_number(y, digits)
        if a != b:
            break
    return a, b


def describe_overflow(name: str, output: torch.Tensor, wanted: torch.Tensor) -> str | None:
    """Name the first element that is infinite where a finite number is expected; None if there is none."""
    lost = output.isinf() & wanted.isfinite()
    if not lost.any():
        return None
    at = torch.nonzero(lost)[0].tolist()
    dtype = str(output.dtype).removeprefix("torch.")
    x, w = (show_number(t[tuple(at)].item()) for t in (output, wanted))
    return (
        f"{name}{at} is {x}, an overflow on the way to {dtype}, the specification gives {w}; {int(lost.sum())} of {output.numel()} elements"
    )
