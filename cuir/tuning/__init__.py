"""Tuning: the values of a kernel's const parameters that are fastest for a shape, found on a GPU and kept."""

from .cache import shape_class, tuned
from .compiling import compile_all
from .search import Outcome, TuneReport, tune
from .space import Space

__all__ = ["Outcome", "Space", "TuneReport", "compile_all", "shape_class", "tune", "tuned"]
