"""Tasks of a campaign: calls that any process of the package can make, at any time, with the same result."""

from __future__ import annotations

import functools
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TypeAlias

from ..text.diagnostics import CuirError

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
_KEY_LENGTH = 16  # hexadecimal digits: 64 bits, so that a million tasks do not collide


@dataclass(frozen=True)
class Task:
    """A call of a function of a module, whose result is JSON.

    Attributes:
        key: Hash of what the task computes; results are kept and found by it.
        function: Function that any process can import.
        arguments: Its arguments, which must be picklable.
        gpus: Number of GPUs that it needs.
    """

    key: str
    function: Callable[..., Json]
    arguments: tuple[object, ...]
    gpus: int = 0


@dataclass(frozen=True)
class Result:
    """Result of a task.

    Attributes:
        key: Key of the task.
        value: What its function returned, as JSON.
        error: What it raised instead; a CuirError keeps its diagnostics.
        seconds: Processor time that it took.
    """

    key: str
    value: Json = None
    error: Exception | None = None
    seconds: float = 0.0


class TaskError(Exception):
    """Error of a task that is not one of the user's, or that no process could finish."""


def make_task(function: Callable[..., Json], *arguments: object, gpus: int = 0) -> Task:
    """Return a task whose key is the hash of its function's name and its arguments.

    Raises TypeError for an argument without describable content, such as a lambda.
    """
    text = json.dumps([describe_content(function), describe_content(arguments)], sort_keys=True)
    return Task(hashlib.sha256(text.encode()).hexdigest()[:_KEY_LENGTH], function, arguments, gpus)


def describe_content(value: object) -> Json:
    """Return the content of an argument as JSON: functions by module and name, dataclasses by their fields.

    Raises TypeError.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(k): describe_content(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [describe_content(v) for v in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, functools.partial):
        return {"call": describe_content(value.func), "with": [describe_content(value.args), describe_content(value.keywords)]}
    if is_dataclass(value) and not isinstance(value, type):
        content = {f.name: describe_content(getattr(value, f.name)) for f in fields(value)}
        return {"type": type(value).__qualname__, **content}
    name = getattr(value, "__qualname__", "<")
    if callable(value) and "<" not in name:
        return f"{value.__module__}:{name}"
    raise TypeError(f"{value!r} has no content that names it in another process")


def run_task(task: Task) -> Result:
    """Call the function of a task in this process; what it raises is its result."""
    begin = time.process_time()
    try:
        value = json.loads(json.dumps(task.function(*task.arguments)))  # what a journal gives back
    except CuirError as error:
        return Result(task.key, error=error, seconds=time.process_time() - begin)
    except Exception as error:  # of any class, which this process may not be able to unpickle
        cause = f"{task.function.__module__}:{task.function.__qualname__} raised {type(error).__name__}: {error}"
        return Result(task.key, error=TaskError(cause), seconds=time.process_time() - begin)
    return Result(task.key, value, seconds=time.process_time() - begin)


__all__ = ["Json", "Result", "Task", "TaskError", "describe_content", "make_task", "run_task"]
