"""Progress lines of first calls on stderr, if that is a terminal or CUIR_PROGRESS requests them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


def is_shown() -> bool:
    """Return True if progress is shown: CUIR_PROGRESS=1 shows it, 0 hides it, else a terminal decides."""
    setting = os.environ.get("CUIR_PROGRESS", "")
    return setting not in ("", "0") or (setting == "" and sys.stderr.isatty())


class Progress:
    """Progress of one variant.

    A step prints a line when it begins and one when it ends; on a terminal, messages in between share a single line.
    """

    def __init__(self, name: str):
        self.name, self.begin, self.on = name, time.perf_counter(), is_shown()

    def tell(self, text: str, passing: bool = False) -> None:
        if not self.on:
            return
        terminal = sys.stderr.isatty()
        line = f"cuir: {self.name}: {time.perf_counter() - self.begin:5.1f} s  {text}"
        if terminal:
            line = f"\r\x1b[2K{line}"
        print(line, end="" if terminal and passing else "\n", file=sys.stderr, flush=True)

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
        self.progress, self.what = progress, name

    def tell(self, text: str) -> None:
        self.progress.tell(f"{self.what}: {text}", passing=True)


__all__ = ["Progress", "Step", "is_shown"]
