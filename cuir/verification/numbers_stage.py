"""The numbers stage: every problem against float64, score corners, conditions both ways, and noise."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from functools import partial

import torch

from ..arguments.binding import TORCH
from ..attn.verification.numeric import add_note, get_ratio
from ..checking.checked import Checked
from ..checking.const_defaults import describe_consts
from ..interp.interpreted_launch import Grid, run
from ..spec.function_specification import FunctionSpecification
from ..text.diagnostics import CuirError
from ..text.phrases import ProgressMessage
from .branch_problems import make_branch_draws
from .coverage.coverage_loop import Cover
from .coverage.observed_sides import Observed
from .coverage.one_sided_conditions import report_coverage
from .inputs import FunctionLaunch, choose_half_dtype, collect_readable, find_accumulated
from .narrow_counts import make_narrow_count_cases
from .noise_verdicts import check_contraction, check_perturbed, choose_contraction_cases, choose_perturbed
from .report import Stage
from .request import Request
from .rounded_sizes import make_rounded_size_cases
from .schedules import NUMBER_GRIDS
from .side_processes import Job
from .spec_dispatch import (
    AnyCase,
    FinishedRun,
    check_case,
    describe_outside,
    find_single_steps,
    list_made_positive,
    make_corner_cases,
    make_first_number_cases,
    make_hidden_cases,
    make_number_cases,
    prepare_launch,
    require_compared,
    shrink_error,
)
from .special_problems import make_underflow_draws
from .step_counts import choose_grid, is_counted
from .synchronisation import describe_left, is_too_large
from .user_sizes import LEFT_OUT, is_user_case, make_user_cases

WATCHED_ANEW = (6, 16)  # numbers of problems after which fewer conditions are watched
FIRST = 3  # problems that `look` runs: nearly every kernel with wrong numbers fails in one of them
PROBLEMS_SHARE = 0.7  # of the time of the stage, before problems that follow from what these have not covered
Todo = list[tuple[Checked, AnyCase]]
Outputs = tuple[Mapping[str, torch.Tensor], int]  # of a run, and its number of CTAs
Finished = list[dict[str, object]] | Outputs | None  # of a job: rows, or outputs that are not judged yet


class NumbersStage:
    """Runs of the problems of a kernel, and of the kernel with other consts.

    marks: numbers of the mask near which lengths are chosen.
    """

    def __init__(self, request: Request, checked: Checked, observed: Observed, besides: Sequence[Checked], marks: list[int]):
        self.request, self.checked, self.observed, self.besides, self.marks = request, checked, observed, besides, marks
        self.program, self.spec = request.program, request.spec
        self.cover = Cover(self.program, checked, self.spec, observed, request.level, request.shrink)
        self.varied = [n for n, v in checked.consts.items() if any(variant.consts.get(n) != v for variant in besides)]
        self.steps: list[str] = []  # dims in which no problem was longer than one step
        self.cases: list[AnyCase] = []  # of the kernel itself
        self.todo: Todo = []
        self.problems: list[FunctionLaunch] = []  # the launches of `todo`, of a function whose runs are shared
        self.remaining: list[AnyCase] = []  # problems that could not be run
        self.contractions = 0  # problems that were run again with products and sums rounded once

    def prepare(self, more: Sequence[AnyCase]) -> list[Job]:
        """List the problems before any has run, as jobs that return rows.

        more: problems of the schedules stage whose numbers are judged too.
        """
        self.todo = self._list_problems(more)
        return [partial(self._run_problem, number, kernel, case) for number, (kernel, case) in enumerate(self.todo)]

    def prepare_runs(self, more: Sequence[AnyCase]) -> list[Job]:
        """List the problems as `prepare` does, as jobs that run the kernel.

        Jobs return outputs and the number of CTAs.

        For functions, which side processes do not evaluate: autograd fails in a fork of a process that uses a GPU.
        Raises CuirError for a problem that cannot be prepared.
        """
        self.todo = self._list_problems(more)
        problems = (prepare_launch(self.program, kernel, self.spec, case, poison=True) for kernel, case in self.todo)
        self.problems = [p for p in problems if isinstance(p, FunctionLaunch)]
        return [partial(self._run_alone, number, kernel, case) for number, (kernel, case) in enumerate(self.todo)]

    def list_first(self) -> list[AnyCase]:
        """List the problems of `look`."""
        return make_first_number_cases(self.checked, self.spec, self.marks, self.request.level, FIRST)

    def look(self, cases: Sequence[AnyCase]) -> None:
        """Run the first problems as `run` does, before all others. Raises CuirError for the first fault."""
        for number, case in enumerate(cases):
            self._run_problem(number, self.checked, case)

    def evaluate_references(self) -> None:
        """Evaluate the function for the problems whose kernels run in side processes, while these still run.

        What it raises for a problem, its judgement raises again in the order of the problems.
        """
        if not isinstance(self.spec, FunctionSpecification):
            return
        for (kernel, _), problem in zip(self.todo, self.problems, strict=True):
            if problem.exact is None:
                with contextlib.suppress(CuirError):
                    problem.exact = self.spec.exact(collect_readable(kernel, problem), list(problem.before))

    def run(self, stage: Stage, more: Sequence[AnyCase], wider: Sequence[AnyCase], finished: Sequence[Finished] = ()) -> None:
        """Run the problems, `more` and `wider` ones. Raises CuirError for the first fault.

        wider: problems that follow from runs of the schedules stage, so that nothing can prepare them.
        finished: for each problem what its job returned, if it has passed in another process.
        """
        checked, todo = self.checked, [*(self.todo or self._list_problems(more)), *((self.checked, c) for c in wider)]
        self.cases += wider
        self.steps = find_single_steps(checked, self.spec, self.cases)
        corners = list(make_corner_cases(self.request.caller_spec, self.program, checked, (c for _, c in todo)))
        self._run_problems(stage, todo, finished)
        hidden = list(make_hidden_cases(self.request.caller_spec, checked))
        for number, (words, spec, case) in enumerate((*corners, *hidden)):
            self.request.progress(f"numbers: {words}")
            try:
                stage.rows += [{**row, "case": f"{case}; {words}"} for row in check_case(self.program, checked, spec, case)]
            except CuirError as error:
                explanation = ": at a corner, or at a tie, value and derivative are PyTorch's" if number < len(corners) else ""
                raise add_note(error, f"found with {words}{explanation}") from None
        self.cover.run(self.request.progress)
        stage.rows += [dict(row) for row in self.cover.rows]
        branches = make_branch_draws(checked, self.spec, self.observed, self.cases, self.request.level)
        self._run_problems(stage, [(checked, d) for d in branches], ())
        noisy = self._repeat_with_noise()
        self.contractions = self._repeat_with_contraction()
        stage.reason = self._describe(stage, len(todo), [w for w, _, _ in corners], [w for w, _, _ in hidden], noisy)
        require_compared(checked, self.spec, stage.rows)

    def _list_problems(self, more: Sequence[AnyCase]) -> Todo:
        """List the problems of the kernel, and of the kernel with other consts."""
        level, checked = self.request.level, self.checked
        self.cases = [*make_number_cases(checked, self.spec, self.marks, level), *more, *make_user_cases(checked, self.spec, level)]
        self.cases += [*make_rounded_size_cases(checked, self.spec, level), *make_narrow_count_cases(checked, self.spec)]
        if level == "full" and isinstance(self.spec, FunctionSpecification) and (sums := find_accumulated(checked)):
            self.cases += make_underflow_draws(checked, self.spec, sums)
        todo = [(checked, c) for c in self.cases]
        for variant in self.besides:
            todo += [(variant, c) for c in make_number_cases(variant, self.spec, self.marks, "quick")]
        return todo

    def _run_problem(self, number: int, kernel: Checked, case: AnyCase, outputs: Outputs | None = None) -> list[dict[str, object]]:
        """Run a problem on a grid chosen by its number, and judge its numbers; return rows.

        outputs: of its run.
        """
        if number in WATCHED_ANEW:
            self.observed.narrow()
        columns = {"consts": self._describe_consts(kernel)} if self.varied else {}
        finished = None if outputs is None else FinishedRun(self.problems[number], *outputs)
        rows = check_case(self.program, kernel, self.spec, case, grid=_choose_grid(number, case), finished=finished)
        return [{**columns, **row} for row in rows]

    def _run_alone(self, number: int, kernel: Checked, case: AnyCase) -> Outputs:
        if number in WATCHED_ANEW:
            self.observed.narrow()
        problem = self.problems[number]
        report = run(kernel, problem.arguments(), grid=_choose_grid(number, case), undefined=problem.undefined)
        return problem.outputs, report.grid

    def _run_problems(self, stage: Stage, todo: Todo, finished: Sequence[Finished]) -> None:
        skipped_error: CuirError | None = None  # of a skipped problem
        for number, ((kernel, case), result) in enumerate(itertools.zip_longest(todo, finished)):
            share = PROBLEMS_SHARE * number / len(todo)
            self.request.progress(ProgressMessage(f"numbers: problem {number + 1} of {len(todo)}, {case.name}", share))
            try:
                stage.rows += result if isinstance(result, list) else self._run_problem(number, kernel, case, result)
            except CuirError as error:
                is_skipped = is_user_case(case) and error.diagnostics[0].code in LEFT_OUT
                if is_skipped or is_too_large(kernel, case, error):
                    self.remaining.append(case)
                    skipped_error = skipped_error or error
                    continue
                grid = _choose_grid(number, case)
                reported = shrink_error(self.program, kernel, self.spec, case, error, grid=grid) if self.request.shrink else error
                options = [f"-c {n}={v}" for n, v in kernel.consts.items() if v != self.checked.consts.get(n)]
                raise add_note(reported, f"found with {' '.join(options)}") if options else reported from None
        if skipped_error is not None and not stage.rows:
            raise skipped_error

    def _repeat_with_noise(self) -> int:
        """Run some problems again with noise; return their number."""
        repeated = choose_perturbed(self.checked, self._list_repeatable(), self.request.level)
        for case in repeated:
            self.request.progress(f"numbers: once more with noise, {case.name}")
            check_perturbed(self.checked, partial(check_case, self.program, self.checked, self.spec, case))
        return len(repeated)

    def _repeat_with_contraction(self) -> int:
        """Run some problems again with products and sums rounded once; return their number."""
        cases = choose_contraction_cases(self.checked, self._list_repeatable(), self.request.level)
        for case in cases:
            self.request.progress(f"numbers: once more with contracted products, {case.name}")
            check_contraction(self.checked, partial(check_case, self.program, self.checked, self.spec, case))
        return len(cases)

    def _list_repeatable(self) -> list[AnyCase]:
        return [c for c in self.cases if not is_counted(c) and not is_user_case(c) and c not in self.remaining]

    def _describe(self, stage: Stage, problems: int, corners: Sequence[str], hidden: Sequence[str], noisy: int) -> str:
        worst, coverage = max((float(r["error / allowed"]) for r in stage.rows), default=0.0), self.cover.coverage
        words = [
            f"{problems} problems, the largest error is {worst:.2f} of what is allowed "
            f"({get_ratio(TORCH[choose_half_dtype(self.checked)])} x PyTorch's own, and the rounding of the output)"
        ]
        if corners:
            words.append(f"{len(corners)} more at corners of the score: {', '.join(corners)}")
        if hidden:
            words.append(f"{len(hidden)} more with {', '.join(hidden)}")
        words.append(self.cover.describe())
        if coverage.observed.conditions:
            words.append(str(report_coverage(self.checked, coverage)[0]))
        if self.varied:
            consts_texts = [self._describe_consts(k) for k in (self.checked, *self.besides)]
            words.append(f"with {consts_texts[0]}, and besides with {' and with '.join(consts_texts[1:])}")
        if noisy:
            words.append(f"{noisy} of them once more, with what is not exact varied within its bounds")
        if self.contractions:
            words.append(f"{self.contractions} of them once more, with each product and sum rounded once, as GPUs may do")
        if self.remaining:
            words.append(describe_left(self.remaining))
        words.append(describe_outside(stage.rows))
        if positive := list_made_positive(stage.rows):
            words.append(f"made positive where the function fails or gives more NaN for a negative value: {', '.join(positive)}")
        return "; ".join(w for w in words if w)

    def _describe_consts(self, kernel: Checked) -> str:
        return describe_consts({n: kernel.consts[n] for n in self.varied})


def _choose_grid(number: int, case: AnyCase) -> Grid | None:
    """Return the number of CTAs of a problem, by its number.

    Accumulated outputs are compared only for these.
    """
    return choose_grid(number) if is_counted(case) else NUMBER_GRIDS[number % len(NUMBER_GRIDS)]


__all__ = ["NumbersStage"]
