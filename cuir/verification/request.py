"""Request of a verification: a program, its specification, and the effort.

Shares of a verification that are done.

They are those of its stages, which tell shares of their own, put together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ..spec.function_specification import AnySpecification
from ..syntax.nodes import Program
from ..text.phrases import ProgressMessage, get_share

Level = Literal["quick", "full"]
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Request:
    """A program with its specification.

    caller_spec: the specification as the caller passed it; seeded: the least number of seeded schedules; progress: receives
    messages; sooner: whether mask and numbers of a few runs are asked for before all schedules.
    """

    program: Program
    spec: AnySpecification
    caller_spec: object
    level: Level
    progress: Progress
    shrink: bool = True
    seeded: int | None = None
    sooner: bool = False


# typical times of the stages, of kernels of the corpus: only their ratios matter
TYPICAL_TIMES = {
    "quick": {"well-formed": 0.5, "contracts": 0.3, "schedules": 2.0, "mask": 0.5, "numbers": 2.5},
    "full": {"well-formed": 1.5, "contracts": 1.5, "schedules": 50.0, "mask": 0.5, "numbers": 40.0},
}


class StageShares:
    """Progress function of stages, which passes each message on with the share of the whole that is done.

    A message begins with the name of its stage and a colon; its share, if it has one, is that of the stage.
    """

    def __init__(self, progress: Progress, level: Level, has_mask: bool):
        times = {name: t for name, t in TYPICAL_TIMES[level].items() if has_mask or name not in ("contracts", "mask")}
        whole = sum(times.values())
        self.progress = progress
        self.begins: dict[str, float] = {}
        self.lengths = {name: t / whole for name, t in times.items()}
        begin = 0.0
        for name, length in self.lengths.items():
            self.begins[name], begin = begin, begin + length
        self.share = 0.0

    def __call__(self, message: str) -> None:
        stage = message.partition(":")[0]
        if stage in self.begins:
            self.share = max(self.share, self.begins[stage] + (get_share(message) or 0.0) * self.lengths[stage])
        self.progress(ProgressMessage(str(message), self.share))


__all__ = ["TYPICAL_TIMES", "Level", "Progress", "Request", "StageShares"]
