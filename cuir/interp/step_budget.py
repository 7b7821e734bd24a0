"""Time limit of one run, so that no program hangs the interpreter, and the errors for it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ..text.diagnostics import CuirError
from ..text.source import Span

SECONDS = 60.0  # default limit of a run's processor time
TURN, UNIT = 1e-6, 1e-5  # lower bounds of the seconds of a loop's turn and of a work item
PATIENCE = 3.0  # seconds before a loop's pace is extrapolated to all its turns

_allowed: ContextVar[float] = ContextVar("seconds of a run", default=SECONDS)


@contextmanager
def limit_seconds(seconds: float) -> Iterator[None]:
    """Set the limit of processor time, in seconds, for each run inside the context."""
    token = _allowed.set(seconds)
    try:
        yield
    finally:
        _allowed.reset(token)


class Budget:
    """The processor time of one run, measured on the thread that runs it.

    Loops ask before they begin, and at each turn once the run has taken a while.
    """

    def __init__(self, seconds: float | None = None):
        self.seconds = _allowed.get() if seconds is None else seconds
        self.began, self.begun = time.thread_time(), time.perf_counter()
        self.patience = min(PATIENCE, self.seconds / 4)
        self.look_at = self.begun + self.patience  # wall time: thread time is never ahead of it, and costs more to read
        self.ask_at, self.share = self.look_at, 1.0  # when to read thread time again, and its ratio to wall time

    def require(self, turns: int, each: float, span: Span) -> None:
        """Check before a loop of `turns` turns (or work items) of `each` seconds that it can end in time.

        Raises CuirError D402 if it cannot.
        """
        if turns * each > self.seconds:
            description = f"a loop of {turns:,} turns" if each == TURN else f"{turns:,} units of work"
            raise self._over(
                f"{description}, of which none was begun: they take the interpreter more than the {self.seconds:g} seconds that a run may take",
                span,
            )

    def turn(self, completed: int, turns: int, since: float, span: Span) -> None:
        """Check the pace at a turn of a loop that began at `since` (perf_counter), after `look_at`.

        Raises CuirError D402 if the run is over its time, or will be at this pace.
        """
        wall = time.perf_counter()
        if wall > self.ask_at:
            self.ask_at, self.share = wall + 0.05, (time.thread_time() - self.began) / (wall - self.begun)
        now, since = (wall - self.begun) * self.share, (since - self.begun) * self.share
        if now < self.patience:
            return
        remaining = turns - completed
        if now > self.seconds:
            raise self._over(
                f"the run was given up after {now:.0f} seconds of processor time, when this loop had made {completed:,} of its {turns:,} turns",
                span,
            )
        if completed > 0 and now - since > self.patience / 2 and (need := (now - since) / completed * remaining) > self.seconds - now:
            raise self._over(
                f"this loop made {completed:,} of its {turns:,} turns in {now - since:.1f} seconds and needs {format_duration(need)} more, where a run may take {self.seconds:g} seconds",
                span,
            )

    def _over(self, message: str, span: Span) -> CuirError:
        return CuirError.of(
            "D402",
            message,
            span,
            "fewer turns: smaller lengths or consts; if the loop is meant, --budget SECONDS (budget= in Python) allows more",
        )


def format_duration(seconds: float) -> str:
    """Format a long time in its largest fitting unit."""
    for name, size in (("years", 31_557_600.0), ("days", 86_400.0), ("hours", 3_600.0), ("minutes", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {name}"
    return f"{seconds:.0f} seconds"
