"""Request of a verification: a program, its specification, and how much is tried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from ..spec.functions import AnySpecification
from ..syntax.nodes import Program

Level = Literal["quick", "full"]
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Request:
    """A program with its specification. given: this as the caller has it; seeded: at least so many seeded schedules in all; progress: is told in words what happens."""

    program: Program
    spec: AnySpecification
    given: Any
    level: Level
    progress: Progress
    shrink: bool = True
    seeded: int | None = None


__all__ = ["Level", "Progress", "Request"]
