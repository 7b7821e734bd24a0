"""Tasks of `cuir verify`: jobs of its schedules and numbers, by a record of the command line that any process reads."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..campaigns.campaign import Executor
from ..campaigns.journal import Journal, JournalKind
from ..campaigns.tasks import Json, Task, make_task
from ..syntax.printer import show
from ..text.diagnostics import CuirError
from ..verification.request import Level, Request
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
    against = make_absolute(verified.against) if verified.against is not None else None
    portable = replace(verified, target=make_absolute(verified.target), against=against, origin=make_absolute(verified.origin))
    record = json.dumps(portable.as_json())
    journal = Journal(path, {"verify": verified.target, "content": content}, JOURNAL)

    def make(phase: int, jobs: Sequence[int]) -> Task:
        key = make_task(run_verification_jobs, settings, phase, list(jobs)).key  # paths are no part of it
        return Task(key, run_verification_jobs, (record, settings, phase, list(jobs)))

    return TaskPlan(make, executor, journal, progress)


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


@functools.lru_cache(maxsize=2)
def _open(record: str, content: str, seeded: int | None, budget: float) -> OpenedVerification:
    verified = Verified.from_json(json.loads(record))
    if find_content(verified) != content:
        raise CuirError.of("U515", f"the files of {verified.target} are others on this node", hint="each node needs the same files")
    level: Level = "full" if verified.level == "full" else "quick"
    specification = verified.specification
    request = Request(verified.program, specification, specification, level, lambda text: None, False, seeded)
    return OpenedVerification(request, verified.kernel, verified.consts, budget)


__all__ = ["make_plan", "run_verification_jobs"]
