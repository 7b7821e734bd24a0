"""Tasks of `cuir verify`: jobs of its schedules and numbers, and launches of --exhaustive.

A record of the command line names the program in any process.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

from ..campaigns.campaign import Executor, run_campaign
from ..campaigns.journal import Journal, JournalKind
from ..campaigns.tasks import Json, Task, make_task
from ..explore.explore import explore, read_exploration
from ..syntax.printer import show
from ..text.diagnostics import CuirError
from ..verification.exhaustive import Explored
from ..verification.request import Level, Request
from ..verification.spec_dispatch import make_small_launches, prepare_launch
from ..verification.stages import OpenedVerification
from ..verification.task_runs import TaskPlan
from .gpu_stage import Verified

JOURNAL = JournalKind("U122", "cuir verify", "the program", "--journal")


def make_plan(
    verified: Verified, seeded: int | None, budget: float, executor: Executor, path: Path | None, progress: Callable[[int, int], None]
) -> TaskPlan:
    """Return how the runs of a verification become tasks.

    path: of the journal. Raises CuirError U122, U108.
    """
    content = find_content(verified)
    settings: dict[str, Json] = {"content": content, "level": verified.level, "seeded": seeded, "budget": budget}
    record = _write_record(verified)
    journal = Journal(path, {"verify": verified.target, "content": content}, JOURNAL)

    def make(phase: int, jobs: Sequence[int]) -> Task:
        key = make_task(run_verification_jobs, settings, phase, list(jobs)).key  # paths are no part of it
        return Task(key, run_verification_jobs, (record, settings, phase, list(jobs)))

    return TaskPlan(make, executor, journal, progress)


class ExplorationWords(NamedTuple):
    """Extent of an exploration: tiles of a CTA, key blocks of a tile, and seconds of a launch."""

    tiles: int
    blocks: int
    seconds: float


def explore_in_tasks(
    verified: Verified, words: ExplorationWords, executor: Executor, path: Path | None, progress: Callable[[int, int], None]
) -> list[Explored]:
    """Explore small launches as `check_exhaustively` does, each as a task; a faulty one is explored here once more.

    path: of the journal. Raises CuirError as `explore` does, and U122, U108.
    """
    content, checked = find_content(verified), verified.checked
    launches = make_small_launches(checked, verified.specification, words.tiles, words.blocks)
    record, function = _write_record(verified), explore_launch_as_task
    keys = [make_task(function, content, words, number).key for number in range(len(launches))]
    tasks = [Task(key, function, (record, content, words, number)) for number, key in enumerate(keys)]
    journal = Journal(path, {"verify": verified.target, "content": content}, JOURNAL)
    explored: list[Explored] = []
    for (case, grid), result in zip(launches, run_campaign(tasks, executor, journal, progress), strict=True):
        if result.error is not None:
            raise result.error
        data = cast(Mapping[str, Any], result.value)
        if data["verdict"] == "faulty":  # its schedule and places are not in a journal
            arguments = prepare_launch(verified.program, checked, verified.specification, case).arguments()
            explored.append(Explored(case, grid, explore(checked, arguments, grid=grid, seconds=words.seconds)))
        else:
            explored.append(Explored(case, grid, read_exploration(data, checked)))
        if not explored[-1].result.ok:
            break
    return explored


def explore_launch_as_task(record: str, content: str, words: ExplorationWords, number: int) -> Json:
    """Explore a small launch, by its number. Raises CuirError U515 if the files are others here."""
    verified = _read_verified(record, content)
    program, checked, specification = verified.program, verified.checked, verified.specification
    case, grid = make_small_launches(checked, specification, words.tiles, words.blocks)[number]
    arguments = prepare_launch(program, checked, specification, case).arguments()
    return {**explore(checked, arguments, grid=grid, seconds=words.seconds).as_json(), "schedule": None}


def find_content(verified: Verified) -> str:
    """Return a hash of the program, the consts and the specification, whose file may change between two runs."""
    named = verified.against or verified.target
    file = Path(named.rpartition(":")[0] if ":" in named else named)
    specification = file.read_text(encoding="utf-8") if file.suffix == ".py" and file.is_file() else named
    parts = [show(verified.program), verified.kernel, dict(verified.plain), specification, list(verified.parameters)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def make_absolute(name: str) -> str:
    """Return a program or specification of the command line, its file with the whole path."""
    path, colon, function = name.partition(":")
    return f"{Path(path).resolve()}{colon}{function}" if Path(path).is_file() else name


def run_verification_jobs(record: str, settings: Mapping[str, Any], phase: int, jobs: Sequence[int]) -> Json:
    """Run some jobs of a verification. Raises CuirError U515 if the files are others here."""
    return _open(record, settings["content"], settings["seeded"], settings["budget"]).run(phase, jobs)


def _write_record(verified: Verified) -> str:
    """Return a record of what is verified, with whole paths."""
    against = make_absolute(verified.against) if verified.against is not None else None
    portable = replace(verified, target=make_absolute(verified.target), against=against, origin=make_absolute(verified.origin))
    return json.dumps(portable.as_json())


@functools.lru_cache(maxsize=2)
def _read_verified(record: str, content: str) -> Verified:
    verified = Verified.from_json(json.loads(record))
    if find_content(verified) != content:
        raise CuirError.of("U515", f"the files of {verified.target} are others on this node", hint="each node needs the same files")
    return verified


@functools.lru_cache(maxsize=2)
def _open(record: str, content: str, seeded: int | None, budget: float) -> OpenedVerification:
    verified = _read_verified(record, content)
    level: Level = "full" if verified.level == "full" else "quick"
    specification = verified.specification
    request = Request(verified.program, specification, specification, level, lambda text: None, False, seeded)
    return OpenedVerification(request, verified.kernel, verified.consts, budget)


__all__ = ["ExplorationWords", "explore_in_tasks", "explore_launch_as_task", "make_plan", "run_verification_jobs"]
