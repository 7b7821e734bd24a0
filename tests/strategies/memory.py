"""Resident memory of this process."""

from __future__ import annotations

import resource
from pathlib import Path

_STATM = Path("/proc/self/statm")


def read_resident() -> float:
    """Resident memory in MB; 0 where the system does not tell."""
    return int(_STATM.read_text().split()[1]) * resource.getpagesize() / 1e6 if _STATM.exists() else 0.0
