"""Option `--gpu` of verify: problems run in a worker process, perhaps under compute-sanitizer.

Time limits and the loss of the process are handled here.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..attn.splicing.splice import transfer
from ..attn.verification.problems import Case, make_cases
from ..attn.verification.sizes import collect_mask_integers
from ..checking.checked import Checked, Const
from ..checking.checker import check, pick_kernel
from ..performance.search.space import from_plain, plain
from ..performance.timing.worker import Worker, WorkerLost
from ..spec.function_specification import AnySpecification
from ..spec.specification import Specification
from ..syntax.nodes import Program
from ..text.diagnostics import CuirError, Diagnostic, Note
from ..verification.on_gpu import TOOLS, make_diagnostics
from ..verification.report import Stage
from .command_inputs import (
    KernelWords,
    find_computed,
    find_corpus_consts,
    make_unspecified_error,
    read_kernel_consts,
    read_origin,
    read_program,
    read_specification,
    read_variant,
)

COMMAND = (sys.executable, "-m", "cuir.cli.worker_process")
LIMIT = 300.0  # seconds of one problem: the interpreter, the first time nvcc, and launches that take milliseconds
STUCK_LIMIT = 120.0  # nvcc, and a launch that takes seconds
SANITIZED_LIMIT, SANITIZED_CASES = 1200.0, 4  # a sanitizer slows a kernel down by some hundreds: the smallest problems


@dataclass(frozen=True)
class Verified:
    """Program to verify, named as the command line names it, so that another process finds the same.

    `smallest` limits the number of problems.
    """

    target: str
    against: str | None
    parameters: tuple[str, ...]
    origin: str
    kernel: str | None
    plain: Mapping[str, Any]  # consts
    level: str
    smallest: int | None = None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Verified:
        """Return the record from JSON data."""
        return cls(**{**data, "parameters": tuple(data["parameters"])})

    def as_json(self) -> dict[str, Any]:
        """Return the record as JSON data."""
        return asdict(self)

    @property
    def consts(self) -> dict[str, Const]:
        """Consts of the kernel."""
        return from_plain(self.plain)

    @functools.cached_property
    def specification(self) -> AnySpecification:
        """Specification of the program."""
        if self.against is None:
            return read_variant(self.target, self.parameters)
        return read_specification(self.against, self.parameters, pick_kernel(self.program, self.kernel))

    @property
    def mods(self) -> Specification:
        """Specification, where one of mods is needed. Raises CuirError U100 for a function."""
        if isinstance(self.specification, Specification):
            return self.specification
        raise CuirError.of(
            "U100",
            f"--gpu compares attention kernels with their variant, and `{self.specification.name}` is a function",
            hint="cuir run PROGRAM --on gpu launches it; without --gpu it is verified in the interpreter",
        )

    @functools.cached_property
    def program(self) -> Program:
        """The program; a variant is transferred."""
        return read_program(self.target) if self.against is not None else transfer(read_program(self.origin), self.mods).program

    @functools.cached_property
    def checked(self) -> Checked:
        """The checked kernel."""
        return check(self.program, self.kernel, self.consts)

    @functools.cached_property
    def cases(self) -> list[Case]:
        """Problems of the numbers stage."""
        BM, BN = (int(self.checked.consts.get(n, 128)) for n in ("BM", "BN"))  # type: ignore[arg-type]
        problems = make_cases(self.mods, BM, BN, collect_mask_integers(self.mods, self.program), self.level)
        size = {c: c.lengths.B * c.lengths.H * c.lengths.M * (c.lengths.N + 1) for c in problems}
        return problems if self.smallest is None else sorted(problems, key=size.__getitem__)[: self.smallest]


def read_verified(
    target: str, against: str | None, parameters: tuple[str, ...], origin: str, words: KernelWords, level: str, is_program: bool
) -> Verified:
    """Return the program and specification to verify that a command line names.

    A program of the corpus knows its kernel, its specification and its consts. Raises CuirError, U130 for another
    without a specification.
    """
    corpus_entry = find_computed(target, words.kernel) if is_program else None
    if not is_program:
        program = read_origin(origin, words)
        return Verified(target, against, parameters, program.name, words.kernel, plain(program.consts), level)
    picked = pick_kernel(read_program(target), words.kernel or (corpus_entry[0] if corpus_entry is not None else None))
    if corpus_entry is not None:
        against = against or corpus_entry[1].specification
    if against is None:
        raise make_unspecified_error(target)
    consts = read_kernel_consts(picked, words.dtype, words.head_dim, words.items, find_corpus_consts(target, picked))
    return Verified(target, against, parameters, origin, picked.name, plain(consts), level)


def find_sanitizer(tool: str) -> str:
    """Return the path of compute-sanitizer. Raises CuirError U100 for another tool, U507 if there is none."""
    if tool not in TOOLS:
        raise CuirError.of("U100", f"--sanitizer is {' or '.join(TOOLS)}, found `{tool}`")
    for home in (None, os.environ.get("CUDA_HOME"), "/usr/local/cuda"):
        path = shutil.which("compute-sanitizer", path=os.path.join(home, "bin") if home else None)
        if path:
            return path
    raise CuirError.of(
        "U507",
        f"--sanitizer {tool} needs compute-sanitizer, and none was found",
        hint="install a CUDA toolkit and put compute-sanitizer on the PATH, or name the toolkit in CUDA_HOME",
    )


def gpu_stage(
    verified: Verified,
    tool: str | None,
    tell: Callable[[str], None],
    *,
    command: Sequence[str] = COMMAND,
    sanitizer: str = "",
    limit: float | None = None,
) -> Stage:
    """Run every problem; stop at the first that fails.

    `tool` is memcheck or racecheck, run by `sanitizer`; `limit` are seconds of a problem.
    """
    under = f", under {tool}" if tool else ""
    stage = Stage("gpu", f"the compiled kernel against the interpreter{under}", "passed", "")
    begin = time.perf_counter()
    failures: tuple[Diagnostic, ...] = ()
    if tool is not None:
        verified = replace(verified, smallest=SANITIZED_CASES)
    limit = limit if limit is not None else SANITIZED_LIMIT if tool else LIMIT
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "sanitizer.txt"
        # without torch's pools each tensor is an allocation of its own, with bounds that memcheck knows
        env = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"} if tool else {}
        with Worker([*around(tool, sanitizer, log), *command], env) as worker:
            for number, case in enumerate(verified.cases):
                tell(f"gpu: {number} of {len(verified.cases)}, {case.name}{under}")
                try:
                    stage.rows.append(worker.ask({"do": "compare", "job": verified.as_json(), "case": number}, limit))
                except CuirError as error:
                    failures = tuple(d if d.span else replace(d, span=verified.checked.origin.span) for d in error.diagnostics)
                except WorkerLost as lost:
                    tell(f"gpu: {case.name} was lost; looking for the wait that does not end")
                    notes = _waiting(worker, verified, number) if lost.status == "hangs" and tool is None else ()
                    failures = (describe_lost_worker(verified.checked, lost, case, tool, notes),)
                if failures:
                    break
            worker.finish(60.0)
        if tool is not None:
            failures = (*_reports(log, verified), *failures)
    if failures:
        stage.verdict, stage.reason, stage.diagnostics = "failed", failures[0].message, failures
    else:
        worst = max((row["from the interpreter"] for row in stage.rows), default=0.0)
        stage.reason = f"{len(stage.rows)} problems; at most {worst:.1e} from the interpreter, launches alike bit for bit" + (
            f"; no report of {tool}" if tool else ""
        )
    stage.seconds = time.perf_counter() - begin
    return stage


def around(tool: str | None, sanitizer: str, log: Path) -> list[str]:
    """Return the command that runs another one under the sanitizer."""
    if tool is None:
        return []
    # cuda-bindings looks up functions that the driver lacks
    quiet = ["--report-api-errors", "no"] if tool == "memcheck" else []
    return [sanitizer, "--tool", tool, "--log-file", str(log), *quiet]


def _waiting(worker: Worker, verified: Verified, case: int) -> tuple[Note, ...]:
    """Return where the warps of a kernel that hangs wait, from a build whose waits give up.

    () if that build does not hang or is lost, too.
    """
    from ..lowering import lower
    from ..runtime.watchdog import Stuck, describe_stuck

    try:
        answer = worker.ask({"do": "stuck", "job": verified.as_json(), "case": case}, STUCK_LIMIT)
    except (CuirError, WorkerLost):
        return ()
    checked = verified.checked
    queue = checked.tiles.count.span if checked.tiles is not None else checked.origin.span
    stuck = [Stuck(**s) for s in answer["stuck"]]
    return tuple(Note(words, span) for words, span in describe_stuck(stuck, lower(checked).line_map, queue))


def describe_lost_worker(checked: Checked, lost: WorkerLost, case: Case, tool: str | None, notes: tuple[Note, ...] = ()) -> Diagnostic:
    """Return the diagnostic of a kernel that hung, or took the process with it.

    `notes` say where its warps wait; the first is the place of the error.
    """
    problem = f"hangs on the GPU, or is very slow: {lost}" if lost.status == "hangs" else f"took its process with it: {lost}"
    hint = (
        None
        if tool
        else "cuir verify ... --gpu --sanitizer memcheck names the line of an illegal access; cuir run --exhaustive finds a wait that never ends"
    )
    place = notes[0].span if notes else checked.origin.span
    return Diagnostic("V403", f"`{checked.name}` {problem} ({case})", place, notes, hint)


def _reports(log: Path, verified: Verified) -> tuple[Diagnostic, ...]:
    """Return the reports of the sanitizer, in lines of the program.

    The kernel is lowered again: the same program gives the same text.
    """
    from ..lowering import lower
    from ..runtime.machine_code import read_lines_of_cubin
    from ..runtime.nvcc import compile_cuda

    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    if not text.strip():
        return (
            Diagnostic(
                "U507",
                "compute-sanitizer wrote nothing: it did not start, or was killed",
                None,
                (),
                "run it by hand around `cuir run --on gpu`",
            ),
        )
    cuda = lower(verified.checked)
    plain = make_diagnostics(text, cuda.line_map, None, verified.checked.origin.span)
    if not plain:
        return ()
    return make_diagnostics(text, cuda.line_map, read_lines_of_cubin(compile_cuda(cuda).cubin), verified.checked.origin.span)
