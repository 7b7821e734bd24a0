"""What is known of a kernel's IR: asked by passes and printers, computed from the data flow and never from names."""

from __future__ import annotations

import functools

from xdsl.ir import SSAValue

from ..ir import ops
from .nans import Nans


class Facts:
    """What printers ask of a kernel. Holds as long as the kernel is not changed."""

    def __init__(self, kernel: ops.Kernel):
        self.kernel = kernel

    def nonnegative(self, value: SSAValue) -> bool:
        """Whether a number is certainly not negative."""
        return False  # nothing is known of ranges

    def near(self, op: ops.Apply) -> bool:
        """Whether i32 arithmetic stays within 32 bits."""
        return True

    @functools.cached_property
    def _nans(self) -> Nans:
        return Nans(self.kernel)

    def negative_nan(self, value: SSAValue) -> bool:
        """Whether a value may hold a NaN with its sign bit set."""
        return self._nans.negative(value)


__all__ = ["Facts"]
