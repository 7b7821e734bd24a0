"""Recognition of repeated calls by torch's guards of tensors, which take a microsecond.

Reading five tensors from Python takes ten. The rules of a call are in binding.py; a call that is not recognised is
examined in full.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

try:
    from torch._C._dynamo import guards
except ImportError:  # a torch without them: every call is examined by its signature
    guards = None  # type: ignore[assignment]

LOW = 15  # bits of an address that matter for the copy engine's alignment
Allocation = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]  # shape, stride and dtype of a tensor


def make_number_key(value: int | float) -> tuple[type, str | int | float]:
    """Return a key that identifies a number as an argument, with its type, and -0.0 apart from 0.0."""
    return (float, value.hex()) if isinstance(value, float) else (type(value), value)


class CallGuard:
    """An examined, valid call, and a test whether another call is like it.

    Compares names, numbers, and of each tensor type, dtype, device, sizes, strides, requires_grad, dispatch keys and
    alignment.
    """

    __slots__ = ("check", "form", "low", "numbers", "tensors")

    def __init__(self, form: tuple[Hashable, ...], values: Sequence[Any]):
        """Record a call.

        form: number of positional arguments, names of the keyword arguments, number of `out=`. Raises what torch
        raises for tensors without strides.
        """
        self.form = form
        self.tensors = tuple(i for i, value in enumerate(values) if isinstance(value, torch.Tensor))
        self.numbers = tuple((i, make_number_key(value)) for i, value in enumerate(values) if not isinstance(value, torch.Tensor))
        tensors = [values[i] for i in self.tensors]
        self.low = [t.data_ptr() & LOW for t in tensors]
        sizes: list[Any] = [list(t.shape) for t in tensors]
        strides: list[Any] = [list(t.stride()) for t in tensors]
        self.check: Callable[..., bool] = guards.TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check

    def covers(self, form: tuple[Hashable, ...], values: Sequence[Any]) -> bool:
        if form != self.form:
            return False
        for i, expected in self.numbers:
            value = values[i]
            if not isinstance(value, (int, float)) or make_number_key(value) != expected:
                return False
        tensors = [values[i] for i in self.tensors]
        return self.check(*tensors) and [t.data_ptr() & LOW for t in tensors] == self.low


def make_call_guard(form: tuple[Hashable, ...], values: Sequence[object]) -> CallGuard | None:
    """Record a call to compare others with.

    None where torch has no guards, and for tensors that require gradients (whether they may depends on more than
    them).
    """
    if guards is None or any(isinstance(value, torch.Tensor) and value.requires_grad for value in values):
        return None
    try:
        return CallGuard(form, values)
    except (AttributeError, RuntimeError, TypeError):  # guards with another interface, in a future torch
        return None


# allocates without the cost of parsing arguments, on the current device
_ALLOCATE: Callable[..., torch.Tensor] = getattr(guards, "_empty_strided_cuda", torch.empty_strided)


class Allocator:
    """A repeatable torch.empty_strided of each allocation."""

    __slots__ = ("allocations", "device", "index")

    def __init__(self, allocations: Sequence[Allocation], device: torch.device):
        self.allocations, self.device = tuple(allocations), device
        self.index = device.index if device.type == "cuda" and hasattr(guards, "_empty_strided_cuda") else None

    def allocate(self) -> tuple[torch.Tensor, ...]:
        if self.index is not None and torch._C._cuda_getDevice() == self.index:
            return tuple(itertools.starmap(_ALLOCATE, self.allocations))
        return tuple([torch.empty_strided(shape, stride, dtype=dtype, device=self.device) for shape, stride, dtype in self.allocations])
