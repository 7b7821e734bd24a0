"""Roles, work items, clusters."""

from __future__ import annotations

from ..clocks import WorkerClock
from ..code import Site
from ..machine import Evaluate, Machine, Program, Worker
from ..ops_registry import runs
from ..schedule import partition_work

runs("tiles")(partition_work)


@runs("role")
def role(m: Machine, program: Program, cta: int, first: int, workers: int, entries: int) -> list[Worker]:
    """Make the workers of a role in one CTA, numbered from `first` within the cluster."""
    return [Worker(m, first + i, cta, program, i, WorkerClock(first + i, workers, entries)) for i in range(program.workers)]


@runs("cta_rank")
def cta_rank(site: Site) -> Evaluate:
    return lambda w: w.cta
