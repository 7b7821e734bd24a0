"""Options `--on` and `--jobs`: the place where tasks of a command run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from ..campaigns.campaign import Executor
from ..campaigns.executors import make_executor
from ..campaigns.ray_executor import RayExecutor
from .live_view import LiveView


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


__all__ = ["use_executor"]
