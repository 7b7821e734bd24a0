"""The table of primitives: one entry each, in one file per family.

Modules of this folder are found by scanning.
"""

from __future__ import annotations

import importlib
import pkgutil

from .base import OPERATORS, TABLE, WRITTEN, Op

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["OPERATORS", "TABLE", "WRITTEN", "Op"]
