"""Verification of a kernel against its specification, by the five questions of docs/verification.md."""

from __future__ import annotations

from .contracts import check_contracts
from .exhaustive import check_exhaustively
from .mask import check_mask
from .numeric import check_numbers
from .problems import Case
from .report import Stage, VerifyReport
from .schedules import check_schedules
from .sizes import Problem
from .stages import verify

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
