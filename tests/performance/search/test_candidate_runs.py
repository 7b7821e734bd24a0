"""Candidates in a process that may hang: what counts as a hang is a launch, not a cold start or a compiler that waits for a core."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from cuir.checking.checked import Const
from cuir.performance.search.candidate_runs import CHECK_SECONDS, TIME_SECONDS, LocalDevice, RemoteDevice
from cuir.performance.timing.worker import Worker
from cuir.syntax.types import F16

PROGRAM = """
import sys, time
from cuir.performance.timing.worker import serve

def answer(request, tell):
    time.sleep(request["compiles"])
    tell(request["do"], request["allowed"])
    time.sleep(request["consts"]["BM"])
    return {"status": "right", "why": "", "milliseconds": 1.5}

sys.exit(serve({}, telling={"check": answer, "time": answer}))
"""


@pytest.fixture
def worker() -> Iterator[Worker]:
    with Worker([sys.executable, "-c", PROGRAM]) as item:
        yield item


def test_a_slow_start_is_no_hang(worker: Worker) -> None:
    device = RemoteDevice(worker, {"compiles": 0.5, "allowed": 0.25})
    assert device.check({"T": F16, "BM": 0}) == ("right", "")
    assert device.time({"T": F16, "BM": 0}) == 1.5


def test_a_launch_without_an_answer_is_one(worker: Worker) -> None:
    device = RemoteDevice(worker, {"compiles": 0, "allowed": 0.25})
    status, why = device.check({"BM": 60})
    assert status == "hangs" and why.startswith("no answer within")
    assert math.isnan(device.time({"BM": 60}))
    assert device.check({"BM": 0}) == ("right", "")  # of a new process


class Case:
    """A problem whose expectation, launches and times go to a list of what happened."""

    def __init__(self, events: list[str]):
        self.events = events

    @property
    def expected(self) -> None:
        self.events.append("float64")

    def judge(self, launch: Any, consts: Mapping[str, Const]) -> str:
        self.events.append("launch")
        return ""

    def arguments(self, consts: Mapping[str, Const]) -> dict[str, Any]:
        self.events.append("arguments")
        return {}


def test_the_limit_begins_with_the_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []

    def tell(doing: str, seconds: float) -> None:
        events.append(f"{doing} {seconds:.0f}")

    device = LocalDevice.__new__(LocalDevice)
    device.cases = [Case(events), Case(events)]  # type: ignore[list-item]
    monkeypatch.setattr(LocalDevice, "launch", lambda self, consts, text="": events.append("compile"))
    monkeypatch.setattr("cuir.performance.search.candidate_runs.median_ms", lambda call: events.append("time") or 2.0)
    assert device.check({}, "", tell) == ("right", "") and device.time({}, "", tell) == 2.0
    assert events == [
        "compile",
        "float64",
        "float64",
        f"check {CHECK_SECONDS:.0f}",
        "launch",
        "launch",
        "compile",
        "arguments",
        f"time {TIME_SECONDS:.0f}",
        "time",
    ]
