"""The process that may hang: answers, hangs, ends, is told wrongly; the next request is answered by a new one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cuir import CuirError
from cuir.performance.timing.worker import Worker, WorkerLost

PROGRAM = """
import os, sys, time
from cuir.text.diagnostics import CuirError
from cuir.performance.timing.worker import serve

def hang(request):
    time.sleep(60)

def end(request):
    print("the last words", file=sys.stderr, flush=True)
    os._exit(7)

def fail(request):
    raise RuntimeError("CUDA error: an illegal memory access\\nFor debugging consider another day")

def steps(request, tell):
    tell("the first", 60)
    time.sleep(1)
    tell("the second", request["seconds"])
    time.sleep(request["sleep"])
    return {"done": True}

def wrong(request):
    raise CuirError.of("U116", "no such shape", hint="another")

def add(request):
    print("noise on stdout")
    return {"sum": request["a"] + request["b"], "pid": os.getpid()}

sys.exit(serve({"hang": hang, "end": end, "fail": fail, "wrong": wrong, "add": add}, telling={"steps": steps}))
"""


@pytest.fixture
def worker() -> Iterator[Worker]:
    with Worker([sys.executable, "-c", PROGRAM]) as item:
        yield item


def test_one_process_answers_many_requests(worker: Worker) -> None:
    answers = [worker.ask({"do": "add", "a": 1, "b": b}, 60) for b in range(3)]
    assert [a["sum"] for a in answers] == [1, 2, 3] and len({a["pid"] for a in answers}) == 1


def test_what_hangs_is_killed_and_the_next_is_answered(worker: Worker) -> None:
    first = worker.ask({"do": "add", "a": 1, "b": 1}, 60)
    with pytest.raises(WorkerLost) as lost:
        worker.ask({"do": "hang"}, 0.3)
    assert lost.value.status == "hangs"
    assert worker.ask({"do": "add", "a": 1, "b": 1}, 60)["pid"] != first["pid"]


def test_what_ends_says_its_last_words(worker: Worker) -> None:
    with pytest.raises(WorkerLost, match=r"ended with 7: the last words") as lost:
        worker.ask({"do": "end"}, 60)
    assert lost.value.status == "fault"
    assert worker.ask({"do": "add", "a": 2, "b": 2}, 60)["sum"] == 4


def test_an_error_is_told_without_what_follows_it(worker: Worker) -> None:
    with pytest.raises(WorkerLost, match=r"ended with 1: RuntimeError: CUDA error: an illegal memory access$"):
        worker.ask({"do": "fail"}, 60)


def test_a_lost_worker_says_what_it_had_begun(worker: Worker) -> None:
    worker.ask({"do": "add", "a": 1, "b": 1}, 60)
    assert worker.ask({"do": "steps", "seconds": 60, "sleep": 0}, 0.9) == {"done": True}, "each step has a limit of its own"
    with pytest.raises(WorkerLost, match="within 1 s") as lost:
        worker.ask({"do": "steps", "seconds": 1.0, "sleep": 60}, 30)
    assert (lost.value.status, lost.value.doing) == ("hangs", "the second")
    with pytest.raises(WorkerLost) as lost:
        worker.ask({"do": "end"}, 60)
    assert lost.value.doing == "", "what an earlier request had begun is not at fault"


def test_a_wrong_request_is_an_error_of_the_call(worker: Worker) -> None:
    with pytest.raises(CuirError, match="no such shape") as error:
        worker.ask({"do": "wrong"}, 60)
    assert error.value.diagnostics[0].hint == "another"


def test_what_hangs_ends_with_a_process_that_is_killed() -> None:
    """It reads no end of its input, and a kernel that hangs would hold the device."""
    asking = f"""
import os
import subprocess
import sys
import time
from cuir.performance.timing.worker import Worker
worker = Worker([sys.executable, "-c", {PROGRAM!r}])
print(worker.ask({{"do": "add", "a": 1, "b": 1}}, 60)["pid"], flush=True)
worker.ask({{"do": "hang"}}, 60)
"""
    with subprocess.Popen([sys.executable, "-c", asking], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        os.kill(pid, 0)
        process.kill()
    deadline = time.monotonic() + 30
    while _lives(pid):
        assert time.monotonic() < deadline, "the worker outlives who asked it"
        time.sleep(0.1)


def _lives(pid: int) -> bool:
    """A process that has ended and that nobody has waited for is none."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
