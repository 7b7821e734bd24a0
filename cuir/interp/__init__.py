"""The interpreter: runs a checked kernel on CPU or CUDA tensors with its barriers, engines and races, under a schedule.

Owns the meaning of docs/semantics.md as it runs; does not own typing (cuir/checking/checker.py) nor code for a GPU (cuir/lowering).
"""

from __future__ import annotations

from .launch import RunReport, run
from .schedule import Schedule
from .trace import Trace
from .trace_files import plot_trace, write_trace

__all__ = ["RunReport", "Schedule", "Trace", "plot_trace", "run", "write_trace"]
