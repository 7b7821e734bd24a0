"""A GPU as a choice of settings, or of kernels, knows it: name, generation, multiprocessors, how much its memory moves. Asks the machine, and nothing else."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from ..tuning import cache


@dataclass(frozen=True)
class Device:
    """A GPU by its name as keys of tuning have it (`cuir.tuning.cache.device`), and its multiprocessors; without a GPU an empty name and 0."""

    arch: str
    sms: int

    @staticmethod
    def here() -> Device:
        return Device(*cache.device())

    @property
    def name(self) -> str:
        """As its maker calls it."""
        return self.arch.rpartition(" sm_")[0] or self.arch

    @property
    def generation(self) -> str:
        """`sm_90`; empty where only the name is known."""
        _, found, rest = self.arch.rpartition(" sm_")
        return f"sm_{rest.split()[0]}" if found else ""


@functools.cache
def bandwidth(device: int) -> float:
    """Bytes a second that the memory of a device moves at most: two for each clock and each 8 bits of its bus; 0.0 if the driver does not say."""
    from ..runtime.driver_api import driver

    cu = driver()
    kinds = cu.CUdevice_attribute
    asked = (kinds.CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, kinds.CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)
    (_, kilohertz), (_, bits) = (cu.cuDeviceGetAttribute(kind, device) for kind in asked)
    return 2e3 * float(kilohertz or 0) * float(bits or 0) / 8


__all__ = ["Device", "bandwidth"]
