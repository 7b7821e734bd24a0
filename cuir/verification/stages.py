"""verify(): the questions about a kernel in their order, each answered with a reason and a place.

Observations of runs in another process: sides of conditions, blocks entered, turns of loops.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ..arguments.requirements import describe_row_requirements
from ..attn.tracing.read_ranges import negative_read
from ..attn.tracing.splice_names import OPTIONAL, SPLICE_POINTS, STANDARD
from ..attn.tracing.trace import tracing_once
from ..attn.verification.column_contracts import check_columns, has_column_points, make_column_problems
from ..attn.verification.contracts import check_contracts, has_splice_points, list_names_read, reads_blocks_from_memory
from ..attn.verification.mask_distances import LONGEST, check_distances
from ..attn.verification.problems import Case, is_attention
from ..attn.verification.serving_specifications import knows_lengths_of_sequences, make_bounds_of_sequences
from ..attn.verification.sizes import collect_mask_integers, make_few_problems, make_problems
from ..attn.verification.tile_orders import Order
from ..campaigns.tasks import Json
from ..checking.checked import Checked, Const
from ..checking.checker import check, pick_kernel
from ..checking.const_defaults import HEAD_DIM, describe_consts, fill_consts, list_dtype_consts, with_defaults
from ..interp.expression_watches import watch_runs
from ..interp.interpreted_launch import export_entered_blocks, forget_entered, merge_entered, prepare_code
from ..interp.step_budget import limit_seconds
from ..ops.meaning.tiles import force_exact_products, force_one_thread
from ..runtime.launchable import find_spills, require_launchable
from ..spec.function_specification import AnySpecification, FunctionSpecification
from ..spec.specification import Lengths, Specification
from ..spec.user_calls import Refusals, limit_calls
from ..syntax.caller_values import program_of
from ..syntax.nodes import ConstType, Program
from ..syntax.types import BF16, F16, I32
from ..text.diagnostics import CuirError
from ..text.phrases import ProgressMessage
from .coverage.observed_sides import Observed, observe
from .coverage.one_sided_conditions import report_coverage, require_both_sides
from .inputs import make_contract_problems
from .line_coverage import find_short_loops, find_unreached
from .mask_readout import Readout, check_function_mask, check_mask, choose_readout_lengths
from .narrow_products import find_narrow_sums
from .noise_verdicts import check_perturbed, choose_perturbed
from .numbers_stage import NumbersStage
from .report import Stage, VerifyReport
from .request import Level, Progress, Request, StageShares
from .resource_limits import RUN, release_freed_memory
from .schedules_stage import SchedulesStage
from .side_processes import SideProcesses
from .soundness import Soundness
from .spec_dispatch import AnyCase, get_mods, get_tile_sizes, is_backward, prepare_specification, require_judgeable
from .task_runs import PlaceError, TaskPlan, TaskRuns, write_state

WRONG_NUMBERS = {"V301", "V302", "V303", "V304", "V305", "V309"}  # codes of results, which a single run decides


class RunRecorder:
    """Recorder of the runs of some kernels.

    If the specification answers differently afterwards, or refuses to, the observations are discarded. soundness: None
    for a specification that the runs do not evaluate. refused: functions that were refused, see `limit_calls`.
    """

    def __init__(self, observed: Observed, kernels: Sequence[Checked], soundness: Soundness | None, refused: Refusals):
        self.observed, self.kernels, self.soundness, self.refused = observed, kernels, soundness, refused

    def forget(self) -> None:
        """Discard all observations."""
        for kernel in self.kernels:
            forget_entered(kernel)
        self.observed.forget()

    def export(self) -> Any:
        """Return sides seen, and blocks entered of each kernel; None if the specification is unsound."""
        try:
            if self.soundness is not None:
                self.soundness.end(self.refused)
        except CuirError:
            return None
        return list(self.observed.sides), [export_entered_blocks(kernel) for kernel in self.kernels]

    def merge(self, state: Any) -> None:
        """Add the observations of another process."""
        sides, entered = state
        self.observed.mark(sides)
        for kernel, blocks in zip(self.kernels, entered, strict=True):
            merge_entered(kernel, blocks)


def verify(
    program: Program | Checked | str | os.PathLike[str],
    spec: AnySpecification | Callable[..., object] | str | os.PathLike[str],
    kernel: str | None = None,
    consts: Mapping[str, Const] | None = None,
    level: Level = "quick",
    progress: Progress | None = None,
    shrink: bool = True,
    seeded: int | None = None,
    budget: float = RUN,
    processes: int = 1,
    tasks: TaskPlan | None = None,
    sooner: bool = False,
) -> VerifyReport:
    """Check whether a kernel computes a specification, on the CPU.

    1. Is it well-formed: types, capacities, architecture, and the contracts of its splice points by enumeration?
    2. Does it go wrong under a schedule that is tried (some 15 of each problem, 35 at level full): races, deadlocks,
    phases, proxies; do all give the same bits?
    3. Does it compute the specification: numbers against float64, judged by PyTorch's error in half precision; the mask
    read out exactly?

    Args:
        program: a program or the path of its file, with consts, or the result of `check`, with its kernel and consts.
        spec: mods of an attention (`Specification`), or any function of the kernel's inputs (`FunctionSpecification`);
            also a mask_mod, a score_mod or a function called `reference`; or the path of their file, "file.py" or
            "file.py:function".
        kernel: the name of the kernel, if the program has several.
        consts: const parameters; others have the defaults of the file, then those of `fill_consts` (f16, D=128).
        level: "full" tries more sizes and schedules, and also the kernel with the other dtype and head dim, for an
            attention kernel or where the file has no default for them.
        progress: receives messages; `share` of each is the part that is done, 0 to 1, as far as it can be foreseen.
        shrink: search for a small problem that shows wrong numbers, for some seconds.
        seeded: the least number of seeded schedules in all, instead of those of the level.
        budget: seconds of processor time of one run.
        processes: forked processes that share the runs of mods at level quick.
        tasks: how runs of schedules and numbers become tasks of other processes.
        sooner: ask for mask and numbers of a few runs before all schedules, which refuses most wrong kernels sooner.

    Returns:
        The report; a wrong program gives a report that says so.

    Raises:
        CuirError: the call itself is wrong.
    """
    if isinstance(program, Checked):
        kernel, consts, program = kernel or program.name, {**program.consts, **(consts or {})}, program.program
    program = program_of(program, "verify")
    picked = pick_kernel(program, kernel)
    all_consts = fill_consts(picked, consts or {})
    request = Request(
        program,
        prepare_specification(spec, picked, program, all_consts),
        spec,
        level,
        StageShares(progress, level, is_attention(picked)) if progress is not None else lambda text: None,
        shrink,
        seeded,
        sooner,
    )
    verification = _Verification(request, kernel, all_consts, processes, tasks)
    with _limit_runs(budget) as refused:
        try:
            return verification.run(refused)
        except PlaceError as lost:
            raise lost.error from None
        finally:
            release_freed_memory()


@contextmanager
def _limit_runs(budget: float) -> Iterator[Refusals]:
    """Return the context of all runs of a verification; yield the functions that it refuses."""
    with limit_seconds(budget), limit_calls(budget) as refused, tracing_once(), force_exact_products(), force_one_thread(), watch_runs():
        yield refused


class OpenedVerification:
    """A verification whose jobs of schedules and numbers run by their numbers, as those of `verify` with `tasks`.

    Raises CuirError where `verify` reports a kernel that is not well-formed.
    """

    def __init__(self, request: Request, kernel: str | None, consts: Mapping[str, Const], budget: float):
        self.budget = budget
        picked = pick_kernel(request.program, kernel)
        filled = fill_consts(picked, consts)
        spec = prepare_specification(request.spec, picked, request.program, filled)
        self.verification = _Verification(replace(request, spec=spec), kernel, filled, 1, None)
        with _limit_runs(budget):
            self.verification.begin()
            checked = self.verification.well_formed(self.verification.make_report())
            self.verification.begin_stages(checked)
            scheduled, numbered = self.verification.scheduled, self.verification.numbered
            assert numbered is not None
            self.phases = scheduled.prepare(), numbered.prepare(scheduled.counted)
            self.kernels = self.verification.prepare_kernels(checked)

    def run(self, phase: int, jobs: Sequence[int]) -> Json:
        """Run some jobs of a phase; return their results, None for one that raised, and what they recorded.

        The result is None if the specification is unsound.
        """
        opened = self.verification
        with _limit_runs(self.budget) as refused:
            recorder = RunRecorder(opened.observed, self.kernels, opened.soundness, refused)
            recorder.forget()
            results = list[Any]()
            for job in jobs:
                try:
                    results.append(self.phases[phase][job]())
                except CuirError:
                    results.append(None)
            state = recorder.export()
        release_freed_memory()
        return None if state is None else {"results": results, "state": write_state(state)}


class _Stop(Exception):
    """Raised where a question was answered with no."""


class _Verification:
    def __init__(self, request: Request, kernel: str | None, consts: dict[str, Const], processes: int, tasks: TaskPlan | None):
        self.request, self.kernel, self.consts, self.processes, self.tasks = request, kernel, consts, processes, tasks
        self.program, self.spec, self.caller_spec = request.program, request.spec, request.caller_spec
        self.level, self.progress = request.level, request.progress
        self.runs = 0  # runs under different schedules
        self.orders: list[Order] = []
        self.observed: Observed  # sides of the kernel's conditions that runs have taken
        self.counted: list[AnyCase] = []  # problems of the schedules stage whose numbers are judged too
        self.other_kernels: list[Checked] = []  # the kernel with other consts
        self.scheduled: SchedulesStage
        self.numbered: NumbersStage | None = None
        self.warnings: list[str] = []
        self.soundness: Soundness | None = None
        self.stages = [
            Stage("well-formed", "types, capacities, architecture"),
            Stage("contracts", "the splice points keep their contracts"),
            Stage("schedules", "no race or deadlock, the same bits under the schedules tried"),
            Stage("mask", "the kept keys of each query, read out"),
            Stage("numbers", "against float64, beside PyTorch's own error"),
        ]

    def run(self, refused: Refusals) -> VerifyReport:
        """Run the stages and return the report.

        refused: functions of the specification that were refused.
        """
        self.begin()
        report = self.make_report()
        try:
            checked = self.well_formed(report)
            with self.shared_out(checked, refused) as shared:
                self.contracts(checked)
                if self.request.sooner:
                    self.look(checked)
                self.schedules(checked, shared)
                self.observed.start_comparing()
                self.mask(checked)
                self.numbers(checked, refused, shared)
            report.left_out, report.unreached = find_unreached(checked, *(o.checked for o in self.orders))
            report.warnings = self.warnings
            report.short = find_short_loops(checked, *(o.checked for o in self.orders))
            report.narrow = find_narrow_sums(checked)
            if self.numbered is not None:
                report.steps = self.numbered.steps
                report.coverage, messages = report_coverage(checked, self.numbered.cover.coverage)
                report.warnings = [*report.warnings, *messages]
            report.source = checked.origin.span.source.name
            report.negative = negative_read(self.spec) if isinstance(self.spec, Specification) else ""
        except _Stop:
            pass
        report.runs = self.runs
        return report

    def begin(self) -> None:
        """Collect the numbers of the mask near which lengths are chosen."""
        self.marks = collect_mask_integers(self.spec, self.program) if isinstance(self.spec, Specification) else []

    def make_report(self) -> VerifyReport:
        """Return the report before any stage."""
        picked = pick_kernel(self.program, self.kernel)
        return VerifyReport(self.spec.name, picked.name, self.level, with_defaults(picked, self.consts) | self.consts, self.stages)

    @contextmanager
    def stage(self, index: int) -> Iterator[Stage]:
        stage = self.stages[index]
        self.progress(f"{stage.name}: {stage.question}")
        begin = time.perf_counter()
        stage.verdict, stage.reason = "passed", ""
        try:
            yield stage
        except CuirError as error:
            error = self.soundness.explain(error) if self.soundness is not None else error
            stage.verdict, stage.reason, stage.diagnostics = "failed", error.diagnostics[0].message, error.diagnostics
            raise _Stop from error
        finally:
            stage.seconds = time.perf_counter() - begin

    def well_formed(self, report: VerifyReport) -> Checked:
        with self.stage(0) as stage:
            checked = check(self.program, self.kernel, self.consts)
            forget_entered(checked)
            self.observed = observe(checked)
            report.kernel, report.consts = checked.name, dict(checked.consts)
            require_judgeable(checked, self.spec)
            self.soundness = Soundness(checked, self.spec)
            self.soundness.begin()
            report.spills = find_spills(require_launchable(checked), compile=self.level == "full")
            self.other_kernels, refused = self.make_variants(checked)
            stage.reason = f"{len(checked.roles)} role{'s' * (len(checked.roles) != 1)}, {checked.shared_bytes:,} bytes of shared memory"
            if needs := describe_row_requirements(checked):
                stage.reason += f"; {needs}"
            if refused:
                stage.reason += f"; not tried: {'; '.join(refused)}"
        return checked

    def make_variants(self, checked: Checked) -> tuple[list[Checked], list[str]]:
        """Return kernels with the other dtype and head dim, for the full level, and reasons against some.

        A const with a default in the file is the author's choice, and stays, unless it is an attention kernel.
        """
        if self.level != "full":
            return [], []
        attention = is_attention(checked.origin) or is_backward(checked.origin)
        open_ = {p.name for p in checked.origin.params if attention or p.default is None}
        other_dtypes = {F16: BF16, BF16: F16}  # f32 has separate kernels
        dtype = next(iter(list_dtype_consts(checked.origin)), None)
        settings: list[dict[str, Const]] = []
        if dtype in open_ and (value := checked.consts[dtype]) in other_dtypes:
            settings.append({**self.consts, dtype: other_dtypes[value]})
        D = checked.consts.get(HEAD_DIM)
        if HEAD_DIM in open_ and D in (64, 128) and checked.consts.get("DV", D) == D:
            other_dim = 192 - int(D)
            settings.append({**self.consts, **{n: other_dim for n in (HEAD_DIM, "DV") if n == HEAD_DIM or n in self.consts}})
        kernels, refused = list[Checked](), list[str]()
        for consts in settings:
            try:
                require_launchable(kernel := check(self.program, self.kernel, consts))
                kernels.append(kernel)
            except CuirError as error:
                changed = describe_consts({n: v for n, v in consts.items() if v != checked.consts.get(n)})
                refused.append(f"{changed} makes no kernel ({error.diagnostics[0].code}: {error.diagnostics[0].message})")
        return kernels, refused

    def shared_out(self, checked: Checked, refused: Refusals) -> SideProcesses | TaskRuns:
        """Start the runs of schedules and numbers in other processes: tasks, or forked ones.

        Forked ones are for mods, whose problems are known in advance. Of gradients of mods, the kernel alone runs there.
        """
        self.begin_stages(checked)
        assert self.soundness is not None and self.numbered is not None
        alone, gradients = SideProcesses((), RunRecorder(self.observed, [], None, refused), 1), is_backward(checked.origin)
        if self.tasks is not None:
            try:
                scheduled = self.scheduled.prepare()
                recorder = RunRecorder(self.observed, self.prepare_kernels(checked), None, refused)
                before = recorder.export()
                recorder.forget()  # runs that list the numbers' problems are none of the schedules
                numbered = self.numbered.prepare(self.scheduled.counted)
                listing = recorder.export()
                recorder.forget()
                recorder.merge(before)
            except CuirError:
                self.begin_stages(checked)
                return alone  # the stages meet the fault
            return TaskRuns((scheduled, numbered), recorder, self.tasks, listing)
        if self.processes == 1 or self.level != "quick" or not (isinstance(self.spec, Specification) or gradients):
            return alone
        try:
            scheduled = self.scheduled.prepare()
            phases = scheduled, (self.numbered.prepare_runs if gradients else self.numbered.prepare)(self.scheduled.counted)
        except CuirError:
            if not gradients:
                raise
            self.scheduled.jobs, self.numbered.todo = [], []
            return alone  # the stages meet the fault
        kernels = self.prepare_kernels(checked)
        return SideProcesses(phases, RunRecorder(self.observed, kernels, None if gradients else self.soundness, refused), self.processes)

    def begin_stages(self, checked: Checked) -> None:
        """Make the stages of schedules and numbers, which have listed no problem yet."""
        self.scheduled = SchedulesStage(self.request, checked, self.observed)
        self.numbered = NumbersStage(self.request, checked, self.observed, self.other_kernels, self.marks)

    def prepare_kernels(self, checked: Checked) -> list[Checked]:
        """Prepare the code of the kernel in each order of tiles."""
        kernels = [checked, *(o.checked for o in self.scheduled.orders)]
        for kernel in kernels:
            prepare_code(kernel)
        return kernels

    def look(self, checked: Checked) -> None:
        """Ask for mask and numbers of a few runs, as the stages will again if no answer is no.

        A fault of another kind is left to them, and so is what the runs recorded.
        """
        assert self.numbered is not None
        recorder = RunRecorder(self.observed, [checked], None, Refusals())
        stages = self.stages
        try:
            cases = self.numbered.list_first()
            before = recorder.export()
        except CuirError:
            return
        self.stages = [replace(stage, rows=[]) for stage in stages]
        try:
            self.mask(checked)
            with self.stage(4):
                self.numbered.look(cases)
        except _Stop:
            failed = next(stage for stage in self.stages if stage.verdict == "failed")
            if failed.diagnostics[0].code in WRONG_NUMBERS:
                stages[:] = self.stages
                raise
        self.stages = stages
        recorder.forget()
        recorder.merge(before)

    def contracts(self, checked: Checked) -> None:
        if has_column_points(self.program) and is_backward(checked.origin) and isinstance(self.spec, FunctionSpecification):
            with self.stage(1) as stage:
                values_of_problems = make_contract_problems(checked, self.spec, make_column_problems(*get_tile_sizes(checked)))
                pairs = check_columns(checked, values_of_problems)
                stage.reason = f"{pairs:,} pairs of {len(values_of_problems)} problems enumerated, by blocks of keys; keep() is judged by the numbers{self.far(checked)}"
            return
        if has_splice_points(self.program) and knows_lengths_of_sequences(self.program, checked.origin):
            self.contracts_of_sequences(checked)
            return
        if not has_splice_points(self.program) or not (is_attention(checked.origin) or is_backward(checked.origin)):
            reason = (
                "the keys and values lie in no tensor [B, HK, N, D]"
                if has_splice_points(self.program)
                else "the program has no splice points"
            )
            self.stages[1].reason = f"not asked: {reason}"
            return
        if isinstance(self.spec, FunctionSpecification):
            with self.stage(1) as stage:
                tile = get_tile_sizes(checked)
                is_fixed_tile = is_backward(checked.origin) and reads_blocks_from_memory(
                    self.program, checked.origin
                )  # lists of blocks are made for the kernel's tile sizes
                problems = make_column_problems(*tile) if is_fixed_tile else make_problems(None, *tile, self.level, self.program)
                values_of_problems = make_contract_problems(checked, self.spec, problems)
                pairs = check_contracts(
                    self.program, checked.origin, None, values_of_problems, checked.consts, extra_values=values_of_problems.__getitem__
                )
                judged = "judged by the numbers" if is_backward(checked.origin) else "not compared with a function, but read out below"
                stage.reason = f"{pairs:,} pairs of {len(values_of_problems)} problems enumerated; keep() is {judged}{self.far(checked)}"
            return
        with self.stage(1) as stage:
            tile = get_tile_sizes(checked)
            problems = make_problems(self.spec, *tile, self.level, self.program)
            pairs = check_contracts(self.program, checked.origin, self.spec, problems, checked.consts)
            stage.reason = f"{pairs:,} pairs of {len(problems)} problems enumerated"
            numbers = [p.name for p in checked.scalars if p.dtype == I32 and p.name not in STANDARD]
            tried = dict.fromkeys(numbers, 0)
            for name, value in itertools.product(numbers, (1, 6, 45)):
                tried[name] += check_contracts(
                    self.program, checked.origin, self.spec, make_few_problems(self.program), checked.consts, {name: value}
                )
            if names := [name for name, pairs in tried.items() if pairs]:
                stage.reason += f", other values of {', '.join(names)} too"
            stage.reason += self.far(checked)

    def contracts_of_sequences(self, checked: Checked) -> None:
        """Check contracts with sequences of one length, which a kernel over a cache or of packed sequences reads."""
        problems = make_problems(None, *get_tile_sizes(checked), self.level, self.program)
        bounds = {p: make_bounds_of_sequences(p.lengths) for p in problems}
        points = {*SPLICE_POINTS, *OPTIONAL} & self.program.funcs().keys()
        parameters = {p.name for p in checked.origin.params if not isinstance(p.type, ConstType)}
        known = {"scale", *(n for values in bounds.values() for n in values)}
        if captured := list_names_read(self.program, points) & parameters - known:
            self.stages[1].reason = f"not asked: the splice points read {', '.join(sorted(captured))}"
            return
        with self.stage(1) as stage:
            pairs = check_contracts(self.program, checked.origin, None, problems, checked.consts, extra_values=bounds.__getitem__)
            stage.reason = f"{pairs:,} pairs of {len(problems)} problems enumerated; keep() is judged by the numbers"

    def far(self, checked: Checked) -> str:
        """Check pairs far apart, and blocks of long rows; return a description.

        Raises CuirError as `check_distances`.
        """
        if "keep" not in self.program.funcs():
            return ""
        distances = check_distances(self.program, checked, get_mods(self.caller_spec, checked), self.level)
        if distances.reason:
            return f"; none of {LONGEST:,} rows: {distances.reason}"
        looked = [f"{distances.pairs:,} pairs up to {LONGEST:,} apart"] * bool(distances.pairs) + [
            f"{distances.blocks:,} blocks of as many rows"
        ] * bool(distances.blocks)
        return "".join(f"; {words}" for words in looked)

    def schedules(self, checked: Checked, shared: SideProcesses | TaskRuns) -> None:
        with self.stage(2) as stage:
            scheduled = self.scheduled
            scheduled.run(stage, shared.results(0))
            self.orders, self.runs, self.counted = scheduled.orders, scheduled.runs, scheduled.counted

    def mask(self, checked: Checked) -> None:
        if not is_attention(checked.origin):
            self.stages[3].reason = "not asked: the kernel is of no attention, so there is no mask"
            return
        with self.stage(3) as stage:
            read = hidden = 0
            chosen = list(choose_readout_lengths(*get_tile_sizes(checked), self.marks, self.level))
            for number, lengths in enumerate(chosen):
                self.progress(ProgressMessage(f"mask: read out for M={lengths.M}, N={lengths.N}", number / len(chosen)))
                readout = self.read_out(checked, lengths)
                if readout is None:
                    stage.verdict, stage.reason = "skipped", "not asked: O is not linear in V, so that no probe shows what is kept"
                    return
                if not read and choose_perturbed(checked, [Case("mask", lengths)], self.level):
                    self.progress(f"mask: once more with noise for M={lengths.M}, N={lengths.N}")
                    check_perturbed(checked, lambda lengths=lengths: self.read_out(checked, lengths))  # type: ignore[misc]
                read, hidden = read + readout.read, hidden + readout.hidden
            stage.reason = f"{read:,} pairs of the mask read out" + (f", {hidden:,} too faint to see" if hidden else "")

    def read_out(self, checked: Checked, lengths: Lengths) -> Readout | None:
        if isinstance(self.spec, FunctionSpecification):
            return check_function_mask(self.program, checked, self.spec, lengths)
        return check_mask(self.program, checked, self.spec, lengths)

    def numbers(self, checked: Checked, refused: Refusals, shared: SideProcesses | TaskRuns) -> None:
        with self.stage(4) as stage:
            stage_of_numbers = self.numbered
            assert stage_of_numbers is not None
            if shared.sides:
                stage_of_numbers.evaluate_references()
            stage_of_numbers.run(stage, self.counted, self.scheduled.wider, shared.results(1))
            assert self.soundness is not None
            self.soundness.end(refused)
            if self.level == "full":
                require_both_sides(checked, stage_of_numbers.cover.coverage)
            self.warnings = self.soundness.warnings(stage_of_numbers.cases)


__all__ = ["OpenedVerification", "RunRecorder", "verify"]
