"""A captured value of a specification as a parameter of the kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from ...spec.specification import Lengths, Specification
from ...syntax.nodes import ConstType, Kernel, Param
from ...syntax.types import F32, DType

Value = int | float | torch.Tensor


@dataclass(frozen=True)
class Parameter:
    """A captured value as a parameter of the kernel.

    It is an i32 or f32 scalar, or a tensor of i32 or f32 with `rank` dims. A tensor without dims has one.

    Attributes:
        value: None if it follows the lengths: then `key` names it in the specification's `captured`.
        constant: a tensor that the mod makes itself, from none of its arguments, on any device; each trace makes an
            equal one.
    """

    name: str
    dtype: DType
    rank: int  # 0: a scalar
    value: Value | None
    key: str | None = None
    constant: bool = False

    def with_value(self, value: Value) -> Parameter:
        """Return the parameter of another value, faster than `replace`."""
        return Parameter(self.name, self.dtype, self.rank, value, self.key, self.constant)

    def lies(self, device: torch.device) -> bool:
        """Return True if a launch on this device takes the captured value without a copy."""
        x = self.value
        kernel_dtype = torch.float32 if self.dtype == F32 else torch.int32
        return not isinstance(x, torch.Tensor) or (x.device == device and x.dtype == kernel_dtype and x.is_contiguous())

    def argument(self, spec: Specification, lengths: Lengths, device: torch.device | str = "cpu") -> Value:
        """Return its launch argument."""
        return self.on(self.value if self.value is not None else spec.values(lengths)[self.key or self.name], device)

    def on(self, value: Value, device: torch.device | str) -> Value:
        """Return a value of it as the argument of a launch on this device."""
        if isinstance(value, torch.Tensor):
            moved = value.detach().to(device=device, dtype=torch.float32 if self.dtype == F32 else torch.int32).contiguous()
            moved = moved if type(moved) is torch.Tensor else moved.as_subclass(torch.Tensor)
            return moved if moved.ndim else moved.view(1)
        return value


def with_parameters(kernel: Kernel, new: tuple[Param, ...]) -> Kernel:
    """Insert parameters behind the last one that is not a const."""
    first_const = next((i for i, p in enumerate(kernel.params) if isinstance(p.type, ConstType)), len(kernel.params))
    return replace(kernel, params=(*kernel.params[:first_const], *new, *kernel.params[first_const:]))
