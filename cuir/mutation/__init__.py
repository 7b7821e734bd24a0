"""Faulty programs made from a right one, and whether verification refuses them: how good the verification is. Owns no rule of the language."""

from __future__ import annotations

from .judging import Job, Judged, judge, run
from .mutants import Mutant, chosen, mutants
from .places import FAULTS
from .report import MutateReport

__all__ = ["FAULTS", "Job", "Judged", "Mutant", "MutateReport", "chosen", "judge", "mutants", "run"]
