"""Faulty variants of a correct program, made to measure which of them verification refuses."""

from __future__ import annotations

from .mutant_judging import Job, Judged, judge, run
from .mutants import Mutant, choose_mutants, mutants
from .mutation_report import MutateReport
from .mutation_sites import FAULTS

__all__ = ["FAULTS", "Job", "Judged", "Mutant", "MutateReport", "choose_mutants", "judge", "mutants", "run"]
