"""Analyses of the tile IR: each reads a kernel or a role and changes nothing."""

from __future__ import annotations

import functools

from xdsl.ir import SSAValue

from ..ir import ops
from .float_ranges import Nans
from .ranges import Ranges


class Facts:
    """Facts about a kernel that printers use, valid as long as the kernel does not change."""

    def __init__(self, kernel: ops.Kernel):
        self.kernel = kernel

    @functools.cached_property
    def ranges(self) -> Ranges:
        """Compute the intervals in which the i32 values of a kernel lie."""
        return Ranges(self.kernel)

    @functools.cached_property
    def nans(self) -> Nans:
        """NaNs with a sign bit."""
        return Nans()

    def nonnegative(self, value: SSAValue) -> bool:
        """Return whether a number is certainly not negative."""
        return self.ranges.nonnegative(value)

    def near(self, op: ops.Apply) -> bool:
        """Return whether an operation is i32 arithmetic that stays within 32 bits."""
        return self.ranges.fits(op.result)

    def near_ends(self, value: SSAValue) -> bool:
        """Return whether a number may be near an end of the 32-bit range."""
        return self.ranges.near_ends(value)

    def negative_nan(self, value: SSAValue) -> bool:
        """Return whether a value may hold a NaN with its sign bit set."""
        return self.nans.negative(value)


__all__ = ["Facts"]
