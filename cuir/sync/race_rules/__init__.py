"""The rules of pairs of accesses, a file each. Modules of this folder are found by scanning.

Of several rules that a pair breaks, the first by the name of its file is reported.
"""

from __future__ import annotations

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
