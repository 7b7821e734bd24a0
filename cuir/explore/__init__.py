"""Every schedule of a small launch: the synchronisation of a program without its data, explored up to the order of steps that nobody can tell apart.

Owns the exhaustive exploration and schedules as files; not the meaning of a primitive (cuir/ops, cuir/interp).
"""

from __future__ import annotations

from .explore import Exploration, explore
from .file import Written, read_schedule

__all__ = ["Exploration", "Written", "explore", "read_schedule"]
