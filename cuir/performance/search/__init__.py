"""Search on a GPU for the fastest values of a kernel's const parameters for a shape, and its cache."""

from .compiling import compile_all
from .search import Outcome, SearchOptions, SearchTask, TuneReport, tune
from .space import Space
from .tuning_records import shape_class, tuned

__all__ = ["Outcome", "SearchOptions", "SearchTask", "Space", "TuneReport", "compile_all", "shape_class", "tune", "tuned"]
