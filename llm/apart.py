"""Judging in a process of its own: limits of processor time and memory hold whatever a program makes the interpreter do. Owns the process, not the judgement."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import resource
import signal
import threading
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

MEMORY_BYTES = 12 << 30
WALL = 6.0  # seconds on the clock for each second of processor time, before a process that only waits is ended as well
_SECRET = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL)", re.IGNORECASE)


class OutOfTime(Exception):
    """The judgement took longer than it may."""


class Died(Exception):
    """The process ended without an answer, out of memory for instance; its text says how."""


class Apart:
    """Processes that call functions for this one. Each thread that calls has one of its own, kept for its next call; closing ends them all."""

    def __init__(self) -> None:
        self._own = threading.local()
        self._all: list[_Process] = []
        self._lock = threading.Lock()

    def __call__(self, function: Callable[..., Any], *arguments: Any, seconds: float) -> Any:
        """What `function(*arguments)` returns: all three can be pickled. Raises what it raises, OutOfTime after `seconds` of processor time, Died."""
        process: _Process | None = getattr(self._own, "process", None)
        if process is None or not process.alive:
            process = _Process()
            self._own.process = process
            with self._lock:
                self._all.append(process)
        return process.call(function, arguments, seconds)

    def close(self) -> None:
        """Ends the processes, also such as are at work."""
        with self._lock:
            for process in self._all:
                process.end()
            self._all.clear()

    def __enter__(self) -> Apart:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _Process:
    def __init__(self) -> None:
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    @property
    def alive(self) -> bool:
        return self.process.is_alive()

    def call(self, function: Callable[..., Any], arguments: tuple[Any, ...], seconds: float) -> Any:
        try:
            self.pipe.send((function, arguments, seconds))
            if not self.pipe.poll(60 + seconds * WALL):
                self.end()
                raise OutOfTime
            good, value = self.pipe.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            self.process.join(10)
            code = self.process.exitcode
            self.end()
            if code == -signal.SIGPROF:
                raise OutOfTime from None
            raise Died(f"ended by signal {-code}" if code is not None and code < 0 else f"ended with code {code}") from None
        if not good:
            raise value
        return value

    def end(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self.process.kill()
            self.process.join(10)
        with contextlib.suppress(OSError):
            self.pipe.close()


def _serve(pipe: Connection) -> None:
    """Answers calls until the other side is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that asked decides
    for name in [n for n in os.environ if _SECRET.search(n)]:
        del os.environ[name]  # no judgement needs a key
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    import torch

    torch.set_num_threads(1)
    while True:
        try:
            function, arguments, seconds = pipe.recv()
        except (EOFError, OSError):
            return
        signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process, in C code too
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            answer: tuple[bool, Any] = (True, function(*arguments))
        except MemoryError:
            answer = (False, Died("out of memory"))
        except Exception as error:  # told to the process that asked
            answer = (False, error)
        signal.setitimer(signal.ITIMER_PROF, 0)
        try:
            pipe.send(answer)
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            pipe.send((False, Died(f"gave what cannot be sent: {type(error).__name__}: {error}")))
