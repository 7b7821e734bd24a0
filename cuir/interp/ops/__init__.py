"""What each primitive does when it runs, one file per family, mirroring cuir/ops. Modules of this folder are found by scanning."""

from __future__ import annotations

import importlib
import pkgutil

from ...ops import OPERATORS, TABLE
from ..registry import RUNS, runs

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")


def gaps() -> tuple[list[str], list[str]]:
    """(entries of the table without a meaning, meanings without an entry)."""
    wanted = {*TABLE, *OPERATORS}
    return sorted(wanted - RUNS.keys()), sorted(RUNS.keys() - wanted)


__all__ = ["RUNS", "gaps", "runs"]
