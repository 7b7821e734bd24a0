"""Measuring on a GPU: problems with what they should come to, the protocol of timing, a process that may hang. Owns no search and no suite."""

from .problem import Expectation, Shape, expectation, kept_pairs, tensors
from .protocol import in_turns, median_ms, versions
from .worker import Worker, serve

__all__ = ["Expectation", "Shape", "Worker", "expectation", "in_turns", "kept_pairs", "median_ms", "serve", "tensors", "versions"]
