"""Progress of first calls: records of the logger `cuir.flex`, and lines on stderr.

Steps are records of level INFO, messages within a step of level DEBUG. Lines on stderr are shown on a terminal, or if
CUIR_PROGRESS requests them.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

LOG = logging.getLogger("cuir.flex")


def is_shown() -> bool:
    """Return True if progress is shown: CUIR_PROGRESS=1 shows it, 0 hides it, else a terminal decides."""
    setting = os.environ.get("CUIR_PROGRESS", "")
    return setting not in ("", "0") or (setting == "" and sys.stderr.isatty())


class Progress:
    """Progress of one variant.

    A step is logged when it begins and when it ends. On a terminal, messages in between share a single line.
    """

    def __init__(self, name: str):
        self.name, self.begin, self.on = name, time.perf_counter(), is_shown()

    def tell(self, text: str, passing: bool = False) -> None:
        """Log a message; `passing` is one within a step, which the next one may overwrite."""
        seconds = time.perf_counter() - self.begin
        LOG.log(logging.DEBUG if passing else logging.INFO, "%s: %5.1f s  %s", self.name, seconds, text)
        if not self.on:
            return
        line = f"cuir: {self.name}: {seconds:5.1f} s  {text}"
        terminal = sys.stderr.isatty()
        sys.stderr.write(f"\r\x1b[2K{line}" + ("" if passing else "\n") if terminal else f"{line}\n")
        sys.stderr.flush()

    @contextmanager
    def step(self, name: str) -> Iterator[Step]:
        """Run a step under a name; its end prints the time that it took."""
        self.tell(name)
        begin = time.perf_counter()
        try:
            yield Step(self, name)
        except BaseException:
            self.tell(f"{name}: failed")
            raise
        self.tell(f"{name}: done in {time.perf_counter() - begin:.1f} s")


class Step:
    """A step that prints messages of its progress."""

    def __init__(self, progress: Progress, name: str):
        self.progress, self.name = progress, name

    def tell(self, text: str) -> None:
        self.progress.tell(f"{self.name}: {text}", passing=True)


__all__ = ["Progress", "Step", "is_shown"]
