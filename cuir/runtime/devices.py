"""What a CUDA device is, as far as choices of kernels depend on it. Asks the driver, and nothing else."""

from __future__ import annotations

import functools


@functools.cache
def bandwidth(device: int) -> float:
    """Bytes a second that the memory of a device moves at most: two for each clock and each 8 bits of its bus; 0.0 if the driver does not say."""
    from .launch import driver

    cu = driver()
    kinds = cu.CUdevice_attribute
    asked = (kinds.CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, kinds.CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)
    (_, kilohertz), (_, bits) = (cu.cuDeviceGetAttribute(kind, device) for kind in asked)
    return 2e3 * float(kilohertz or 0) * float(bits or 0) / 8


__all__ = ["bandwidth"]
