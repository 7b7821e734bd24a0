"""Dispatch of a call to a setting of const parameters, from tuning, shipped tables or a cost model."""

from .choose import Choice, Evidence, choose, problem_class
from .device import Device

__all__ = ["Choice", "Device", "Evidence", "choose", "problem_class"]
