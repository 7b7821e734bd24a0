"""Numbers of outputs in messages: integers in full, floats with enough digits, overflowed elements."""

from __future__ import annotations

import torch

_WHOLE = 2.0**53  # smaller integers are exact in float64


def show_number(x: float, digits: int = 6) -> str:
    """Format a number: an integer in full, others with so many significant digits."""
    if isinstance(x, (bool, int)):
        return str(x)
    return str(int(x)) if x.is_integer() and abs(x) < _WHOLE else f"{x:.{digits}g}"


def show_different(x: float, y: float) -> tuple[str, str]:
    """Format two numbers with enough digits to tell them apart."""
    for digits in (6, 9, 17):
        a, b = show_number(x, digits), show_number(y, digits)
        if a != b:
            break
    return a, b


def describe_overflow(name: str, output: torch.Tensor, expected: torch.Tensor) -> str | None:
    """Describe the first element that is infinite where a finite number is expected, or return None."""
    overflowed = output.double().isinf() & expected.isfinite()
    if not overflowed.any():
        return None
    index = torch.nonzero(overflowed)[0].tolist()
    dtype = str(output.dtype).removeprefix("torch.")
    x, w = (show_number(t[tuple(index)].item()) for t in (output, expected))
    return f"{name}{index} is {x}, an overflow on the way to {dtype}, the specification gives {w}; {int(overflowed.sum())} of {output.numel()} elements"


def describe_worst(name: str, output: torch.Tensor, expected_values: torch.Tensor, bad: torch.Tensor) -> str:
    """Describe the largest error: a row, or the element of an output of one dim."""
    if output.dim() > 1:
        return f"the worst row is {format_place(~(bad < (bad.max() if bad.numel() else 0.0)))}"
    index = int((output - expected_values).abs().argmax())
    actual, expected = show_different(output.flatten()[index].item(), expected_values.flatten()[index].item())
    return f"{name}[{index}] is {actual}, the specification gives {expected}"


def format_place(selected: torch.Tensor) -> str:
    """Return the index of the first selected element."""
    return str(torch.nonzero(selected)[0].tolist()) if selected.any() else "no place"


def describe_pattern(bad: torch.Tensor, name: str) -> str | None:
    """Describe the wrong rows, dim by dim, if they lie in a part of a dim."""
    if not bad.any() or bad.all() or not bad.dim():
        return None
    parts = []
    for d, n in enumerate(bad.shape):
        places = bad.movedim(d, 0).reshape(n, -1).any(1).nonzero().flatten().tolist()
        if len(places) < n:
            parts.append(f"of dim {d}: {places[0]} to {places[-1]} ({len(places)} of {n})")
    return f"wrong rows of {name}: {int(bad.sum())} of {bad.numel()}" + (", " + "; ".join(parts) if parts else "")
