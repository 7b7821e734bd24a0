"""Live progress on stderr, with an estimate of the time that is left.

It is shown on a terminal alone, and never with --json.

Every command shows its progress by a view of this module. Elsewhere than on a terminal nothing is shown but the step
that an interruption ended.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from ..text.phrases import get_share
from .output import stderr
from .process_setup import Interrupted

EARLIEST, LEAST = 2.0, 0.02  # seconds, and share of the work, before which no estimate is worth showing
BAR = 24  # columns of a bar


def is_terminal() -> bool:
    """Return whether stderr can show a line that changes."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


class Estimate:
    """Estimate of the seconds that are left, from the share of the work that is done."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self.clock, self.start = clock, clock()
        self.share = 0.0
        self.end: float | None = None

    def update(self, share: float | None) -> None:
        """Set the share of the job that is done; None and smaller shares than before are ignored."""
        now = self.clock()
        if share is None or share <= self.share:
            return
        self.share = share
        elapsed = now - self.start
        if elapsed >= EARLIEST and share >= LEAST:
            self.end = now + elapsed * (1 - share) / share

    def seconds(self) -> float | None:
        """Return the seconds left, None if they are unknown.

        They count down while nothing is heard, but not below half of what the speed so far says.
        """
        if self.end is None:
            return None
        now = self.clock()
        return max(1.0, self.end - now, 0.5 * (now - self.start) * (1 - self.share) / self.share)

    def describe(self) -> str:
        """Return the share done and the time left as text, empty if they are unknown."""
        if not self.share:
            return ""
        remaining = self.seconds()
        return f"{self.share:4.0%}" + (f", about {format_seconds(remaining)} left" if remaining is not None and self.share < 1 else "")


def format_seconds(seconds: float) -> str:
    """Return a duration that is not exact: 40 s, 3 min, 2 h."""
    if seconds < 10:
        return f"{seconds:.0f} s"
    if seconds < 100:
        return f"{round(seconds / 5) * 5} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


class LiveView:
    """Context that shows the progress of a job, unless `quiet` (with --json)."""

    transient = True  # the view goes when the work is done

    def __init__(self, title: str, quiet: bool = False):
        self.title, self.quiet = title, quiet
        self.live: Any = None
        self.estimate = Estimate()

    def __enter__(self) -> Any:
        if not self.quiet and is_terminal():
            from rich.live import Live

            self.live = Live(
                get_renderable=self.render,
                console=stderr(),
                refresh_per_second=8,
                transient=self.transient,
                redirect_stdout=sys.stdout.isatty(),  # what goes to a file or a pipe stays there
            )
            self.live.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        interrupted = kind is not None and issubclass(kind, KeyboardInterrupt)
        if interrupted:
            self.interrupt()
        if self.live is not None:
            self.live.__exit__(kind, error, trace)
        if interrupted:
            if not self.quiet and (self.live is None or self.transient):
                for text in self.list_interrupted():
                    stderr().print(f"  {text}", soft_wrap=True)
            raise Interrupted(step=self.get_step()) from None

    @property
    def shown(self) -> bool:
        """True on a terminal."""
        return self.live is not None

    def render(self) -> Any:
        """Return what the terminal shows."""
        raise NotImplementedError

    def interrupt(self) -> None:
        """Note that the running work was interrupted."""

    def list_interrupted(self) -> list[str]:
        """Return a line for each step that was interrupted."""
        return []

    def get_step(self) -> str:
        """Return the step that is running."""
        return ""

    def refresh(self) -> None:
        """Draw the view again."""
        if self.live is not None:
            self.live.refresh()

    def log(self, text: str) -> None:
        """Print a line that stays above the view, on a terminal."""
        if self.live is not None:
            self.live.console.print(f"  {text}", soft_wrap=True)

    def warn(self, text: str) -> None:
        """Print a line that stays, wherever stderr goes."""
        if not self.quiet:
            (self.live.console if self.live is not None else stderr()).print(f"  {text}", soft_wrap=True)


class ProgressLine(LiveView):
    """View of a job: its title, its current step, and a progress bar if the share done is known."""

    doing = ""

    def update(self, text: str, share: float | None = None) -> None:
        """Show the current step, and the share of the job that is done."""
        self.doing = str(text)
        self.estimate.update(get_share(text) if share is None else share)

    def render(self) -> Any:
        """Return the title, and below it a bar with the estimate and the work under way."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.spinner import Spinner
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 1), expand=True)
        estimate = self.estimate.describe()
        for width in (2, *([BAR, len(estimate)] if estimate else [])):
            table.add_column(width=width, min_width=width, no_wrap=True)
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        bar: list[Any] = [ProgressBar(total=1.0, completed=self.estimate.share, width=BAR), Text(estimate)] if estimate else []
        table.add_row(Spinner("dots", style="cyan"), *bar, Text(self.doing or "...", style="dim"))
        return Group(Text(self.title, style="bold"), table)

    def get_step(self) -> str:
        """Return the current step."""
        return self.doing

    def list_interrupted(self) -> list[str]:
        """Return a line that names the interrupted work."""
        return [f"interrupted: {self.doing}" if self.doing else "interrupted"]
