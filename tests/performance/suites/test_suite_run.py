"""Compilations of contenders before the timing: processes, the cost of a failure, and the calls made."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from concurrent.futures import as_completed

import pytest
import torch

from cuir.cli.command_inputs import read_variant
from cuir.performance.suites.cell_benchmark import Cell
from cuir.performance.suites.suite_run import SHARE, answer_ahead, prime_peers, requests
from cuir.performance.suites.suites import cell
from cuir.performance.timing.problem import Shape
from cuir.performance.timing.worker import WorkerLost

CELLS = [cell("causal", "llama2-7b", 1024), cell("prefix_lm", "hd64", 2048)]


class Process:
    """Stands for a process; counts those that live."""

    alive: list[Process]
    answered: list[Mapping]

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        Process.alive.append(self)

    def ask(self, request: Mapping, seconds: float) -> Mapping:
        assert threading.get_ident() == self.thread, "one request at a time"
        time.sleep(0.005)
        Process.answered.append(request)
        if request.get("lost"):
            raise WorkerLost("hangs", "no answer within 180 s")
        return {"failed": request["failed"]} if "failed" in request else {}

    def close(self) -> None:
        Process.alive.remove(self)


@pytest.fixture(autouse=True)
def _processes() -> None:
    Process.alive, Process.answered = [], []


def test_all_requests_are_answered_and_no_process_is_left() -> None:
    work = [{"n": n} for n in range(20)] + [{"failed": "flex: no compiler"}, {"lost": True}]
    with answer_ahead(work, Process, 4) as pending:
        assert {f.result() for f in as_completed(pending)} == {"", "flex: no compiler", "no answer within 180 s"}
        assert 1 <= len(Process.alive) <= 4
    assert not Process.alive and len(Process.answered) == len(work)


def test_an_interruption_ends_the_processes() -> None:
    with pytest.raises(KeyboardInterrupt), answer_ahead([{"n": n} for n in range(1000)], Process, 3) as pending:
        pending[0].result()
        raise KeyboardInterrupt
    assert not Process.alive and len(Process.answered) < 1000


def test_nothing_to_compile_starts_nothing() -> None:
    with answer_ahead([], Process, 16) as pending:
        assert not pending
    assert not Process.alive


def test_only_what_compiles_is_asked_for() -> None:
    result = requests(CELLS, "bf16", ("cudnn", "flex", "fa2"), "there", ["A2"], 4)
    assert result[0] == {"do": "prime_reference", "reference": "there", "name": "A2"}
    assert [Cell.from_json(r) for r in result[1:]] == CELLS
    assert all(r["peers"] == ["flex"] and r["dtype"] == "bf16" and r["share"] == SHARE / 4 for r in result[1:])
    assert requests(CELLS, "f16", ("cudnn",), None, [], 4) == []


def test_each_peer_is_called_once_and_memory_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []

    def call(name: str, error: Exception | None) -> None:
        called.append(name)
        if error is not None:
            raise error

    def contenders(names: object, *_: object) -> dict:
        errors = {"compiled": torch.cuda.OutOfMemoryError("out of memory"), "flex": ValueError("no kernel\nfor this")}
        return {n: (lambda n=n: call(n, errors.get(n))) for n in ("compiled", "flex", "other")}

    monkeypatch.setattr("cuir.performance.suites.suite_run.contenders", contenders)
    item = Cell("causal", {}, "small", Shape(1, 2, 1, 64, 64, 16))
    assert prime_peers(item, read_variant("causal", ()), torch.float16, ("flex",), 0.1, "cpu") == "flex: no kernel"
    assert called == ["compiled", "flex", "other"]
