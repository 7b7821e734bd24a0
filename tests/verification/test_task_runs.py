"""Runs of a verification as tasks: what they recorded, jobs that are left to the caller, errors of the place."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuir.campaigns.journal import Journal, JournalKind
from cuir.campaigns.tasks import Json, Result, Task, make_task
from cuir.interp.interpreted_launch import Entered, LoopCounts
from cuir.text.diagnostics import CuirError
from cuir.verification.task_runs import PlaceError, TaskPlan, TaskRuns, read_state, split_jobs, write_state
from tests.campaigns.calls import Shuffled

COUNTS = st.builds(LoopCounts, st.integers(-1, 3), st.integers(-1, 9), st.integers(0, 99), st.sets(st.integers(0, 9), max_size=3))
STATES = st.tuples(
    st.lists(st.integers(0, 3), max_size=4),
    st.lists(st.builds(Entered, st.sets(st.integers(0, 9)), st.dictionaries(st.integers(0, 9), COUNTS, max_size=3)), max_size=2),
)
KIND = JournalKind("U122", "a test", "nothing")


@given(STATES)
def test_what_runs_recorded_survives_json(state: tuple[list[int], list[Entered]]) -> None:
    assert read_state(json.loads(json.dumps(write_state(state)))) == state


@given(st.integers(0, 30), st.integers(1, 7))
def test_groups_hold_each_job_once(count: int, most: int) -> None:
    groups = split_jobs(count, most)
    assert [job for g in groups for job in g] == list(range(count)) and all(0 < len(g) <= most for g in groups)


def run_jobs(phase: int, jobs: Sequence[int]) -> Json:
    """Results of jobs; the second one raised, and the first group of numbers was unsound."""
    if phase == 1 and jobs[0] == 0:
        return None
    return {"results": [None if job == 1 else 10 * phase + job for job in jobs], "state": [[phase, jobs[0]], []]}


class Merged:
    """Recorder that keeps what it merges."""

    def __init__(self) -> None:
        self.states: list[Any] = []

    def forget(self) -> None: ...

    def export(self) -> object:
        return ["own"]

    def merge(self, state: Any) -> None:
        self.states.append(state[0])


def do_nothing() -> None: ...


@pytest.mark.parametrize("order", [range(9), [4, 0, 3, 1, 2, 5]])
def test_results_stand_by_job_and_states_in_the_order_of_tasks(order: Sequence[int]) -> None:
    phases: list[list[Callable[[], Any]]] = [[do_nothing] * 3, [do_nothing] * 6]
    journal, shares = Journal(None, {}, KIND), list[tuple[int, int]]()
    plan = TaskPlan(lambda p, jobs: make_task(run_jobs, p, jobs), Shuffled(order), journal, lambda n, of: shares.append((n, of)))
    runs = TaskRuns(phases, recorder := Merged(), plan)
    assert runs.results(0) == [0, None, 2] and recorder.states == ["own", [0, 0], [0, 1], [0, 2]]
    runs.listing = ["listing"]
    assert runs.results(1) == [None] * 4 + [14, 15] and recorder.states[4:] == ["listing", [1, 4]]
    assert shares[0] == (0, 5) and shares[-1] == (5, 5) and len(journal.rows) == 5
    nothing = TaskPlan(plan.make, Shuffled([]), journal)
    assert TaskRuns(phases, Merged(), nothing).results(0) == [0, None, 2], "what the journal holds runs no more"


class Nowhere:
    """Executor of a place that does not answer."""

    def describe(self) -> str:
        return "nowhere"

    def run(self, tasks: Sequence[Task]) -> Generator[Result]:
        raise CuirError.of("U515", "nothing answers")
        yield


def test_an_error_of_the_place_is_none_of_the_kernel() -> None:
    plan = TaskPlan(lambda p, jobs: make_task(run_jobs, p, jobs), Nowhere(), Journal(None, {}, KIND))
    with pytest.raises(PlaceError, match="nothing answers") as caught:
        TaskRuns([[do_nothing]], Merged(), plan).results(0)
    assert caught.value.error.diagnostics[0].code == "U515"
