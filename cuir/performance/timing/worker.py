"""A supervised process for GPU work, so that a kernel that hangs or faults costs one request.

Requests and answers are JSON lines over pipes. The handlers of requests are functions given to `serve`.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, TextIO

from ...text.diagnostics import CuirError

Handler = Callable[[Any], Mapping[str, object]]
Tell = Callable[[str, float], None]  # the step that begins (empty: none that may hang), and its limit in seconds
TellingHandler = Callable[[Any, Tell], Mapping[str, object]]


class WorkerLost(Exception):
    """Raised if the worker gave no answer: it hung (and was killed) or ended.

    `status` is "hangs" or "fault", `doing` the last step that it announced.
    """

    def __init__(self, status: str, why: str, doing: str = ""):
        super().__init__(why)
        self.status, self.doing = status, doing


class Worker:
    """The requesting side.

    The process starts with the first request, and again after one that was lost.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str] | None = None):
        """Set the command, and `env` as additional variables of the environment."""
        self.command, self.env = list(command), {**os.environ, **(env or {})}
        self.process: subprocess.Popen[bytes] | None = None
        self.doing = ""
        self.errors: IO[bytes] | None = None
        self.buffer = b""

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, request: Mapping[str, object], seconds: float) -> dict[str, Any]:
        """Return the answer to a request.

        A handler that announces its steps sets the limit for each of them.

        Raises: WorkerLost after `seconds` or when the process ends, CuirError for a request that is wrong.
        """
        process, self.doing = self._ensure_running(), ""
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise self._make_loss() from None
        answer: dict[str, Any] = json.loads(self._read_line(seconds))
        while "doing" in answer:
            self.doing = answer["doing"]
            answer = json.loads(self._read_line(answer["seconds"]))
        if "diagnostic" in answer:
            d = answer["diagnostic"]
            raise CuirError.of(d["code"], d["message"], hint=d["hint"])
        return answer

    def close(self) -> None:
        """Kill the process and close its pipes."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)  # the command may be a tool around the process
            self.process.wait()
            for pipe in (self.process.stdin, self.process.stdout, self.errors):
                if pipe is not None:
                    pipe.close()
        self.process, self.buffer = None, b""

    def finish(self, seconds: float) -> None:
        """Let the process end, so that a tool around it can write its report; kill it after `seconds`."""
        if self.process is not None and self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError, subprocess.TimeoutExpired):
                self.process.stdin.close()
                self.process.wait(seconds)
        self.close()

    def _ensure_running(self) -> subprocess.Popen[bytes]:
        if self.process is None:
            self.errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, env=self.env, start_new_session=True
            )
        return self.process

    def _read_line(self, seconds: float) -> bytes:
        assert self.process is not None and self.process.stdout is not None
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while b"\n" not in self.buffer:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    self.close()
                    raise WorkerLost("hangs", f"no answer within {seconds:.0f} s", self.doing)
                chunk = os.read(self.process.stdout.fileno(), 1 << 16)
                if not chunk:
                    raise self._make_loss()
                self.buffer += chunk
        line, _, self.buffer = self.buffer.partition(b"\n")
        return line

    def _make_loss(self) -> WorkerLost:
        assert self.process is not None and self.errors is not None
        code = self.process.wait()
        self.errors.seek(0)
        output = _find_last_line(self.errors.read().decode(errors="replace"), raised=code == 1)
        self.close()
        return WorkerLost("fault", f"the process ended with {code}: {output[:200] or 'it said nothing'}", self.doing)


def _find_last_line(output: str, raised: bool) -> str:
    """Return a worker's last line of output, or the error's line if one was raised.

    Errors of CUDA are followed by lines of advice.
    """
    _, trace, after = output.rpartition("Traceback (most recent call last):")
    lines = [line for line in after.splitlines() if line.strip()]
    errors = [line for line in lines if not line.startswith(" ")] if raised and trace else []
    return [*errors[:1], *lines[-1:], ""][0]


def _end_with_parent(parent: int) -> None:
    """End the process with its parent, killed or not.

    A hanging process does not notice that its input has ended, and would hold the device.
    """
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def serve(handlers: Mapping[str, Handler], requests: TextIO | None = None, telling: Mapping[str, TellingHandler] | None = None) -> int:
    """Answer requests, one JSON object a line, `{"do": NAME, ...}`, until the input ends.

    Handlers' output goes to stderr. `telling` are handlers of several steps that may hang, each of which they announce.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()

    def say(line: Mapping[str, object]) -> None:
        answers.write(json.dumps(line) + "\n")
        answers.flush()

    def tell(doing: str, seconds: float) -> None:
        say({"doing": doing, "seconds": seconds})

    for line in requests or sys.stdin:
        request = json.loads(line)
        do = request["do"]
        try:
            answer = telling[do](request, tell) if telling and do in telling else handlers[do](request)
        except CuirError as error:
            d = error.diagnostics[0]
            answer = {"diagnostic": {"code": d.code, "message": d.message, "hint": d.hint}}
        say(answer)
    return 0
