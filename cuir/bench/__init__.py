"""Benchmarks: suites of attention problems, every contender checked and timed in the same run, and what is shown of it."""

from .cells import Cell, measure_cell
from .results import Results, markdown, summary
from .suites import SUITES, suite

__all__ = ["SUITES", "Cell", "Results", "markdown", "measure_cell", "suite", "summary"]
