"""Tasks: keys by content, results as JSON, errors with their cause."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuir.campaigns.tasks import TaskError, make_task, run_task
from cuir.text.diagnostics import CuirError
from tests.campaigns.calls import fail, square, work

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
)


@dataclass(frozen=True)
class Setting:
    level: str
    places: tuple[int, ...]


@given(VALUES, VALUES)
def test_keys_differ_with_content_alone(first: object, second: object) -> None:
    keys = [make_task(square, value).key for value in (first, second, json.loads(json.dumps(first)))]
    assert (keys[0] == keys[1]) == (json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)) and keys[0] == keys[2]


def test_a_key_names_function_arguments_and_what_they_hold() -> None:
    setting = Setting("quick", (1, 2))
    tasks = [
        make_task(square, 1),
        make_task(work, 1),
        make_task(work, 1, 2),
        make_task(square, setting),
        make_task(square, Setting("full", (1, 2))),
        make_task(square, partial(work, 1)),
        make_task(square, partial(work, 1, milliseconds=3)),
        make_task(square, work),
        make_task(square, Path("a")),
    ]
    assert len({t.key for t in tasks}) == len(tasks)
    assert make_task(square, Setting("quick", (1, 2))).key == tasks[3].key
    assert make_task(square, 1, gpus=1).key == tasks[0].key, "where it runs is no part of what it computes"


@pytest.mark.parametrize("value", [lambda: 1, object(), {1, 2}])
def test_what_no_process_can_import_makes_no_key(value: object) -> None:
    with pytest.raises(TypeError, match="no content"):
        make_task(square, value)


def test_a_result_is_json() -> None:
    assert run_task(make_task(square, 3)).value == {"x": 3, "square": 9}
    result = run_task(make_task(list, [(1, 2)]))
    assert result.value == [[1, 2]] and result.error is None and result.seconds >= 0
    assert isinstance(run_task(make_task(object)).error, TaskError)


def test_what_a_task_raises_is_its_result_with_the_cause() -> None:
    ours, other = run_task(make_task(fail, "cuir")), run_task(make_task(fail, "other"))
    assert isinstance(ours.error, CuirError) and ours.error.diagnostics[0].hint == "name another one"
    assert isinstance(other.error, TaskError) and str(other.error) == "tests.campaigns.calls:fail raised Unknown: lost"
    back = pickle.loads(pickle.dumps([ours, other]))
    assert [str(r.error) for r in back] == [str(ours.error), str(other.error)]
