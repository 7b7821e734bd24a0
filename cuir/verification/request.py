"""Request of a verification: a program, its specification, and the effort."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ..spec.function_specification import AnySpecification
from ..syntax.nodes import Program

Level = Literal["quick", "full"]
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Request:
    """A program with its specification.

    caller_spec: the specification as the caller passed it; seeded: the least number of seeded schedules; progress: receives
    messages.
    """

    program: Program
    spec: AnySpecification
    caller_spec: object
    level: Level
    progress: Progress
    shrink: bool = True
    seeded: int | None = None


__all__ = ["Level", "Progress", "Request"]
