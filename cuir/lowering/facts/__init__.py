"""Analyses over the tile IR: each takes a kernel or a role, changes nothing, and says what holds of its values."""

from __future__ import annotations

import functools

from xdsl.ir import SSAValue

from ..ir import ops
from .nans import Nans
from .ranges import Ranges


class Facts:
    """What printers ask of a kernel. Holds as long as the kernel is not changed."""

    def __init__(self, kernel: ops.Kernel):
        self.kernel = kernel

    @functools.cached_property
    def ranges(self) -> Ranges:
        return Ranges(self.kernel)

    @functools.cached_property
    def nans(self) -> Nans:
        return Nans(self.kernel)

    def nonnegative(self, value: SSAValue) -> bool:
        """Whether a number is certainly not negative."""
        return self.ranges.nonnegative(value)

    def near(self, op: ops.Apply) -> bool:
        """Whether it is i32 arithmetic that stays within 32 bits."""
        return self.ranges.fits(op.result)

    def near_ends(self, value: SSAValue) -> bool:
        """Whether a number may be near an end of the 32-bit range."""
        return self.ranges.near_ends(value)

    def negative_nan(self, value: SSAValue) -> bool:
        """Whether a value may hold a NaN with its sign bit set."""
        return self.nans.negative(value)


__all__ = ["Facts"]
