"""Dispatch of a call to a setting of const parameters, from tuning, shipped tables or a cost model."""

from .device import Device
from .setting_dispatch import Choice, Evidence, choose, problem_class

__all__ = ["Choice", "Device", "Evidence", "choose", "problem_class"]
