"""Which setting of its const parameters a call gets: what was tuned, else what a shipped table says, else what a model of cost finds."""

from .choose import Choice, choose, problem_class
from .device import Device

__all__ = ["Choice", "Device", "choose", "problem_class"]
