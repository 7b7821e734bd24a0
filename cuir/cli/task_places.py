"""Options `--on`, `--jobs` and `--journal`: where tasks of a command run, and the file of their results."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..campaigns.campaign import Executor
from ..campaigns.executors import make_executor
from ..campaigns.ray_executor import RayExecutor
from .live_view import LiveView


@dataclass(frozen=True)
class TaskWords:
    """Options of the command line for tasks.

    Attributes:
        on: Place.
        jobs: Processes of this machine; None for one a core.
        journal: File of results.
    """

    on: str = "local"
    jobs: int | None = 1
    journal: Path | None = None

    @property
    def wanted(self) -> bool:
        """Return whether any option asks for tasks."""
        return self.on != "local" or self.jobs != 1 or self.journal is not None


@contextmanager
def use_executor(on: str, jobs: int | None, view: LiveView) -> Iterator[Executor]:
    """Return a context with the executor of the options; of a cluster, the view tells the link to the dashboard.

    jobs: processes; by default one a core. Raises CuirError U100, and what `RayExecutor.connect` raises.
    """
    executor = make_executor(on, jobs or os.cpu_count() or 1)
    if not isinstance(executor, RayExecutor):
        yield executor
        return
    with executor:
        view.log(executor.describe())
        yield executor


__all__ = ["TaskWords", "use_executor"]
