"""The judge's side of a solution's process: requests to it, and its launches in the machine for PTX."""

from __future__ import annotations

import itertools
import json
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import numpy as np
import torch

from ..ptx.launch.kernel_launch import KernelRun, PlacedCall
from ..text.diagnostics import CuirError, Diagnostic
from ..verification.cuda_runs import RunLedger
from ..verification.host_programs import FAILED, HostProgram

CAPACITY = 512 << 20
SAMPLED = 4  # places in the grid at which CTAs of a sampled launch run
UNJUDGED = ("O121", "O123", "U100", "U502")  # what the machine, or the stand-ins, do not have
LOADING = 10.0  # times the seconds of a call: nvcc may run
ORDERED = ("atom", "red")  # instructions by which CTAs meet


class SolutionLost(Exception):
    """End of a solution's process: it crashed, or did not answer in time."""


class NotJudged(Exception):
    """Reason why this machine cannot run a solution, in words."""


@dataclass
class CallRecord:
    """Answer of one call of a solution, and what its launches did.

    Attributes:
        error: What it raised, "" if it returned.
        places: For each output the address of its storage, and its own.
        findings: Broken rules of its launches.
        launches: Launches, also those that were left out.
        sampled: Share of the CTAs that ran; 0 if they meet, so that some alone say nothing.
    """

    error: str = ""
    outputs: list[torch.Tensor] = field(default_factory=list)
    undefined: list[torch.Tensor] = field(default_factory=list)
    inputs: list[torch.Tensor] = field(default_factory=list)
    kept: list[torch.Tensor] = field(default_factory=list)
    places: list[list[int]] = field(default_factory=list)
    recorded: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    streams: int = 0
    threads: int = 0
    launches: int = 0
    sampled: float = 1.0
    findings: list[Diagnostic] = field(default_factory=list)


@contextmanager
def limit_seconds(seconds: float) -> Iterator[None]:
    """Raise NotJudged in a block of more processor time; without effect in another thread than the main one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise NotJudged(f"a launch takes more than {seconds:.0f} s in the machine")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


class SolutionProcess(HostProgram):
    """A solution in a process of its own.

    Attributes:
        mode: Of launches: "run"; "skip" leaves them out; "sample" runs some CTAs.
        seconds: That an answer, and a launch, may take.
    """

    def __init__(self, solution: Path, launch: Path | None, arch: str, ledger: RunLedger, seconds: float):
        super().__init__(solution, "together", ledger, CAPACITY)
        self.solution, self.launch_file, self.arch, self.seconds = solution, launch, arch, seconds
        self.mode, self.record = "run", CallRecord()
        self.written = np.zeros(self.capacity, np.uint8)
        self.folder = tempfile.TemporaryDirectory()
        self.numbers = itertools.count()
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "cuir.judge.solution_worker", *map(str, (theirs.fileno(), self.files[1], self.capacity)), arch]
        self.errors = Path(self.folder.name, "stderr")
        with self.errors.open("wb") as stderr:
            self.process, self.calls = self.start(command, (theirs.fileno(),), subprocess.DEVNULL, stderr.fileno())
        theirs.close()
        self.control, self.refused = ours, ""

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
        self.control.close()
        self.calls.close()
        self.folder.cleanup()

    # ---- requests
    def load(self, init: Sequence[object], state: dict[str, torch.Tensor]) -> bool:
        """Load the solution; return whether it took the parameters. Raises NotJudged, SolutionLost."""
        file = self._write({"init": list(init), "state": state})
        launch = str(self.launch_file.resolve()) if self.launch_file is not None else ""
        request = {"do": "load", "path": str(self.solution.resolve()), "launch": launch, "file": file, "seed": 0}
        answer = self._ask(request, LOADING)
        if not answer["ok"]:
            raise NotJudged(str(answer["error"]))
        return bool(answer["took"])

    def call(
        self, inputs: Sequence[object], same_memory: bool = False, side_stream: bool = False, keep: bool = False, mode: str = "run"
    ) -> CallRecord:
        """Run the solution on inputs. Raises NotJudged, SolutionLost.

        Args:
            same_memory: The inputs' memory is that of the call before.
            side_stream: The current stream is not the default one.
            keep: The answer holds what the outputs of the call before are now.
            mode: What is done with launches.
        """
        self.mode, self.record, self.refused = mode, CallRecord(), ""
        known = len(self.ledger.findings)
        if mode == "sample":
            self.written[:] = 0
        answer_file = Path(self.folder.name, f"answer{next(self.numbers)}")
        request = {"do": "call", "file": self._write(list(inputs)), "answer": str(answer_file)}
        answer = self._ask({**request, "same_memory": same_memory, "side_stream": side_stream, "keep": keep})
        if self.refused:
            raise NotJudged(self.refused)
        record = self.record
        record.findings = list(self.ledger.findings.values())[known:]
        if not answer["ok"]:
            record.error = str(answer["error"])
            return record
        tensors = torch.load(answer_file, weights_only=True)
        answer_file.unlink()
        for name, value in {**answer, **tensors}.items():
            if name != "ok":
                setattr(record, name, value)
        return record

    def _write(self, value: object) -> str:
        """Write a file for the solution."""
        path = Path(self.folder.name, f"request{next(self.numbers)}")
        torch.save(value, path)
        return str(path)

    def _ask(self, request: dict[str, object], share: float = 1.0) -> dict[str, object]:
        """Return the answer to a request; serves the stand-in until it comes. Raises NotJudged, SolutionLost."""
        self.control.sendall(json.dumps(request).encode() + b"\n")
        deadline, answer = time.monotonic() + share * self.seconds, b""
        while not answer.endswith(b"\n"):
            ready, _, _ = select.select([self.calls, self.control], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise SolutionLost(f"it has not returned after {share * self.seconds:.0f} s")
            if self.control in ready:
                part = self._receive(self.control, 1 << 20)
                if not part:
                    raise SolutionLost(self._describe_end())
                answer += part
            elif self.calls in ready:
                began = time.monotonic()
                if not self._answer_call():
                    raise SolutionLost(self._describe_end())
                deadline += time.monotonic() - began
        result = json.loads(answer)
        assert isinstance(result, dict)
        return result

    def _describe_end(self) -> str:
        """Describe how the process ended."""
        code = self.process.wait()
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        lines = self.errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f"its process ended ({name}){': ' + lines[-1] if lines else ''}"

    def _answer_call(self) -> bool:
        """Answer one call of the stand-in; return whether there was one."""
        head = self._read(8)
        if head is None:
            return False
        kind, size = np.frombuffer(head, np.uint32).tolist()
        data = self._read(size) if size else b""
        if data is None:
            return False
        try:
            status, answer = self.answers[kind](data)
        except CuirError as error:
            self.refused = error.diagnostics[0].message
            raise NotJudged(self.refused) from error
        self.calls.sendall(np.array([status, len(answer)], np.int32).tobytes() + answer)
        return True

    def _receive(self, channel: socket.socket, most: int) -> bytes:
        """Return what has come; nothing at the end of the process."""
        try:
            return channel.recv(most)
        except ConnectionError:
            return b""

    def _read(self, size: int) -> bytes | None:
        """Return so many bytes of the stand-in's; None at its end."""
        data = b""
        while len(data) < size:
            part = self._receive(self.calls, size - len(data))
            if not part:
                return None
            data += part
        return data

    # ---- launches
    def run_launch(self, module: int, name: str, call: PlacedCall) -> int:
        """Run a launch as the mode says; return CUDA's status."""
        self.record.launches += 1
        if self.mode == "skip":
            return 0
        try:
            run = KernelRun(self._find_module(module).choose(name), call, self.schedule)
            with limit_seconds(self.seconds):
                if self.mode == "sample":
                    return self._sample(run)
                return 0 if self.ledger.execute(run) else FAILED
        except CuirError as error:
            if error.diagnostics[0].code in UNJUDGED:
                self.refused = error.diagnostics[0].message
                return FAILED
            self.ledger.enter(error.diagnostics, self.schedule)
            return FAILED
        except NotJudged as stop:
            self.refused = str(stop)
            return FAILED

    def _sample(self, run: KernelRun) -> int:
        """Run some CTAs of the first launch; note what they wrote."""
        meet = (i.op.partition(".")[0] in ORDERED and ".shared" not in i.op for i, _ in run.program.instructions)
        if self.record.launches > 1 or any(meet):
            self.record.sampled = 0.0
            return 0
        cluster = int(np.prod(run.launch.cluster))
        firsts = {int(x) // cluster * cluster for x in np.linspace(0, run.ctas - 1, SAMPLED)}
        parts = [range(first, min(first + cluster, run.ctas)) for first in sorted(firsts)]
        try:
            run.execute_some(parts)
        except CuirError:
            if not run.findings.diagnostics:
                raise
        self.ledger.enter((*run.findings.diagnostics, *run.findings.warnings), self.schedule)
        self.record.sampled = sum(map(len, parts)) / run.ctas
        for a in run.allocations:
            if a.host is not None and a.start + a.size <= self.capacity:
                self.written[a.start : a.start + a.size] |= run.find_written(a).astype(np.uint8)
        return 0
