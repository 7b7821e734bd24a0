"""Results of specifications: dense tensors of real numbers on the CPU, or an error by name."""

from __future__ import annotations

import numbers

import numpy as np
import torch

_COMPLEX = "take its real and imaginary part apart, as two outputs or in one more dim"


def as_tensor(value: object) -> torch.Tensor | None:
    """Convert a NumPy array, or a number of Python's or NumPy's, to a tensor; None for other values."""
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        return torch.from_numpy(np.array(value))  # a copy, whose memory is not shared
    if isinstance(value, (bool, numbers.Number, np.generic)) and not isinstance(value, complex):
        double = isinstance(value, (float, np.floating))
        return torch.tensor(value, dtype=torch.float64 if double else None)
    return None


def describe_unusable(x: torch.Tensor) -> tuple[str, str] | None:
    """Return why a tensor cannot be compared, and what to return instead; None if it can."""
    name = type(x).__name__
    if x.is_meta:
        return "a tensor on the device meta, which holds no numbers", "compute it from the tensors that are given"
    if x.is_quantized:
        return f"a quantized tensor ({_dtype(x)})", "return x.dequantize()"
    if x.layout != torch.strided or x.is_nested:
        layout = "nested" if x.is_nested else str(x.layout).removeprefix("torch.").replace("_", " ")
        return f"a tensor of layout {layout}", "return a dense one: x.to_dense(), or x.to_padded_tensor(0.0)"
    if x.device.type != "cpu":
        return f"a tensor on {x.device}", "return x.cpu(): a specification is evaluated on the CPU"
    if x.is_complex():
        return f"a complex tensor ({_dtype(x)})", _COMPLEX
    if type(x) not in (torch.Tensor, torch.nn.Parameter) and type(x).__module__.startswith("torch."):
        return f"a {name}, which means more than its numbers", "return a plain tensor"
    return None


def describe_other(value: object) -> tuple[str, str]:
    """Describe a value that is not a tensor, and what to return instead."""
    kind = type(value).__name__
    if value is None:
        return "None", "end with `return`, and return every output"
    if isinstance(value, complex):
        return f"the complex number {value}", _COMPLEX
    if isinstance(value, (list, set)):
        return kind, "return torch.stack(...) for one tensor, or a tuple of tensors, one for each output"
    if hasattr(value, "__next__"):
        return kind, "`return` instead of `yield`: a tensor, a tuple of tensors, or a dict by name"
    if callable(value):
        return f"{kind}, which was not called", "return a tensor, a tuple of tensors, or a dict by name"
    return kind, "return a tensor, a tuple of tensors, or a dict by name"


def _dtype(x: torch.Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


def equal_bits(a: object, b: object) -> bool:
    """Return whether two values are equal, NaN to NaN: tensors also in dtype and shape, others by `==`."""
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return type(a) is type(b) and bool(a == b or (a != a and b != b))
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if torch.equal(a, b) if a.dtype.itemsize > 1 or not a.is_floating_point() else False:
        return True
    x, y = (x.detach().double() if x.is_floating_point() else x for x in (a, b))
    return bool(((x == y) | ((x != x) & (y != y))).all())
