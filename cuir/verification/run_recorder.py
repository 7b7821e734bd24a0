"""What runs in another process have seen of a kernel: sides of conditions, blocks entered, turns of loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..checking.checked import Checked
from ..interp.launch import export_entered_blocks, forget_entered, merge_entered
from ..spec.user_calls import Refusals
from ..text.diagnostics import CuirError
from .coverage.observed import Observed
from .soundness import Soundness


class RunRecorder:
    """Of the runs of some kernels. A specification that answers otherwise by then, or that refuses to, disowns what was run with it.

    refused: functions that were, see `limit_calls`.
    """

    def __init__(self, observed: Observed, kernels: Sequence[Checked], soundness: Soundness, refused: Refusals):
        self.observed, self.kernels, self.soundness, self.refused = observed, kernels, soundness, refused

    def forget(self) -> None:
        """Begin with nothing seen."""
        for kernel in self.kernels:
            forget_entered(kernel)
        self.observed.forget()

    def export(self) -> Any:
        """Sides seen, and what was entered of each kernel; None if the specification is not to be trusted."""
        try:
            self.soundness.end(self.refused)
        except CuirError:
            return None
        return list(self.observed.seen), [export_entered_blocks(kernel) for kernel in self.kernels]

    def merge(self, state: Any) -> None:
        """Add what another process has seen."""
        seen, entered = state
        self.observed.mark(seen)
        for kernel, one in zip(self.kernels, entered, strict=True):
            merge_entered(kernel, one)


__all__ = ["RunRecorder"]
