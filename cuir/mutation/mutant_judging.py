"""Judging of mutants by the stages of verification, in parallel and each within a time limit.

Results are a file of JSON lines, from which an interrupted run continues.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from multiprocessing import active_children, get_context
from pathlib import Path
from types import FrameType
from typing import Any

from ..checking.checked import Checked, Const
from ..checking.checker import check
from ..checking.const_defaults import consts_as_json
from ..ops.expressions import traits
from ..spec.function_specification import AnySpecification
from ..syntax.nodes import Assign, Binary, For, Keyword, Literal, Name, Node, Program, Stmt
from ..syntax.parser import parse
from ..syntax.printer import show
from ..syntax.walk import names_read, rewrite, walk
from ..text.diagnostics import CuirError
from ..text.jsontext import append_line, has_content
from ..verification import verify
from .equivalent_mutants import Trial, why
from .mutants import Mutant

SAME = "the specialised kernel is the original: these consts do not take the branch, leave the barrier unused, or fold to the same"
EXPLORED = "every schedule"  # for mutants that all stages pass: cuir/explore
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
                same = _list_content(check(program, job.kernel, job.consts)) == _list_content(
                    check(parse(original), job.kernel, job.consts)
                )
            except CuirError:
                same = False
            if same:
                return "equivalent", "", "", SAME
            report = verify(program, spec, job.kernel, job.consts, job.level, shrink=False)  # type: ignore[arg-type]
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


def _list_content(checked: Checked) -> tuple[object, ...]:
    """Return the content of a specialised kernel as a comparable tuple.

    Without the text that it came from, barriers that nothing uses, and `cluster=` where a cluster is one CTA.
    """
    alone = checked.cluster == 1
    roles = tuple(
        (r.name, r.workers, r.threads, r.registers, r.index, _normalise(r.body, alone, _find_ones(r.body)), r.warpgroup, r.warp)
        for r in checked.roles
    )
    used = {name for r in checked.roles for stmt in r.body for name in names_read(stmt)}
    barriers = {name: b for name, b in checked.barriers.items() if name in used}
    return checked.cluster, dict(checked.shared), barriers, checked.tiles, checked.declarations, roles, checked.scalars, checked.tensors


def _find_ones(body: tuple[Stmt, ...]) -> set[str]:
    """Return the names that every statement which binds them binds to 1.0."""
    only_ones: dict[str, bool] = {}
    for node in (n for stmt in body for n in walk(stmt)):
        if isinstance(node, For):
            only_ones[node.target] = False
        elif isinstance(node, Assign):
            only_ones |= {name: only_ones.get(name, True) and node.value == Literal(1.0) for name in node.targets}
    return {name for name, is_one in only_ones.items() if is_one}


def _normalise(body: tuple[Stmt, ...], alone: bool, names: Set[str]) -> tuple[Stmt, ...]:
    """Normalise statements: x / 1.0 becomes x * 1.0, which are both x exactly.

    Without the keyword `cluster` if a cluster is one CTA: it has no meaning there.
    """

    def normalise(node: Node) -> Node | tuple[Node, ...]:
        if isinstance(node, Keyword) and node.name == "cluster" and alone:
            return ()
        if isinstance(node, Binary) and traits(node).divisor and traits(node).factors:
            divisor = node.right
            return replace(node, op="*") if divisor == Literal(1.0) or (isinstance(divisor, Name) and divisor.id in names) else node
        return node

    return tuple(rewrite(stmt, normalise) for stmt in body)


_state: tuple[Job, str, AnySpecification] | None = None


def _begin(job: Job, original: str) -> None:
    """Set up a process of the pool."""
    global _state
    import torch

    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(130))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    _state = job, original, job.load()


@contextmanager
def _block_interrupts() -> Iterator[None]:
    """Block SIGINT, also in processes that start meanwhile.

    They receive it when they are set up, and end then without a traceback of the imports they were in.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _judge_here(text: str) -> tuple[tuple[str, str, str, str], float]:
    assert _state is not None
    job, original, spec = _state
    begin = time.perf_counter()
    return judge(text, original, spec, job), time.perf_counter() - begin


def run(
    program: Program,
    todo: Sequence[Mutant],
    job: Job,
    out: Path | None = None,
    jobs: int = 1,
    progress: Callable[[int, int, Judged], None] = lambda count, total, result: None,
) -> list[Judged]:
    """Judge mutants of a program; return the results in their order.

    progress: called with the number done, the total, and the latest result. out: a file of JSON lines, a head and one
    for each mutant as it is judged; mutants that it holds already are not judged again. jobs: processes.

    Raises:
        CuirError: the errors of verification, if it refuses the program itself; U122 for a file of another kind; U108.
    """
    original = show(program)
    spec = job.load()
    head, recorded = job.head(program, spec.name), dict[str, Judged]()
    if out is not None and has_content(out):  # the run that began the file has verified the program
        recorded = _read_results(out, head)
    else:
        report = verify(program, spec, job.kernel, job.consts, job.level)  # type: ignore[arg-type]
        if not report.ok:
            raise CuirError(report.diagnostics)
        if out is not None:
            _append_line(out, json.dumps(head))
    judged = {m.id: recorded[m.id] for m in todo if m.id in recorded}

    def take(m: Mutant, verdict: tuple[str, str, str, str], seconds: float) -> None:
        result = Judged(m.id, m.fault, m.operator, m.place, m.description, *verdict, round(seconds, 3), m.diff(original))
        judged[m.id] = result
        if out is not None:
            _append_line(out, json.dumps(asdict(result)))
        progress(len(judged), len(todo), result)

    remaining = []
    for m in todo:
        if m.id in judged:
            progress(len(judged), len(todo), judged[m.id])
        elif m.equivalent:
            take(m, ("equivalent", "", "", m.equivalent), 0.0)
        else:
            remaining.append(m)
    if jobs == 1:
        for m in remaining:
            begin = time.perf_counter()
            take(m, judge(m.text, original, spec, job), time.perf_counter() - begin)
    elif remaining:
        _judge_in_parallel(remaining, original, job, jobs, take)
    return [judged[m.id] for m in todo]


def _judge_in_parallel(
    remaining: Sequence[Mutant], original: str, job: Job, jobs: int, take: Callable[[Mutant, tuple[str, str, str, str], float], None]
) -> None:
    """Judge mutants in a pool of processes."""
    earlier_children = set(active_children())
    pool = ProcessPoolExecutor(min(jobs, len(remaining)), get_context("spawn"), _begin, (job, original))
    try:
        with _block_interrupts():
            waiting = {pool.submit(_judge_here, m.text): m for m in remaining}
        while waiting:
            completed, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in completed:
                take(waiting.pop(future), *future.result())
    except BaseException:  # do not wait for mutants in judgement, or for imports
        for process in set(active_children()) - earlier_children:
            process.terminate()
        raise
    finally:  # wait: a process that ends before the pool's thread would leak the semaphores of its queues
        pool.shutdown(wait=True, cancel_futures=True)


def _append_line(path: Path, line: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        append_line(path, line)
    except OSError as error:
        raise CuirError.of("U108", f"cannot write {path}: {error.strerror}", hint="name another file with --out") from None


def _read_results(path: Path, head: Mapping[str, Any]) -> dict[str, Judged]:
    """Read the results in a file, by id. Raises CuirError U122.

    Lines that an interruption cut short are omitted.
    """
    hint = "name another file with --out, or remove it"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise CuirError.of("U122", f"{path} cannot be read: {error.strerror}", hint=hint) from None
    except ValueError:
        lines = []
    try:
        first = json.loads(lines[0]) if lines else None
    except ValueError:
        first = None
    if not isinstance(first, dict) or first.keys() != head.keys():
        raise CuirError.of(
            "U122", f"{path} holds no results of `cuir mutate`: they begin with a line that names kernel, program and consts", hint=hint
        )
    if differs := [k for k in head if first[k] != head[k]]:
        raise CuirError.of("U122", f"{path} holds results of another run: other {', '.join(differs)}", hint=hint)
    judged: dict[str, Judged] = {}
    for number, line in enumerate(lines[1:], 2):
        try:
            data = json.loads(line)
        except ValueError:  # cut short
            continue
        try:
            result = Judged.from_json(data)
        except (ValueError, TypeError, KeyError):
            raise CuirError.of("U122", f"line {number} of {path} is no result of a mutant", hint=hint) from None
        judged[result.id] = result
    return judged
