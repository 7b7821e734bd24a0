"""Observations of runs in another process: sides of conditions, blocks entered, turns of loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..checking.checked import Checked
from ..interp.interpreted_launch import export_entered_blocks, forget_entered, merge_entered
from ..spec.user_calls import Refusals
from ..text.diagnostics import CuirError
from .coverage.observed_sides import Observed
from .soundness import Soundness


class RunRecorder:
    """Recorder of the runs of some kernels.

    If the specification answers differently afterwards, or refuses to, the observations are discarded. soundness: None
    for a specification that the runs do not evaluate. refused: functions that were refused, see `limit_calls`.
    """

    def __init__(self, observed: Observed, kernels: Sequence[Checked], soundness: Soundness | None, refused: Refusals):
        self.observed, self.kernels, self.soundness, self.refused = observed, kernels, soundness, refused

    def forget(self) -> None:
        """Discard all observations."""
        for kernel in self.kernels:
            forget_entered(kernel)
        self.observed.forget()

    def export(self) -> Any:
        """Return sides seen, and blocks entered of each kernel; None if the specification is unsound."""
        try:
            if self.soundness is not None:
                self.soundness.end(self.refused)
        except CuirError:
            return None
        return list(self.observed.sides), [export_entered_blocks(kernel) for kernel in self.kernels]

    def merge(self, state: Any) -> None:
        """Add the observations of another process."""
        sides, entered = state
        self.observed.mark(sides)
        for kernel, blocks in zip(self.kernels, entered, strict=True):
            merge_entered(kernel, blocks)


__all__ = ["RunRecorder"]
