"""GPUs as the dispatch of settings sees them: name, generation, multiprocessors, bandwidth."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from ..search import tuning_records as cache


@dataclass(frozen=True)
class Device:
    """A GPU by its name in tuning keys, and its multiprocessors.

    The name is that of `cuir.performance.search.tuning_records.device`. Without a GPU it is empty and there are 0
    multiprocessors.
    """

    arch: str
    sms: int

    @staticmethod
    def current() -> Device:
        """Return the current GPU."""
        return Device(*cache.device())

    @property
    def name(self) -> str:
        """The maker's name."""
        return self.arch.rpartition(" sm_")[0] or self.arch

    @property
    def generation(self) -> str:
        """The generation, such as `sm_90`; empty if only the name is known."""
        _, separator, rest = self.arch.rpartition(" sm_")
        return f"sm_{rest.split()[0]}" if separator else ""


@functools.cache
def bandwidth(device: int) -> float:
    """Return the memory bandwidth of a device in bytes a second: two for each clock and 8 bits of its bus.

    It is 0.0 if the driver does not say.
    """
    from ...runtime.driver_api import driver

    cu = driver()
    kinds = cu.CUdevice_attribute
    attributes = (kinds.CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, kinds.CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)
    (_, kilohertz), (_, bits) = (cu.cuDeviceGetAttribute(kind, device) for kind in attributes)
    return 2e3 * float(kilohertz or 0) * float(bits or 0) / 8


__all__ = ["Device", "bandwidth"]
