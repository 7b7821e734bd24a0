"""Specifications in PyTorch: mods of attention or any function, and their loading from a user's file."""

from .function_specification import FunctionSpecification
from .specification import Lengths, Specification

__all__ = ["FunctionSpecification", "Lengths", "Specification"]
