"""Campaigns: the results of the tasks in their order, whatever the order in which they finish."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuir.campaigns.campaign import run_tasks
from cuir.campaigns.journal import Journal, JournalKind
from cuir.campaigns.tasks import Result, Task, make_task
from tests.campaigns.calls import Shuffled, make_squares, square

COUNT = 6
KIND = JournalKind("U122", "a test", "nothing")


def run_kept(tasks: list[Task], executor: Shuffled, path: Path) -> str:
    """Run tasks with a journal, as a command does; return what the command prints."""
    journal = Journal(path, {"head": 1}, KIND)
    todo = [t for t in tasks if t.key not in journal.rows]

    def take(result: Result) -> None:
        journal.write({"id": result.key, "result": result.value})

    run_tasks(todo, executor, take)
    journal.sort([t.key for t in tasks])
    return json.dumps([journal.rows[t.key] for t in tasks])


@given(st.permutations(range(COUNT)), st.permutations(range(COUNT)), st.integers(0, COUNT))
def test_order_and_interruption_change_no_byte(
    tmp_path_factory: pytest.TempPathFactory, order: list[int], later: list[int], stop: int
) -> None:
    folder, tasks = tmp_path_factory.mktemp("orders"), make_squares(COUNT)
    expected = run_kept(tasks, Shuffled(range(COUNT)), folder / "plain")
    if stop < COUNT:
        with pytest.raises(KeyboardInterrupt):
            run_kept(tasks, Shuffled(order, stop), folder / "other")
    again = Shuffled(later if stop < COUNT else order)
    assert run_kept(tasks, again, folder / "other") == expected
    assert len(again.ran) == COUNT - stop % COUNT, "what the journal holds runs no more"
    assert (folder / "other").read_bytes() == (folder / "plain").read_bytes()


def test_a_result_that_comes_twice_counts_once() -> None:
    taken: list[Result] = []
    results = run_tasks(make_squares(3), Shuffled([2, 0, 2, 1, 0]), taken.append)
    assert [r.value for r in results] == [square(x) for x in range(3)] and len(taken) == 3


def test_equal_tasks_run_once() -> None:
    executor = Shuffled(range(9))
    task = make_task(square, 2)
    results = run_tasks([task, make_task(square, 3), make_task(square, 2)], executor)
    assert len(executor.ran) == 2 and results[0] == results[2] and results[1].value == square(3)
