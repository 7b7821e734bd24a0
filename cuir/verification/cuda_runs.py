"""Check of CUDA kernels in the machine for PTX: their launches under several schedules, and what they wrote.

`CudaCheck` holds what was found so far, so that an interruption keeps it.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from ..campaigns.tasks import Json
from ..ptx import machine as machine  # registers what instructions do
from ..ptx.launch.kernel_launch import KernelCall, KernelRun, LoadedModule
from ..ptx.launch.kernel_parameters import KernelParameter, list_parameters
from ..ptx.launch.structs import list_inner_tensors
from ..ptx.launch.unrun_lines import UnrunLines, list_unrun_lines
from ..ptx.machine.program import Program
from ..text.diagnostics import CuirError, Diagnostic, Note, read_diagnostic, write_diagnostic
from ..text.phrases import ProgressMessage
from ..text.source import function_span
from .cuda_numbers import ComparedOutput, OutputJudge, Value, collect_places, collect_tensors, copy_values
from .resource_limits import LONGEST_SCHEDULE
from .side_processes import SideProcesses

FIXED = ("together", "first", "last")  # schedules that are no draw
SEED = 0  # of what a launch draws, the same under each schedule
Progress = Callable[[str], None]


def list_schedules(count: int) -> tuple[str, ...]:
    """Return so many schedules: all warps together, the first warp first, the last warp first, then seeded ones."""
    return (*FIXED, *(f"random:{n}" for n in range(count - len(FIXED))))[:count]


def collect_calls(made: object, function: Callable[[], object]) -> list[KernelCall]:
    """Return the launches that a function made: one or several. Raises CuirError O120 for anything else."""
    items = list(made) if isinstance(made, (list, tuple)) else [made]
    calls = [c for c in items if isinstance(c, KernelCall)]
    if calls and len(calls) == len(items):
        return calls
    found = type(made).__name__ if not isinstance(made, (list, tuple)) else f"a {type(made).__name__} of other things"
    message = f"the function `{getattr(function, '__name__', 'launch')}` returns a KernelCall, or a list of them, found {found}"
    raise CuirError.of("O120", message, function_span(function), "return KernelCall(grid, block, *arguments)")


@dataclass(frozen=True)
class CudaReport:
    """Record of the runs of a kernel, with their findings.

    Attributes:
        kernels: Names of the kernels.
        schedules: Those under which all launches ran.
        unrun: Lines of the kernels that never ran, which are not judged.
        compared: Outputs beside float64, the worst of all schedules.
        varying: Tensors whose bits depend on the schedule.
        findings: Broken rules and wrong numbers, each once.
        warnings: What the manual asks for and no card that we know of needs.
    """

    kernels: tuple[str, ...]
    schedules: tuple[str, ...]
    launches: int
    ctas: int
    instructions: int
    lane_instructions: int
    unrun: tuple[UnrunLines, ...]
    compared: tuple[ComparedOutput, ...]
    varying: tuple[str, ...]
    findings: tuple[Diagnostic, ...]
    warnings: tuple[Diagnostic, ...] = ()

    @property
    def ok(self) -> bool:
        """Return whether nothing was found."""
        return not self.findings


class RunLedger:
    """Results of the runs so far, which an interruption keeps.

    Attributes:
        replay: How a schedule is replayed, in words with `{}` in its place.
    """

    def __init__(self, replay: str):
        self.replay = replay
        self.findings: dict[object, Diagnostic] = {}
        self.warnings: dict[object, Diagnostic] = {}
        self.programs: dict[str, tuple[Program, set[int]]] = {}
        self.launches = self.ctas = self.instructions = self.lane_instructions = 0

    def execute(self, run: KernelRun, progress: Callable[[float], None] = lambda share: None) -> bool:
        """Run one launch and count what ran, also if it is interrupted; return whether it came to its end."""
        _, ran = self.programs.setdefault(run.name, (run.program, set()))
        try:
            run.execute(progress)
        except CuirError:
            if not run.findings.diagnostics:
                raise
            return False
        finally:
            report = run.make_report()
            ran.update(run.list_ran())
            self.launches += 1
            self.ctas += report.ctas
            self.instructions += report.instructions
            self.lane_instructions += report.lane_instructions
            self.enter((*report.findings, *report.warnings), run.schedule)
        return True

    def enter(self, diagnostics: Sequence[Diagnostic], schedule: str) -> None:
        """Enter findings that were not entered before."""
        for d in diagnostics:
            told = tuple(Note(f"replay: {self.replay.format(schedule)}") if n.message.startswith("replay:") else n for n in d.notes)
            kept = self.findings if d.severity == "error" else self.warnings
            kept.setdefault(_make_finding_key(d), replace(d, notes=told))

    def make_report(self, schedules: Sequence[str], compared: Sequence[ComparedOutput] = (), varying: Sequence[str] = ()) -> CudaReport:
        """Make the report of what ran."""
        return CudaReport(
            tuple(self.programs),
            tuple(schedules),
            self.launches,
            self.ctas,
            self.instructions,
            self.lane_instructions,
            tuple(u for program, ran in self.programs.values() for u in list_unrun_lines(program, ran)),
            tuple(compared),
            tuple(varying),
            tuple(self.findings.values()),
            tuple(self.warnings.values()),
        )


@dataclass(frozen=True)
class CheckState:
    """Runs and findings of a process for a check; counts: launches, CTAs, instructions, and those of threads."""

    findings: dict[object, Diagnostic]
    warnings: dict[object, Diagnostic]
    ran: dict[str, set[int]]
    counts: tuple[int, int, int, int]
    schedules: tuple[str, ...]
    compared: tuple[ComparedOutput, ...]
    bits: dict[str, str]


def _make_finding_key(d: Diagnostic) -> object:
    """Return what findings that are the same have in common."""
    places = frozenset(str(s) for s in (d.span, *(n.span for n in d.notes)) if s is not None)
    return d.code, places, d.message.partition("[")[0] if d.code == "V301" or d.span is None else ""


def write_check_state(state: CheckState) -> Json:
    """Return the state as JSON; the instructions that ran as ranges."""
    return {
        "findings": [write_diagnostic(d) for d in state.findings.values()],
        "warnings": [write_diagnostic(d) for d in state.warnings.values()],
        "ran": {name: _write_ranges(ran) for name, ran in state.ran.items()},
        "counts": state.counts,
        "schedules": state.schedules,
        "compared": [asdict(c) for c in state.compared],
        "bits": state.bits,
    }


def read_check_state(data: Any) -> CheckState:
    """Return a state that `write_check_state` wrote."""
    findings, warnings = ([read_diagnostic(d) for d in data[name]] for name in ("findings", "warnings"))
    return CheckState(
        {_make_finding_key(d): d for d in findings},
        {_make_finding_key(d): d for d in warnings},
        {name: {i for first, last in ran for i in range(first, last)} for name, ran in data["ran"].items()},
        tuple(data["counts"]),
        tuple(data["schedules"]),
        tuple(ComparedOutput(**c) for c in data["compared"]),
        data["bits"],
    )


def _write_ranges(numbers: set[int]) -> list[list[int]]:
    """Return numbers as half-open ranges."""
    ranges: list[list[int]] = []
    for n in sorted(numbers):
        if ranges and ranges[-1][1] == n:
            ranges[-1][1] = n + 1
        else:
            ranges.append([n, n + 1])
    return ranges


@dataclass(frozen=True)
class CheckRecorder:
    """Recorder of what processes run for a check."""

    check: CudaCheck

    def forget(self) -> None:
        self.check.forget()

    def export(self) -> CheckState:
        check, ledger = self.check, self.check.ledger
        ran = {name: ran for name, (_, ran) in ledger.programs.items()}
        counts = ledger.launches, ledger.ctas, ledger.instructions, ledger.lane_instructions
        compared = tuple(check.compared.values())
        return CheckState(ledger.findings, ledger.warnings, ran, counts, tuple(check.schedules), compared, check.bits)

    def merge(self, state: CheckState) -> None:
        self.check.merge(state)


class CudaCheck:
    """Check of the launches of a file.

    Attributes:
        module: The kernels of the file.
        launch: Returns a KernelCall, or a list of them, with new tensors for each schedule.
        judge: Of what they wrote, if that is compared.
        kernel: Name of the kernel of launches that name none; None for the only one of the file.
        ledger: What was run and found.
    """

    def __init__(
        self,
        module: LoadedModule,
        launch: Callable[[], object],
        judge: OutputJudge | None = None,
        kernel: str | None = None,
        replay: str = 'schedule="{}"',
    ):
        self.module, self.launch, self.judge, self.kernel = module, launch, judge, kernel
        self.ledger = RunLedger(replay)
        self.schedules: list[str] = []
        self.compared: dict[str, ComparedOutput] = {}
        self.bits: dict[str, str] = {}
        self.varying: dict[str, None] = {}

    def run(self, schedules: Sequence[str], progress: Progress = lambda text: None, jobs: int = 1) -> CudaReport:
        """Run the launches under each schedule, some of them at a time. Raises CuirError for a call that is wrong."""
        phases = [[functools.partial(self._run_silently, s)] for s in schedules] if jobs > 1 else []
        taken = 0
        with SideProcesses(phases, CheckRecorder(self), jobs, LONGEST_SCHEDULE) as sides:
            try:
                for number, schedule in enumerate(schedules):

                    def tell(text: str, share: float, number: int = number, schedule: str = schedule) -> None:
                        words = f"schedule {number + 1} of {len(schedules)}: {schedule}{text}"
                        progress(ProgressMessage(words, (number + share) / len(schedules)))

                    if phases:
                        tell("", 0)
                    done = sides.results(number)
                    taken = number + 1
                    if not done or done[0] is None:
                        self._run_schedule(schedule, tell)
            except KeyboardInterrupt:
                sides.merge_reported(taken)
                raise
        return self.make_report()

    def _run_silently(self, schedule: str) -> bool:
        """Run one schedule in a process of its own."""
        self._run_schedule(schedule, lambda text, share: None)
        return True

    def forget(self) -> None:
        """Forget what was run."""
        self.ledger = RunLedger(self.ledger.replay)
        self.schedules, self.compared, self.bits, self.varying = [], {}, {}, {}

    def merge(self, other: CheckState) -> None:
        """Add what another process ran."""
        ledger = self.ledger
        for name, ran in other.ran.items():
            ledger.programs.setdefault(name, (self.module.find_program(name), set()))[1].update(ran)
        for kept, found in ((ledger.findings, other.findings), (ledger.warnings, other.warnings)):
            for key, diagnostic in found.items():
                kept.setdefault(key, diagnostic)
        ledger.launches, ledger.ctas = ledger.launches + other.counts[0], ledger.ctas + other.counts[1]
        ledger.instructions, ledger.lane_instructions = ledger.instructions + other.counts[2], ledger.lane_instructions + other.counts[3]
        self.schedules += other.schedules
        for row in other.compared:
            self._keep_worst(row)
        for name, bits in other.bits.items():
            self._note_bits(name, bits)

    def _keep_worst(self, row: ComparedOutput) -> None:
        """Keep an output's comparison if it is the worst so far."""
        if row.name not in self.compared or row.error > self.compared[row.name].error:
            self.compared[row.name] = row

    def _note_bits(self, name: str, bits: str) -> None:
        """Note the hash of an output's bits."""
        if self.bits.setdefault(name, bits) != bits:
            self.varying[name] = None

    def _run_schedule(self, schedule: str, tell: Callable[[str, float], None]) -> None:
        """Run all launches under one schedule, in order, and judge what they wrote."""
        self.module.reset()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            calls = collect_calls(self.launch(), self.launch)
        values = collect_tensors([a for call in calls for a in (*call.arguments, *list_inner_tensors(call.arguments))])
        before, names, written = copy_values(values), dict[int, str](), set[int]()
        earlier: KernelRun | None = None
        for number, call in enumerate(calls):

            def progress(share: float, number: int = number) -> None:
                tell(f", launch {number + 1} of {len(calls)}" if len(calls) > 1 else "", (number + share) / len(calls))

            run, parameters = self._prepare(call, schedule)
            if earlier is not None and call.overlaps:
                run.overlap(earlier)
            earlier = run
            if not self.ledger.execute(run, progress):
                return
            touched = run.list_written()
            for index, value in enumerate(collect_places(run.arguments, values)):
                if value is not None:
                    name = parameters[index].name if index < len(parameters) else f"tensor {index - len(parameters)} of structs"
                    names.setdefault(value, f"{name} of launch {number + 1}" if name in names.values() else name)
                    written |= {value} if index in touched else set()
        self.schedules.append(schedule)
        self._judge(before, values, sorted(written), [names.get(i, "") for i in range(len(values))], schedule)

    def _prepare(self, call: KernelCall, schedule: str) -> tuple[KernelRun, Sequence[KernelParameter]]:
        """Return a launch that is ready to run, and the parameters of its kernel. Raises CuirError U401."""
        kernel = self.module.choose(call.kernel or self.kernel)
        parameters = list_parameters(self.module.module.functions[kernel.name], self.module.path)
        if len(parameters) != len(call.arguments):
            message = f"the kernel takes {len(parameters)} arguments, found {len(call.arguments)}"
            raise CuirError.of("U401", message, None, f"its parameters are {', '.join(map(str, parameters)) or 'none'}")
        return KernelRun(kernel, call, schedule), parameters

    def _judge(self, before: Sequence[Value], after: Sequence[Value], written: Sequence[int], names: Sequence[str], schedule: str) -> None:
        """Compare what was written with the function, and with the other schedules."""
        for i in written:
            value = after[i]
            assert isinstance(value, torch.Tensor)
            bits = hashlib.sha256(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()
            self._note_bits(names[i], bits)
        if self.judge is None:
            return
        rows, wrong = self.judge.judge(before, after, written, names)
        for row in rows:
            self._keep_worst(row)
        self.ledger.enter([replace(d, notes=(*d.notes, Note("replay: "))) for d in wrong], schedule)

    def make_report(self) -> CudaReport:
        """Make the report of what ran so far."""
        return self.ledger.make_report(self.schedules, tuple(self.compared.values()), tuple(self.varying))
