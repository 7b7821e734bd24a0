"""Exhaustive exploration of the schedules of a small launch.

Only the synchronisation of a program is explored, without its data, up to the order of independent steps. The meaning
of primitives is in cuir/ops and cuir/interp.
"""

from __future__ import annotations

from .explore import Exploration, explore
from .schedule_file import Written, read_schedule

__all__ = ["Exploration", "Written", "explore", "read_schedule"]
