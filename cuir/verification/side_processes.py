"""Jobs of a verification in forked processes; failed and missing jobs are left to the caller.

A process takes one job after the other. It reports a phase as a whole: the results, and what its runs recorded about
the kernels. Jobs that raised, and all of a process that died or fell silent, count as not done, so that the caller runs
them itself and meets the fault in the usual order.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import pickle
import select
import signal
import struct
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

from ..runtime.nvcc import SPAWNING
from ..spec.user_calls import end_at_once
from . import resource_limits

MOST = 10  # the largest number of processes
_INDEX = struct.Struct("<i")
_LENGTH = struct.Struct("<q")
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG

Job = Callable[[], Any]


def count_usable_processes() -> int:
    """Return the number of processes for a verification on this machine.

    1 where there is no fork or a single core; CUIR_PROCESSES overrides it.
    """
    requested = os.environ.get("CUIR_PROCESSES", "")
    if requested.isdecimal():
        return max(1, min(MOST, int(requested)))
    if not hasattr(os, "fork") or not hasattr(os, "sched_getaffinity"):
        return 1
    cores = len(os.sched_getaffinity(0))
    return min(MOST, max(cores - 1, min(cores, 2)))


class Recorder(Protocol):
    """State that jobs leave behind."""

    def forget(self) -> None:
        """Forget what runs of the caller left in a forked side process, before its first job."""

    def export(self) -> object:
        """Return the state of a phase, for `merge` in another process; None to discard its results."""

    def merge(self, state: Any) -> None:
        """Add the state that another process exported."""


@dataclass
class _Side:
    pid: int
    reports: int  # file descriptor
    data: bytearray = field(default_factory=bytearray)
    phases: dict[int, tuple[dict[int, object], object]] = field(default_factory=dict)  # results by job, and the state
    ended: bool = False


class SideProcesses:
    """Jobs in phases, distributed to forked processes in their order.

    As a context manager it kills what still runs at its end.

    silence: seconds without a report of a process before it is killed; None for those of a verification.
    """

    def __init__(self, phases: Sequence[Sequence[Job]], recorder: Recorder, count: int, silence: float | None = None):
        self.phases, self.recorder, self.silence = [list(p) for p in phases], recorder, silence
        self.sides: list[_Side] = []
        jobs = [(p, i) for p, phase in enumerate(self.phases) for i in range(len(phase))]
        if count > 1 and jobs:
            self._start(jobs, min(count, len(jobs)))

    def __enter__(self) -> SideProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        for side in self.sides:
            self._end(side)
        self.sides = []

    def results(self, phase: int) -> list[Any]:
        """Return the results of a phase, None for each job that the caller is to run.

        Waits for the processes, and merges their state.
        """
        if not self.phases:
            return []
        self._wait(phase)
        return self._merge(phase)

    def merge_reported(self, first: int) -> None:
        """Merge what processes have reported of a phase and those behind it, when nobody will wait for them."""
        for phase in range(first, len(self.phases)):
            self._merge(phase)

    def _merge(self, phase: int) -> list[Any]:
        """Merge the state of a phase, and return its results."""
        by_job: list[Any] = [None] * len(self.phases[phase])
        for side in self.sides:
            if phase in side.phases:
                results, state = side.phases[phase]
                if state is not None:
                    self.recorder.merge(state)
                for index, result in results.items():
                    by_job[index] = result
        return by_job

    # ---- in the parent
    def _start(self, jobs: Sequence[tuple[int, int]], count: int) -> None:
        dealt, deal = os.pipe()
        try:
            os.write(deal, b"".join(_INDEX.pack(n) for n in (*range(len(jobs)), *[-1] * count)))
            for stream in (sys.stdout, sys.stderr):  # buffered text would be written by each process
                with contextlib.suppress(Exception):
                    stream.flush()
            parent = os.getpid()
            for _ in range(count):
                reports, report = os.pipe()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", DeprecationWarning)  # about threads, which jobs do not use
                    with SPAWNING:
                        pid = os.fork()
                if pid == 0:
                    self._serve(jobs, dealt, report, parent)
                os.close(report)
                self.sides.append(_Side(pid, reports))
        except OSError:  # no more processes or descriptors: the existing ones suffice
            pass
        finally:
            os.close(deal)
            os.close(dealt)

    def _wait(self, phase: int) -> None:
        """Read reports until each process has reported the phase, or has ended."""
        silence = resource_limits.SILENCE if self.silence is None else self.silence
        until = time.monotonic() + silence
        while waiting := [s for s in self.sides if not s.ended and phase not in s.phases]:
            ready, _, _ = select.select([s.reports for s in waiting], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                for side in waiting:
                    self._end(side)
                return
            until = time.monotonic() + silence
            for side in waiting:
                if side.reports in ready:
                    self._read(side)

    def _read(self, side: _Side) -> None:
        content = os.read(side.reports, 1 << 20)
        if not content:
            self._end(side)
            return
        side.data += content
        while len(side.data) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(side.data)
            if len(side.data) < _LENGTH.size + length:
                return
            message = bytes(side.data[_LENGTH.size : _LENGTH.size + length])
            del side.data[: _LENGTH.size + length]
            if message:  # else a sign of life
                phase, results, state = pickle.loads(message)
                side.phases[phase] = results, state

    def _end(self, side: _Side) -> None:
        if side.ended:
            return
        side.ended = True
        with contextlib.suppress(OSError):
            os.kill(side.pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            os.close(side.reports)
        with contextlib.suppress(OSError):  # another waiter may have reaped it
            os.waitpid(side.pid, 0)

    # ---- in a side process
    def _serve(self, jobs: Sequence[tuple[int, int]], dealt: int, report: int, parent: int) -> NoReturn:
        """Run jobs until none remains; does not return."""
        try:
            with contextlib.suppress(Exception):
                ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
            if os.getppid() == parent:
                for number in (signal.SIGINT, signal.SIGTERM):  # Ctrl-C goes to all: the parent reports it
                    signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)
                gc.freeze()
                self._run(jobs, dealt, report)
        except BaseException:  # the parent runs what is not reported
            pass
        finally:
            end_at_once(0)

    def _run(self, jobs: Sequence[tuple[int, int]], dealt: int, report: int) -> None:
        phase, results = 0, dict[int, object]()
        self.recorder.forget()
        while True:
            (number,) = _INDEX.unpack(os.read(dealt, _INDEX.size))
            after = len(self.phases) if number < 0 else jobs[number][0]
            while phase < after:
                self._report(report, phase, results)
                phase, results = phase + 1, {}
                self.recorder.forget()
            if number < 0:
                return
            with contextlib.suppress(Exception):  # the parent runs it again, and reports the fault
                results[jobs[number][1]] = self.phases[phase][jobs[number][1]]()
            _send(report, b"")

    def _report(self, report: int, phase: int, results: dict[int, object]) -> None:
        state = self.recorder.export()
        try:
            message = pickle.dumps((phase, results, state) if state is not None else (phase, {}, None))
        except Exception:
            message = pickle.dumps((phase, {}, None))
        _send(report, message)


def _send(report: int, message: bytes) -> None:
    content = memoryview(_LENGTH.pack(len(message)) + message)
    while content:
        content = content[os.write(report, content) :]


__all__ = ["Job", "Recorder", "SideProcesses", "count_usable_processes"]
