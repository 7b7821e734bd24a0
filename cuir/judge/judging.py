"""The judgement of a solution: which problems run, and what is asked about each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ..ptx.launch.unrun_lines import UnrunLines
from ..text.diagnostics import Diagnostic
from ..text.phrases import ProgressMessage
from ..verification.cuda_numbers import ComparedOutput
from ..verification.cuda_runs import RunLedger, list_schedules
from .arena_tensors import BASE
from .device_runs import DeviceRequest, has_device, run_on_device
from .input_draws import KINDS, DrawnInputs, draw_inputs, mix_draws
from .output_comparison import compare_outputs, fill_unwritten
from .references import Reference, SizedProblem
from .solution_process import LOADING, CallRecord, NotJudged, SolutionLost, SolutionProcess

SEEDS = (1, 2)
FURTHER_KINDS = ("large",)  # of problems beside the main one
SECONDS = 120.0  # of one answer of a solution, and of one launch in the machine
# operations of PyTorch that move or make numbers, and compute none
MOVING = frozenset(
    (
        *(
            "empty",
            "empty_like",
            "empty_strided",
            "new_empty",
            "new_empty_strided",
            "zeros",
            "zeros_like",
            "new_zeros",
            "ones",
            "ones_like",
        ),
        *(
            "full",
            "full_like",
            "new_full",
            "new_ones",
            "view",
            "_unsafe_view",
            "reshape",
            "_reshape_alias",
            "as_strided",
            "detach",
            "alias",
        ),
        *(
            "clone",
            "copy_",
            "_to_copy",
            "t",
            "transpose",
            "permute",
            "unsqueeze",
            "squeeze",
            "expand",
            "slice",
            "select",
            "narrow",
            "fill_",
        ),
        *("zero_", "split", "split_with_sizes", "chunk", "unbind", "lift_fresh", "_local_scalar_dense", "is_same_size", "unfold", "arange"),
        *("contiguous", "flatten", "set_", "resize_", "view_as", "diagonal", "movedim", "cat", "stack", "constant_pad_nd", "tril", "triu"),
    )
)
FAULTS = {
    "numbers": "wrong numbers",
    "shape": "another shape or dtype than the reference's",
    "unwritten": "elements of the output that nothing wrote",
    "inputs": "inputs that it changes",
    "stale": "results of an earlier call",
    "overwritten": "a result that a later call changes",
    "rule": "a race, a missing wait, a bad address",
    "stream": "work on another stream that nothing waits for",
    "raises": "an exception",
    "lost": "a crash, or no end",
    "lazy": "something else than a plain tensor",
    "thread": "threads that go on after the call",
    "patched": "functions of PyTorch or Python that it replaces",
    "no kernel": "results without a kernel of its own",
}


class _Enough(Exception):
    """A fault was found, and one is asked for."""


@dataclass(frozen=True)
class Fault:
    """Something wrong with a solution.

    Attributes:
        kind: A key of FAULTS.
        problem: Sizes and inputs, "" if it does not depend on them.
    """

    kind: str
    message: str
    problem: str = ""


@dataclass
class Judgement:
    """Verdict on a solution: findings, and what was not judged.

    Attributes:
        tried: Problems that ran, in words.
        notes: Facts that are no fault.
        not_judged: What was not tried, in words.
        refused: Problems that the solution refuses, with its words.
        reason: Why nothing could be judged, "" if something was.
        diagnostics: Findings of the machine.
        warnings: What it found that the manual forbids, and no card that we know of minds.
    """

    tried: dict[str, int] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    not_judged: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    compared: dict[str, ComparedOutput] = field(default_factory=dict)
    reason: str = ""
    diagnostics: tuple[Diagnostic, ...] = ()
    warnings: tuple[Diagnostic, ...] = ()
    launches: int = 0
    lane_instructions: int = 0
    unrun: tuple[UnrunLines, ...] = ()

    @property
    def verdict(self) -> str:
        """Return "wrong", "no kernel", "not judged", "limited" (right where it does not refuse), or "right"."""
        if any(f.kind != "no kernel" for f in self.faults):
            return "wrong"
        if self.faults:
            return "no kernel"
        if self.reason or not self.tried:
            return "not judged"
        return "limited" if self.refused else "right"


class SolutionJudge:
    """Judge of one solution.

    Attributes:
        judgement: What was found so far, so that an interruption keeps it.
        stops_at_fault: Whether the first fault is enough.
    """

    def __init__(
        self,
        reference: Reference,
        solution: Path,
        launch: Path | None,
        arch: str,
        schedules: int = 8,
        seconds: float = SECONDS,
        progress: Callable[[str], None] = lambda text: None,
    ):
        self.reference, self.solution, self.launch, self.arch = reference, solution, launch, arch
        self.schedules, self.seconds, self.progress = list_schedules(schedules), seconds, progress
        self.ledger = RunLedger("schedule {}")
        self.judgement = Judgement()
        self.process: SolutionProcess | None = None
        self.turn = 0
        self.shares: list[str] = []  # names of the problems that share the kinds of inputs
        self.has_kernel = self.stops_at_fault = self.ran_on_device = False
        self.computed: dict[str, None] = {}

    # ---- the whole
    def run(self) -> Judgement:
        """Judge the solution. Raises CuirError for a reference that is wrong."""
        problems, large, skipped = self.reference.list_problems()
        if not problems:
            self.judgement.reason = "the reference has no sizes that are small enough to run here"
            return self.judgement
        self.judgement.not_judged += skipped
        main = next((p for p in problems if p.name in ("odd", "given")), problems[0])
        main = next((p for p in problems if p.name == "small"), main) if main.name == "odd" else main
        self.shares = [main.name, *(p.name for p in problems if p.name == "odd" and p is not main)]
        try:
            for number, problem in enumerate(problems):
                self.progress(ProgressMessage(f"{problem}", number / (len(problems) + 1)))
                with self._use_process():
                    self._judge_problem(problem, problem is main)
            if large is not None and all(f.kind != "no kernel" for f in self.judgement.faults):
                self.progress(ProgressMessage(f"{large}", len(problems) / (len(problems) + 1)))
                with self._use_process():
                    self._judge_large(large)
            if has_device():
                self._judge_on_device(problems, large)
        except NotJudged as stop:
            self.judgement.reason = str(stop)
        except _Enough:
            pass
        finally:
            if self.process is not None:
                self.process.close()
            self._finish()
        return self.judgement

    @contextlib.contextmanager
    def _use_process(self) -> Iterator[None]:
        """Run a block with a process of the solution; its loss is a fault."""
        if self.process is None:
            self.process = SolutionProcess(self.solution, self.launch, self.arch, self.ledger, self.seconds)
        try:
            yield
        except SolutionLost as lost:
            self._enter("lost", str(lost))
            self.process.close()
            self.process = None

    def _finish(self) -> None:
        """Collect what the machine found, and notes."""
        judgement, report = self.judgement, self.ledger.make_report(())
        judgement.diagnostics, judgement.warnings, judgement.unrun = report.findings, report.warnings, report.unrun
        judgement.launches, judgement.lane_instructions = report.launches, report.lane_instructions
        if self.computed:
            judgement.notes.append(f"PyTorch computes {', '.join(self.computed)}")
        if judgement.tried and not self.has_kernel and not judgement.reason:
            self._enter("no kernel", f"no kernel is launched{': PyTorch computes the results' if self.computed else ''}")
        judgement.not_judged.append("speed" if self.ran_on_device else "speed, and what only a GPU shows: it ran in a machine for PTX")

    def _enter(self, kind: str, message: str, problem: str = "") -> None:
        """Enter a fault; the first of each kind is enough."""
        if all(f.kind != kind for f in self.judgement.faults):
            self.judgement.faults.append(Fault(kind, message, problem))
        if self.stops_at_fault and kind != "no kernel":
            raise _Enough

    # ---- one problem
    def _judge_problem(self, problem: SizedProblem, is_main: bool) -> None:
        """Run a problem with several inputs; ask the main one everything."""
        assert self.process is not None
        varied = problem.vary_parameters()
        try:
            if self.process.load(problem.init, varied.state):
                problem = varied
        except NotJudged as stop:
            if self.judgement.tried:
                self.judgement.refused.append(f"{problem}: {stop}")
                return
            raise
        kinds = (
            KINDS
            if len(self.shares) == 1
            else KINDS[self.shares.index(problem.name) :: 2]
            if problem.name in self.shares
            else FURTHER_KINDS
        )
        first: DrawnInputs | None = None
        for drawn in draw_inputs(problem, kinds, SEEDS if is_main else SEEDS[:1]):
            self.process.schedule = self.schedules[self.turn % len(self.schedules)]
            self.turn += 1
            record = self._call(problem, drawn)
            if record is None:
                return
            first = first or drawn
        if is_main and first is not None:
            self._ask_about_schedules(problem, first)
            self._ask_about_calls(problem)
            self._ask_about_streams(problem, first)
            self._ask_about_kernels(problem, first)

    def _call(
        self, problem: SizedProblem, drawn: DrawnInputs, same_memory: bool = False, keep: bool = False, kind: str = "numbers"
    ) -> CallRecord | None:
        """Run the solution on inputs and judge what it returns; None if it refuses them."""
        assert self.process is not None
        where = f"{problem}, {drawn}"
        record = self.process.call(drawn.values, same_memory=same_memory, keep=keep)
        for d in record.findings:
            self._enter("rule", d.message, where)
        if record.error:
            if not record.findings:
                self._refuse(problem, drawn, record.error)
            return None
        self.judgement.tried[str(problem)] = self.judgement.tried.get(str(problem), 0) + 1
        self.has_kernel |= record.launches > 0
        self.computed |= dict.fromkeys(n for n in record.recorded if n.partition(" ")[0] not in MOVING)
        if record.changed:
            self._enter("patched", f"it replaces {', '.join(record.changed)}")
        if record.threads > 0:
            self._enter("thread", f"{record.threads} of its threads go on after the call", where)
        self._judge_inputs(problem, drawn, record, where)
        if self._has_shape(drawn.expected, record, where):
            self._judge_numbers(problem, drawn, record, where, kind)
        return record

    def _refuse(self, problem: SizedProblem, drawn: DrawnInputs, words: str) -> None:
        """Enter that the solution raises: a fault at the given sizes, else a limit of it."""
        if problem.name == "given" and drawn.kind == "given":
            self._enter("raises", words, f"{problem}, {drawn}")
        else:
            self.judgement.refused.append(f"{problem}, {drawn}: {words}")

    def _judge_inputs(self, problem: SizedProblem, drawn: DrawnInputs, record: CallRecord, where: str) -> None:
        """Enter inputs that the solution changes and the reference does not."""
        copies = [x.clone() if isinstance(x, torch.Tensor) else x for x in drawn.values]
        problem.evaluate_in_place(copies)
        tensors = [x for x in copies if isinstance(x, torch.Tensor)]
        for number, (expected, actual) in enumerate(zip(tensors, record.inputs)):
            if not is_same(expected, actual):
                self._enter("inputs", f"input {number} has other numbers after the call", where)

    def _has_shape(self, expected: Sequence[torch.Tensor], record: CallRecord, where: str) -> bool:
        """Enter outputs whose number, kinds, shapes or dtypes are not the reference's; return whether there is none."""
        strange = [k for k in record.kinds if k != "tensor"]
        if strange:
            self._enter("lazy", f"it returns {', '.join(strange)}", where)
            return False
        told = [[f"{list(x.shape)} of {str(x.dtype).removeprefix('torch.')}" for x in group] for group in (expected, record.outputs)]
        if told[0] != told[1]:
            self._enter("shape", f"it returns {', '.join(told[1])}, the reference {', '.join(told[0])}", where)
            return False
        return True

    def _judge_numbers(self, problem: SizedProblem, drawn: DrawnInputs, record: CallRecord, where: str, kind: str) -> None:
        """Enter undefined elements and wrong numbers."""
        if any(bool(u.any()) for u in record.undefined):
            count = sum(int(u.sum()) for u in record.undefined)
            self._enter("unwritten", f"nothing has written {count:,} of {sum(u.numel() for u in record.undefined):,} elements", where)
            return
        rows, words = compare_outputs(problem, drawn.values, record.outputs)
        for row in rows:
            before = self.judgement.compared.get(row.name)
            if before is None or row.error / max(row.allowed, 1e-300) > before.error / max(before.allowed, 1e-300):
                self.judgement.compared[row.name] = row
        if words:
            self._enter(kind, words, where)

    # ---- questions about one problem
    def _ask_about_schedules(self, problem: SizedProblem, drawn: DrawnInputs) -> None:
        """Run the same inputs under each schedule, and twice under one: the bits should be the same."""
        assert self.process is not None
        found: list[torch.Tensor] | None = None
        differs = False
        for schedule in (*self.schedules, self.schedules[0]):
            self.process.schedule = schedule
            record = self._call(problem, drawn)
            if record is None:
                return
            differs |= found is not None and not all(is_same(a, b) for a, b in zip(found, record.outputs))
            found = found if found is not None else record.outputs
        if differs:
            self.judgement.notes.append("the last bits depend on the order of warps")

    def _ask_about_calls(self, problem: SizedProblem) -> None:
        """Call again with other numbers in the same memory, and in other memory: results must follow all inputs."""
        first, second, third = (
            DrawnInputs("given", seed, values, problem.evaluate(values)) for seed in (11, 12, 13) for values in [problem.draw(seed)]
        )
        record = self._call(problem, first, kind="stale")
        if record is None:
            return
        again = self._call(problem, second, same_memory=True, keep=True, kind="stale")
        if again is not None and not all(is_same(a, b) for a, b in zip(record.outputs, again.kept)):
            self._enter("overwritten", "a second call changes what the first returned", str(problem))
        self._call(problem, third, kind="stale")
        self._call(problem, first, same_memory=True, kind="stale")
        mixed = mix_draws(problem, first.values, second.values)
        self._call(problem, DrawnInputs("mixed", 11, mixed, problem.evaluate(mixed)), same_memory=True, kind="stale")

    def _ask_about_streams(self, problem: SizedProblem, drawn: DrawnInputs) -> None:
        """Call on a stream that is not the default one."""
        assert self.process is not None
        for side_stream in (False, True):
            record = self.process.call(drawn.values, side_stream=side_stream)
            if record.streams & 2:
                self._enter("stream", "it works on a stream of its own, and the current one does not wait", str(problem))
            elif record.streams & 1 and side_stream:
                self.judgement.notes.append("its launches go to the default stream, whatever the current one is")

    def _ask_about_kernels(self, problem: SizedProblem, drawn: DrawnInputs) -> None:
        """Call without the launches: if the results stay right, no kernel makes them."""
        assert self.process is not None
        if not self.has_kernel or all(float(x.double().nan_to_num().std(unbiased=False)) == 0 for x in drawn.expected if x.numel()):
            return
        record = self.process.call(drawn.values, mode="skip")
        if record.error or any(bool(u.any()) for u in record.undefined) or not self._is_alike(drawn.expected, record):
            return
        if not compare_outputs(problem, drawn.values, record.outputs)[1]:
            self._enter("no kernel", "its results are right without its launches", str(problem))

    def _is_alike(self, expected: Sequence[torch.Tensor], record: CallRecord) -> bool:
        """Return whether outputs have the shapes and dtypes of the reference's."""
        return [(x.shape, x.dtype) for x in expected] == [(x.shape, x.dtype) for x in record.outputs]

    # ---- a GPU
    def _judge_on_device(self, problems: Sequence[SizedProblem], large: SizedProblem | None) -> None:
        """Run each problem on the GPU too, the large one whole, with inputs of the reference's file."""
        if self.launch is not None or self.solution.suffix == ".cuir":
            self.judgement.not_judged.append("the GPU: it has no PyTorch function to call there")
            return
        asked = [(p, list(draw_inputs(p, (), SEEDS))) for p in problems]
        asked += [(large, list(draw_inputs(large, (), SEEDS[:1])))] if large is not None else []
        requests = [DeviceRequest(p.init, p.state, [d.values for d in drawn]) for p, drawn in asked]
        try:
            runs = run_on_device(self.solution, requests, LOADING * self.seconds)
        except RuntimeError as error:
            self.judgement.not_judged.append(f"the GPU, where it does not load: {error}")
            return
        self.ran_on_device = True
        for (problem, drawn), run in zip(asked, runs):
            if run.is_lost:
                self._enter("lost", run.error, f"{problem}, on the GPU")
            elif run.error:
                self._refuse(problem, drawn[0], f"on the GPU: {run.error}")
            for d, repeats in zip(drawn, run.calls):
                self._judge_repeats(problem, d, repeats)

    def _judge_repeats(self, problem: SizedProblem, drawn: DrawnInputs, repeats: Sequence[list[torch.Tensor]]) -> None:
        """Judge what the same inputs gave on the GPU, time after time."""
        where = f"{problem}, {drawn}, on the GPU"
        for outputs in repeats:
            record = CallRecord(outputs=outputs, kinds=["tensor"] * len(outputs))
            if self._has_shape(drawn.expected, record, where):
                self._judge_numbers(problem, drawn, record, where, "numbers")
        note = "the last bits differ from run to run on the GPU"
        if note not in self.judgement.notes and not all(is_same(a, b) for x in repeats for a, b in zip(repeats[0], x)):
            self.judgement.notes.append(note)

    # ---- large inputs
    def _judge_large(self, problem: SizedProblem) -> None:
        """Run some CTAs at large sizes, and compare what they write."""
        assert self.process is not None
        judgement, where = self.judgement, str(problem)
        try:
            self.process.load(problem.init, problem.state)
            values = problem.draw(SEEDS[0])
            record = self.process.call(values, mode="sample")
        except NotJudged as stop:
            judgement.not_judged.append(f"{where}: {stop}")
            return
        if record.error:
            judgement.refused.append(f"{where}: {record.error}")
            return
        if record.launches and not record.sampled:
            judgement.not_judged.append(f"{where}: its launches depend on each other, and are too large to run whole")
            return
        drawn = DrawnInputs("given", SEEDS[0], values, problem.evaluate(values))
        for d in record.findings:
            self._enter("rule", d.message, where)
        if not self._has_shape(drawn.expected, record, where):
            return
        self.judgement.tried[where] = 1
        if not record.launches:
            self._judge_numbers(problem, drawn, record, where, "numbers")
            return
        masks = [self._find_written(x, place) for x, place in zip(record.outputs, record.places)]
        if any(m is None for m in masks):
            judgement.not_judged.append(f"{where}: its outputs are views of other tensors")
            return
        written = [m for m in masks if m is not None]
        share = sum(int(m.sum()) for m in written) / sum(m.numel() for m in written)
        fresh = any(bool(u.any()) for u in record.undefined)
        if share == 0 or (fresh and share < record.sampled / 2):
            words = f"{record.sampled:.2%} of its CTAs ran, and wrote {share:.2%} of the output"
            self._enter("unwritten", words, where)
            return
        _, words = compare_outputs(problem, values, fill_unwritten(record.outputs, drawn.expected, written))
        if words:
            self._enter("numbers", words, where)
        judgement.notes.append(f"{where}: {record.sampled:.2%} of the CTAs ran, and {share:.2%} of the outputs were compared")

    def _find_written(self, x: torch.Tensor, place: Sequence[int]) -> torch.Tensor | None:
        """Return which elements of an output the sampled CTAs wrote; None if they do not lie on the device."""
        assert self.process is not None
        size, first = x.element_size(), place[1] - BASE
        if not 0 <= first < self.process.capacity or place[0] != place[1]:
            return None
        window = torch.from_numpy(self.process.written[first : first + x.numel() * size].copy())
        return window.reshape(-1, size)[:, 0].bool().reshape(x.shape)


def is_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two tensors have the same bits."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(a.contiguous().reshape(-1).view(torch.uint8), b.contiguous().reshape(-1).view(torch.uint8))
