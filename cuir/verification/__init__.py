"""Verification of a kernel against its specification, by the five questions of docs/verification.md.

Its names are imported when they are first read: reading a cached verdict, or evaluating a splice point, needs neither
the interpreter nor the explorer.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..attn.verification.contracts import check_contracts
    from ..attn.verification.numeric import check_numbers
    from ..attn.verification.problems import Case
    from ..attn.verification.sizes import Problem
    from .exhaustive import check_exhaustively
    from .mask_readout import check_mask
    from .report import Stage, VerifyReport
    from .schedules import check_schedules
    from .stages import verify

_HOME = {
    "Case": "cuir.attn.verification.problems",
    "Problem": "cuir.attn.verification.sizes",
    "Stage": "cuir.verification.report",
    "VerifyReport": "cuir.verification.report",
    "check_contracts": "cuir.attn.verification.contracts",
    "check_exhaustively": "cuir.verification.exhaustive",
    "check_mask": "cuir.verification.mask_readout",
    "check_numbers": "cuir.attn.verification.numeric",
    "check_schedules": "cuir.verification.schedules",
    "verify": "cuir.verification.stages",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


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
