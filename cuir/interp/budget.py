"""How long one run may take: no program hangs the interpreter. Owns when a run is given up, and the words for it; not what runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ..text.diagnostics import CuirError
from ..text.source import Span

SECONDS = 60.0  # of processor time of a run, unless its caller says otherwise
TURN, UNIT = 1e-6, 1e-5  # seconds that no turn of a loop, and no unit of work, takes less than
PATIENCE = 3.0  # seconds before a loop's pace is taken for that of all its turns

_allowed: ContextVar[float] = ContextVar("seconds of a run", default=SECONDS)


@contextmanager
def allowing(seconds: float) -> Iterator[None]:
    """Runs inside of it may take so many seconds of processor time each."""
    token = _allowed.set(seconds)
    try:
        yield
    finally:
        _allowed.reset(token)


class Budget:
    """The time of one run, of the thread that runs it. Loops ask before they begin, and at each turn once the run has taken a while."""

    def __init__(self, seconds: float | None = None):
        self.seconds = _allowed.get() if seconds is None else seconds
        self.began, self.begun = time.thread_time(), time.perf_counter()
        self.patience = min(PATIENCE, self.seconds / 4)
        self.look_at = self.begun + self.patience  # the time of the thread, which may cost much to ask for, is never ahead of it
        self.ask_at, self.share = self.look_at, 1.0  # when to ask for it again, and what part of the time it is

    def require(self, turns: int, each: float, span: Span) -> None:
        """Before a loop, or the units of work, of so many turns. Raises CuirError D402 if they cannot be over in time."""
        if turns * each > self.seconds:
            what = f"a loop of {turns:,} turns" if each == TURN else f"{turns:,} units of work"
            raise self._over(
                f"{what}, of which none was begun: they take the interpreter more than the {self.seconds:g} seconds that a run may take",
                span,
            )

    def turn(self, done: int, turns: int, since: float, span: Span) -> None:
        """At a turn of a loop that began at `since` (perf_counter), after `look_at`. Raises CuirError D402 if the run is over its time, or will be at this pace."""
        wall = time.perf_counter()
        if wall > self.ask_at:
            self.ask_at, self.share = wall + 0.05, (time.thread_time() - self.began) / (wall - self.begun)
        now, since = (wall - self.begun) * self.share, (since - self.begun) * self.share
        if now < self.patience:
            return
        left = turns - done
        if now > self.seconds:
            raise self._over(
                f"the run was given up after {now:.0f} seconds of processor time, when this loop had made {done:,} of its {turns:,} turns",
                span,
            )
        if done > 0 and now - since > self.patience / 2 and (need := (now - since) / done * left) > self.seconds - now:
            raise self._over(
                f"this loop made {done:,} of its {turns:,} turns in {now - since:.1f} seconds and needs {spoken(need)} more, where a run may take {self.seconds:g} seconds",
                span,
            )

    def _over(self, message: str, span: Span) -> CuirError:
        return CuirError.of(
            "D402", message, span, "fewer turns: smaller lengths or consts; if the loop is meant, --budget SECONDS (budget= in Python) allows more"
        )  # fmt: skip


def spoken(seconds: float) -> str:
    """A long time in words."""
    for name, size in (("years", 31_557_600.0), ("days", 86_400.0), ("hours", 3_600.0), ("minutes", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {name}"
    return f"{seconds:.0f} seconds"
