"""Verification of a kernel against its specification, by the five questions of docs/verification.md.

Its names are imported when they are first read: reading a cached verdict, or evaluating a splice point, needs neither
the interpreter nor the explorer.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .contracts import check_contracts
    from .exhaustive import check_exhaustively
    from .mask import check_mask
    from .numeric import check_numbers
    from .problems import Case
    from .report import Stage, VerifyReport
    from .schedules import check_schedules
    from .sizes import Problem
    from .stages import verify

_HOME = {
    "Case": "problems",
    "Problem": "sizes",
    "Stage": "report",
    "VerifyReport": "report",
    "check_contracts": "contracts",
    "check_exhaustively": "exhaustive",
    "check_mask": "mask",
    "check_numbers": "numeric",
    "check_schedules": "schedules",
    "verify": "stages",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)


__all__ = [
    "Case",
    "Problem",
    "Stage",
    "VerifyReport",
    "check_contracts",
    "check_exhaustively",
    "check_mask",
    "check_numbers",
    "check_schedules",
    "verify",
]
