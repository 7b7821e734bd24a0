"""Runs of cases in worker processes: a crash or a hang is that of one case."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
import traceback
import warnings
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection, wait
from typing import Any

PASS, WRONG, DIFFERS, REFUSED, CRASH, HANG = "pass", "wrong", "differs", "refused", "crash", "hang"
OF_KERNELS = ("R", "D")  # races and deadlocks that the interpreter finds: no refusal of a call, but a fault of the kernel
OUTCOMES = (PASS, REFUSED, WRONG, DIFFERS, CRASH, HANG)


@dataclass(frozen=True)
class Outcome:
    """How a case ended. code: of our error where it was refused, the exception's type where it crashed, which `place` says the last lines of. gradients: what
    the original wants of them."""

    name: str
    outcome: str
    code: str = ""
    message: str = ""
    place: str = ""
    seconds: float = 0.0
    file: str = ""
    theme: str = ""
    gradients: str = ""
    part: str = "forward"

    def row(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Setting:
    """Way in which cases run. part: "forward", without gradients, or "gradients", the rest."""

    backend: str = "interpret"
    verify: str = "quick"
    part: str = "forward"


def run_one(case: Any, setting: Setting) -> Outcome:
    """In this process. Whatever the case raises becomes its outcome."""
    import torch

    from tests.peer.judging import Differs, Wrong
    from tests.peer.trial import Trial, eager_reference, refusal

    torch.manual_seed(zlib.crc32(case.name.encode()))
    gradients = setting.part == "gradients"
    ended = Outcome(case.name, PASS, file=case.file, theme=case.theme, gradients=case.gradients, part=setting.part)
    start = time.monotonic()
    try:
        with warnings.catch_warnings(), torch.set_grad_enabled(gradients), eager_reference(gradients):
            warnings.simplefilter("ignore")
            case.run(Trial(setting.backend, setting.verify, gradients, bool(case.gradients)))
            if setting.backend == "native":
                torch.cuda.synchronize()
    except Wrong as error:
        ended = replace(ended, outcome=WRONG, message=short(error))
    except Differs as error:
        ended = replace(ended, outcome=DIFFERS, message=short(error))
    except Exception as error:
        ours = refusal(error)
        if ours is not None and not ours.diagnostics[0].code.startswith(OF_KERNELS):
            ended = replace(ended, outcome=REFUSED, code=ours.diagnostics[0].code, message=ours.diagnostics[0].message)
        else:
            ended = replace(
                ended,
                outcome=CRASH,
                code=ours.diagnostics[0].code if ours else type(error).__name__,
                message=short(error),
                place=find_place(error),
            )
    finally:
        torch._dynamo.reset()
    return replace(ended, seconds=round(time.monotonic() - start, 2))


def short(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


def find_place(error: BaseException) -> str:
    """The last lines of Python that an exception came through, for the reader of a table."""
    frames = traceback.extract_tb(error.__traceback__)[-2:]
    return " < ".join(f"{os.path.basename(f.filename)}:{f.lineno} {f.name}" for f in reversed(frames))


def work(pipe: Connection, load: Callable[[], dict[str, Any]], setting: Setting) -> None:
    """A worker: names come in, outcomes go out, until None comes in. What any case imports is imported before it says that it is ready."""
    import torch
    import torch._dynamo

    from tests.peer import trial  # noqa: F401

    torch.set_num_threads(1)
    if setting.backend == "native":
        torch._functorch.config.donated_buffer = False  # type: ignore[attr-defined]  # gradients are taken of one graph several times
        torch.set_float32_matmul_precision("high")  # as PyTorch's tests do; on a CPU eager float32 has no TF32 to be compared with
    cases = load()
    pipe.send(None)
    while (name := pipe.recv()) is not None:
        pipe.send(run_one(cases[name], setting))


IMPORTED = ("torch._dynamo", "tests.peer.trial", "tests.peer.cases")


def _context(setting: Setting) -> Any:
    """Return the way in which workers start.

    Without a GPU they are forks of a process that has imported what each would; CUDA's do not survive a fork.
    """
    if setting.backend == "native":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(IMPORTED))
    return context


class Worker:
    """A process, the case that it runs, and since when."""

    def __init__(self, load: Callable[[], dict[str, Any]], setting: Setting) -> None:
        context = _context(setting)
        self.pipe, child_end = context.Pipe()
        self.process = context.Process(target=work, args=(child_end, load, setting), daemon=True)
        self.process.start()
        child_end.close()
        self.name: str | None = None
        self.since = time.monotonic()
        self.ready = False

    def give(self, name: str) -> None:
        self.name, self.since = name, time.monotonic()
        with contextlib.suppress(OSError):  # it is dead, which is seen when its answer is asked for
            self.pipe.send(name)

    def dismiss(self) -> None:
        """Lets an idle process go."""
        if self.name is None and self.ready:
            with contextlib.suppress(OSError):
                self.pipe.send(None)

    def end(self) -> None:
        """Waits for one that was let go, and kills a busy one."""
        if self.name is None and self.ready:
            self.process.join(10)
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self.pipe.close()


def run(
    cases: Sequence[Any],
    load: Callable[[], dict[str, Any]],
    setting: Setting,
    *,
    workers: int = 2,
    limit: float = 60.0,
    start_limit: float = 300.0,
) -> Iterator[Outcome]:
    """Outcomes as they come. limit: seconds of one case, after which its process is killed and it counts as a hang; a death of the process is a crash.

    load: what gives the cases by name in another process. Raises RuntimeError if workers do not start.
    """
    remaining = deque(cases)
    by_name = {case.name: case for case in cases}
    crew = [Worker(load, setting) for _ in range(min(workers, len(remaining)))]
    try:
        while any(worker.name for worker in crew) or remaining:
            for worker in crew:
                if worker.ready and worker.name is None and remaining:
                    worker.give(remaining.popleft().name)
            wait([worker.pipe for worker in crew], timeout=0.5)
            ended_workers: list[Worker] = []
            for worker in crew:
                ended, alive = _look(worker, limit, start_limit)
                if ended is not None:
                    case = by_name[ended.name]
                    yield replace(ended, file=case.file, theme=case.theme, gradients=case.gradients, part=setting.part)
                if not alive:
                    worker.end()
                    ended_workers.append(worker)
            crew = [worker for worker in crew if worker not in ended_workers]
            crew += [Worker(load, setting) for _ in range(min(workers - len(crew), len(remaining)))]
    finally:
        for worker in crew:
            worker.dismiss()
        for worker in crew:
            worker.end()


def _look(worker: Worker, limit: float, start_limit: float) -> tuple[Outcome | None, bool]:
    """Return the outcome of a worker's case, if any, and whether the worker goes on."""
    seconds = round(time.monotonic() - worker.since, 2)
    try:
        if worker.pipe.poll():
            ended, name = worker.pipe.recv(), worker.name
            worker.name = None
            worker.ready = True
            return (ended if name is not None else None), True
    except (EOFError, ConnectionResetError):
        worker.process.join(5)
        if not worker.ready:
            raise RuntimeError(f"a worker died before its first case, with exit code {worker.process.exitcode}") from None
        if worker.name is None:
            return None, False
        died = Outcome(worker.name, CRASH, "death", f"the process ended with exit code {worker.process.exitcode}", seconds=seconds)
        return died, False
    if worker.name is None:
        if not worker.ready and seconds > start_limit:
            raise RuntimeError(f"a worker did not start in {start_limit:.0f} s")
        return None, True
    if seconds > limit:
        return Outcome(worker.name, HANG, "limit", f"not done after {limit:.0f} s", seconds=seconds), False
    return None, True
