"""The interpreter: run a checked kernel on CPU or CUDA tensors under a schedule.

Executes the meaning of docs/semantics.md with its barriers, engines and races. Typing is cuir/checking, code for a GPU
is cuir/lowering.
"""

from __future__ import annotations

from .event_trace import Trace
from .interpreted_launch import RunReport, run
from .schedule import Schedule
from .trace_files import plot_trace, write_trace

__all__ = ["RunReport", "Schedule", "Trace", "plot_trace", "run", "write_trace"]
