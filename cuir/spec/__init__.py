"""What a kernel should compute, in PyTorch: mods of attention, or any function; and how they are loaded from a user's file."""

from .functions import FunctionSpecification
from .specification import Lengths, Specification

__all__ = ["FunctionSpecification", "Lengths", "Specification"]
