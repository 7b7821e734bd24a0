"""The options `--on` and `--jobs`: processes of this machine, or a cluster whose link the view tells."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cuir.campaigns.local_executor import LocalExecutor
from cuir.campaigns.ray_executor import RayExecutor
from cuir.cli.live_view import LiveView
from cuir.cli.task_places import TaskWords, use_executor


class Log(LiveView):
    """View that keeps what is told."""

    def __init__(self) -> None:
        super().__init__("", quiet=True)
        self.lines: list[str] = []

    def log(self, text: str) -> None:
        self.lines.append(text)


def test_processes_are_one_a_core_unless_counted() -> None:
    for jobs, expected in ((None, os.cpu_count() or 1), (3, 3)):
        with use_executor("local", jobs, log := Log()) as executor:
            assert executor == LocalExecutor(expected) and not log.lines


def test_any_option_asks_for_tasks() -> None:
    asked = [TaskWords("ray"), TaskWords(jobs=2), TaskWords(jobs=None), TaskWords(journal=Path("a"))]
    assert not TaskWords().wanted and all(words.wanted for words in asked)


def test_a_cluster_is_joined_and_left(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(RayExecutor, "connect", lambda self: calls.append(self.address))
    with use_executor("ray:head:6379", None, log := Log()):
        assert calls == ["head:6379"] and log.lines == ["Ray at head:6379"]


def test_another_place_is_a_fault_of_the_command_line(cuir: Callable) -> None:
    output = cuir("mutate", "gemm", "--limit", "1", "--on", "slurm")
    assert output.code == 2 and "U100" in output.err and "--on ray" in output.err
