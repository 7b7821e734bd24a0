"""Implementations of the primitives in the interpreter, one file per family, mirroring cuir/ops.

Modules of this folder are found by scanning.
"""

from __future__ import annotations

import importlib
import pkgutil

from ...ops import OPERATORS, TABLE
from ..ops_registry import RUNS, runs

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")


def gaps() -> tuple[list[str], list[str]]:
    """Return (entries of the table without an implementation, implementations without an entry)."""
    entries = {*TABLE, *OPERATORS}
    return sorted(entries - RUNS.keys()), sorted(RUNS.keys() - entries)


__all__ = ["RUNS", "gaps", "runs"]
