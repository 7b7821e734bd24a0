"""Judging of mutants by the stages of verification, in parallel and each within a time limit.

Results are a file of JSON lines, from which an interrupted run continues.
"""

from __future__ import annotations

import functools
import hashlib
import json
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from ..campaigns.campaign import Executor, run_tasks
from ..campaigns.journal import Journal, JournalKind
from ..campaigns.local_executor import LocalExecutor
from ..campaigns.tasks import Result, Task, describe_content
from ..checking.checked import Const
from ..checking.checker import check
from ..checking.const_defaults import consts_as_json
from ..spec.function_specification import AnySpecification
from ..syntax.nodes import Program
from ..syntax.parser import parse
from ..syntax.printer import show
from ..text.diagnostics import CuirError
from ..verification import verify
from .equivalent_mutants import Trial, why
from .kernel_content import list_content
from .mutants import Mutant

SAME = "the specialised kernel is the original: these consts do not take the branch, leave the barrier unused, or fold to the same"
EXPLORED = "every schedule"  # for mutants that all stages pass: cuir/explore
JOURNAL = JournalKind("U122", "cuir mutate", "kernel, program and consts")
VERDICTS = ("killed", "survived", "same result", "equivalent", "out of time", "crashed")


@dataclass(frozen=True)
class Judged:
    """The verdict on a mutant.

    verdict: one of VERDICTS. stage, code: of the refusal. reason: why it was refused, gives the same result, is
    equivalent, or crashed. seconds: of judging.
    """

    id: str
    fault: int
    operator: str
    place: tuple[int, int]
    what: str
    verdict: str
    stage: str
    code: str
    reason: str
    seconds: float
    diff: str

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Judged:
        """Read a record. Raises TypeError, KeyError or ValueError for anything else."""
        line, column = data["place"]
        judged = Judged(**{**data, "place": (int(line), int(column))})
        if judged.verdict not in VERDICTS:
            raise ValueError(judged.verdict)
        return judged


@dataclass(frozen=True)
class Job:
    """The settings of judging.

    load: returns the specification; it is called in every process, so it must be picklable.
    """

    load: Callable[[], AnySpecification]
    kernel: str | None
    consts: Mapping[str, Const]
    level: str = "quick"
    seconds: float = 60.0  # of processor time, for one mutant

    def head(self, program: Program, variant: str) -> dict[str, Any]:
        """Return what must be the same for a run to continue from a file."""
        consts = consts_as_json(self.consts)
        text = hashlib.sha256(show(program).encode()).hexdigest()[:16]
        return {"mutate": self.kernel, "program": text, "against": variant, "consts": consts, "level": self.level}


class _OutOfTime(BaseException):
    """Raised at the time limit; not an Exception, so that it is not mistaken for a fault of the program."""


@contextmanager
def _limit_time(seconds: float) -> Iterator[None]:
    """Interrupt the block after some seconds of processor time, so that verdicts do not depend on load.

    Only in a main thread, where signals arrive.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise _OutOfTime

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def judge(text: str, original: str, spec: AnySpecification, job: Job) -> tuple[str, str, str, str]:
    """Judge one mutant, given as text; return verdict, stage, code and reason.

    No error inside is raised: it is the verdict `crashed`.
    """
    try:
        with _limit_time(job.seconds):
            program = parse(text, "mutant.cuir")
            try:
                same = list_content(check(program, job.kernel, job.consts)) == list_content(check(parse(original), job.kernel, job.consts))
            except CuirError:
                same = False
            if same:
                return "equivalent", "", "", SAME
            report = verify(program, spec, job.kernel, job.consts, job.level, shrink=False, sooner=True)  # type: ignore[arg-type]
    except _OutOfTime:
        return "out of time", "", "", f"no verdict within {job.seconds:g} s"
    except CuirError as error:
        return "killed", "well-formed", error.diagnostics[0].code, error.diagnostics[0].message
    except Exception as error:  # a separate verdict: verification must refuse, not fail
        return "crashed", "", "", f"{type(error).__name__}: {error}".split("\n")[0]
    failed = next((s for s in report.stages if s.verdict == "failed"), None)
    if failed is None:
        return _judge_survivor(program, parse(original), spec, job)
    return "killed", failed.name, failed.diagnostics[0].code, failed.reason


def _judge_survivor(program: Program, original: Program, spec: AnySpecification, job: Job) -> tuple[str, str, str, str]:
    """Classify a mutant that no stage refuses.

    It is wrong under a schedule that was not tried, of the same result by an argument, or a survivor.
    """
    trial = Trial(original, program, spec, job.kernel, job.consts, job.level)
    try:
        with _limit_time(5 * job.seconds):
            fault = trial.explored.fault
            if fault is not None:
                return "killed", EXPLORED, fault.code, fault.message
            reason = why(trial)
    except _OutOfTime:
        reason = None
    except Exception as error:  # an argument that fails is an internal error
        return "crashed", "", "", f"{type(error).__name__}: {error}".split("\n")[0]
    return ("same result", "", "", reason) if reason else ("survived", "", "", "")


def judge_task(text: str, original: str, job: Job) -> tuple[str, str, str, str]:
    """Judge one mutant as a task; see `judge`."""
    return judge(text, original, _load(_Loader(job.load)), job)


class _Loader:
    """A function that returns a specification; equal ones, sent with several tasks, load it once."""

    def __init__(self, load: Callable[[], AnySpecification]):
        self.load = load
        try:
            self.name = json.dumps(describe_content(load))
        except TypeError:  # a function that no other process can import
            self.name = str(id(load))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Loader) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)


@functools.lru_cache(maxsize=4)
def _load(loader: _Loader) -> AnySpecification:
    return loader.load()


def run(
    program: Program,
    todo: Sequence[Mutant],
    job: Job,
    out: Path | None = None,
    executor: Executor = LocalExecutor(),
    progress: Callable[[int, int, Judged], None] = lambda count, total, result: None,
) -> list[Judged]:
    """Judge mutants of a program; return the results in their order.

    progress: called with the number done, the total, and the latest result. out: a journal, from which an interrupted
    run continues. executor: where mutants are judged.

    Raises:
        CuirError: the errors of verification, if it refuses the program itself; U122 for a file of another kind; U108.
    """
    original = show(program)
    spec = job.load()
    journal = Journal(out, job.head(program, spec.name), JOURNAL)
    judged_before = _read_rows(journal)
    if not journal.begun:  # else the run that began the file has verified the program
        report = verify(program, spec, job.kernel, job.consts, job.level)  # type: ignore[arg-type]
        if not report.ok:
            raise CuirError(report.diagnostics)
        journal.begin()
    by_id = {m.id: m for m in todo}
    judged = {m.id: judged_before[m.id] for m in todo if m.id in judged_before}

    def take(m: Mutant, verdict: Sequence[str], seconds: float) -> None:
        stage = (verdict[0], verdict[1], verdict[2], verdict[3])
        result = Judged(m.id, m.fault, m.operator, m.place, m.description, *stage, round(seconds, 3), m.diff(original))
        judged[m.id] = result
        journal.write(asdict(result))
        progress(len(judged), len(todo), result)

    def take_result(result: Result) -> None:
        m = by_id[result.key]
        if isinstance(result.error, CuirError):  # of the specification, which is the same for all
            raise result.error
        if result.error is not None:
            take(m, ("crashed", "", "", str(result.error)), result.seconds)
        else:
            take(m, result.value, result.seconds)  # type: ignore[arg-type]

    for number, m in enumerate(todo, 1):
        if m.id in judged_before:
            progress(number, len(todo), judged[m.id])
        elif m.equivalent:
            take(m, ("equivalent", "", "", m.equivalent), 0.0)
    remaining = [m for m in todo if m.id not in judged]
    run_tasks([Task(m.id, judge_task, (m.text, original, job)) for m in remaining], executor, take_result)
    journal.sort([m.id for m in todo])
    return [judged[m.id] for m in todo]


def _read_rows(journal: Journal) -> dict[str, Judged]:
    """Return the results in a journal, by id. Raises CuirError U122."""
    judged = {}
    for key, row in journal.rows.items():
        try:
            judged[key] = Judged.from_json(row)
        except (ValueError, TypeError, KeyError):
            raise journal.refuse(journal.lines[key], "no result of a mutant") from None
    return judged
