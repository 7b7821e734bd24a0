"""Progress of what a first call waits for: lines on stderr, if that is a terminal or if CUIR_PROGRESS asks for it. Owns the lines."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


def shown() -> bool:
    """CUIR_PROGRESS=1 shows progress, 0 hides it; else a terminal decides."""
    asked = os.environ.get("CUIR_PROGRESS", "")
    return asked not in ("", "0") or (asked == "" and sys.stderr.isatty())


class Progress:
    """Of one variant. A step has a line when it begins and one when it ends; on a terminal, what it tells in between passes on a single line."""

    def __init__(self, name: str):
        self.name, self.begin, self.on = name, time.perf_counter(), shown()

    def tell(self, text: str, passing: bool = False) -> None:
        if not self.on:
            return
        terminal = sys.stderr.isatty()
        line = f"cuir: {self.name}: {time.perf_counter() - self.begin:5.1f} s  {text}"
        if terminal:
            line = f"\r\x1b[2K{line}"
        print(line, end="" if terminal and passing else "\n", file=sys.stderr, flush=True)

    @contextmanager
    def step(self, what: str) -> Iterator[Step]:
        """A step by its name; its end is told with the time that it took."""
        self.tell(what)
        begin = time.perf_counter()
        try:
            yield Step(self, what)
        except BaseException:
            self.tell(f"{what}: failed")
            raise
        self.tell(f"{what}: done in {time.perf_counter() - begin:.1f} s")


class Step:
    """What a step tells of itself."""

    def __init__(self, progress: Progress, what: str):
        self.progress, self.what = progress, what

    def tell(self, text: str) -> None:
        self.progress.tell(f"{self.what}: {text}", passing=True)


__all__ = ["Progress", "Step", "shown"]
