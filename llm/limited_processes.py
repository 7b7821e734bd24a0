"""Worker processes that judge programs within limits of processor time and memory.

The limits hold whatever a program makes the interpreter do.
"""

from __future__ import annotations

import contextlib
import functools
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

from cuir.campaigns.ray_executor import RayExecutor

MEMORY_BYTES = 12 << 30
WALL = 6.0  # seconds on the clock for each second of processor time, before a process that only waits is ended as well
_SECRET = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL)", re.IGNORECASE)


class OutOfTime(Exception):
    """Error of a judgement that took longer than allowed."""


class Died(Exception):
    """Error of a process that ended without an answer, for instance out of memory; its text says how."""


class LimitedProcesses:
    """Pool of worker processes that call functions for this process.

    Each calling thread has one process, kept for its next call; `close` ends them all.
    """

    def __init__(self) -> None:
        self._local = threading.local()
        self._all: list[_Process] = []
        self._lock = threading.Lock()

    def __call__(self, function: Callable[..., Any], *arguments: Any, seconds: float) -> Any:
        """Return `function(*arguments)`, computed in the worker process of this thread.

        Function, arguments and result must be picklable. Raises what the function raises, OutOfTime after `seconds` of
        processor time, or Died.
        """
        process: _Process | None = getattr(self._local, "process", None)
        if process is None or not process.alive:
            process = _Process()
            self._local.process = process
            with self._lock:
                self._all.append(process)
        return process.call(function, arguments, seconds)

    def close(self) -> None:
        """End the processes, including those at work."""
        with self._lock:
            for process in self._all:
                process.end()
            self._all.clear()

    def __enter__(self) -> LimitedProcesses:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class ClusterProcesses(LimitedProcesses):
    """Worker processes on the nodes of a Ray cluster: each call goes to a free core."""

    def __init__(self, executor: RayExecutor):
        super().__init__()
        self.executor = executor

    def __call__(self, function: Callable[..., Any], *arguments: Any, seconds: float) -> Any:
        """Return `function(*arguments)`; see `LimitedProcesses`."""
        return self.executor.call(call_here, function, arguments, seconds)


def call_here(function: Callable[..., Any], arguments: tuple[Any, ...], seconds: float) -> Any:
    """Return `function(*arguments)`, computed in a limited process of this one, which is kept for the next call."""
    return _keep_processes()(function, *arguments, seconds=seconds)


@functools.cache
def _keep_processes() -> LimitedProcesses:
    return LimitedProcesses()


class _Process:
    """Worker process and the pipe to it."""

    def __init__(self) -> None:
        context = get_context("spawn")
        self.pipe, worker_end = context.Pipe()
        self.process = context.Process(target=_serve, args=(worker_end,), daemon=True)
        self.process.start()
        worker_end.close()

    @property
    def alive(self) -> bool:
        """True if the process runs."""
        return self.process.is_alive()

    def call(self, function: Callable[..., Any], arguments: tuple[Any, ...], seconds: float) -> Any:
        """Return what the function returns in the worker process, or raise what it raises, OutOfTime or Died."""
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
        """Kill the process and close the pipe."""
        with contextlib.suppress(OSError, ValueError):
            self.process.kill()
            self.process.join(10)
        with contextlib.suppress(OSError):
            self.pipe.close()


def _serve(pipe: Connection) -> None:
    """Answer calls until the other side is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the calling process decides
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
        except Exception as error:  # raised again in the calling process
            answer = (False, error)
        signal.setitimer(signal.ITIMER_PROF, 0)
        try:
            pipe.send(answer)
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            pipe.send((False, Died(f"gave what cannot be sent: {type(error).__name__}: {error}")))
