"""Benchmarks: suites of attention problems, with every contender checked and timed in the same run."""

from .cell_benchmark import Cell, measure_cell
from .results import Results, markdown, summary
from .suites import SUITES, suite

__all__ = ["SUITES", "Cell", "Results", "markdown", "measure_cell", "suite", "summary"]
