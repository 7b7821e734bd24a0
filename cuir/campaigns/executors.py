"""Choice of what runs a campaign: `--on local` or `--on ray[:ADDRESS]`."""

from __future__ import annotations

from ..text.diagnostics import CuirError
from .campaign import Executor
from .local_executor import LocalExecutor
from .ray_executor import RayExecutor


def make_executor(on: str = "local", jobs: int = 1) -> Executor:
    """Return the executor that an option `--on` names.

    jobs: processes of the local one. Raises CuirError U100.
    """
    place, _, address = on.partition(":")
    if place == "ray":
        return RayExecutor(address)
    if on == "local":
        return LocalExecutor(jobs)
    raise CuirError.of("U100", f"there is no place `{on}` for tasks", hint="--on local, --on ray, or --on ray:HOST:PORT")


__all__ = ["make_executor"]
