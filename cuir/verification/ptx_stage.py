"""The last question of a verdict: does the PTX of the lowered kernel do what the program does?

The kernel is compiled to PTX, and the machine for PTX executes it on a few problems. Its numbers are judged as those of
the interpreter are, NaN and infinities must be the interpreter's, and no rule of PTX may be broken.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from math import prod

import torch

from ..attn.verification.numeric import judge
from ..attn.verification.problems import Case
from ..checking.checked import Checked
from ..interp import run
from ..runtime.launchable import require_launchable
from ..spec.function_specification import AnySpecification, FunctionSpecification
from ..spec.specification import Specification
from ..syntax.nodes import Program
from ..text.diagnostics import CuirError, Diagnostic, Note
from ..text.phrases import ProgressMessage, count_noun
from .function_judge import check_function
from .inputs import FunctionLaunch, find_accumulated
from .lengths import convert_case
from .ptx_launches import RESIDENT, PtxKernel, compile_lowered
from .report import Stage
from .request import Progress
from .spec_dispatch import AnyCase, AnyLaunch, make_number_cases, make_schedule_cases, prepare_launch
from .values.cases import Draw
from .values.number_text import show_different

SCHEDULES = ("together", "random:1", "last")  # of the problem with most units of work
FURTHER = 3  # smaller problems, each under one schedule
FAULT = "the program is right in the interpreter: this is a fault of the lowering, or of the machine for PTX; please report it"


def ask_ptx(program: Program, checked: Checked, spec: AnySpecification, progress: Progress = lambda text: None) -> Stage:
    """Run the PTX of a kernel on a few problems; return the stage with its verdict.

    What cannot be asked is a failure too: U503, U504 without a compiler, O123 for what the machine does not know.
    """
    stage = Stage("ptx", "the PTX of the lowered kernel, executed, against the interpreter", "passed", "")
    begin, case = time.perf_counter(), None
    try:
        progress("ptx: nvcc compiles the lowered kernel")
        kernel = compile_lowered(require_launchable(checked))
        problems = list(choose_ptx_problems(checked, spec))
        for number, (case, schedule) in enumerate(problems):
            progress(ProgressMessage(f"ptx: {case}, schedule {schedule}", number / len(problems)))
            check_ptx_case(program, kernel, spec, case, schedule)
        runs, lanes = count_noun(len(problems), "run"), f"{kernel.lanes / 1e6:.1f} million instructions of threads"
        stage.reason = f"{runs}, {lanes}; {kernel.coverage:.0%} of the code ran"
    except CuirError as error:
        stage.verdict, stage.reason = "failed", error.diagnostics[0].message
        stage.diagnostics = tuple(_explain(d, case) for d in error.diagnostics)
    stage.seconds = time.perf_counter() - begin
    return stage


def choose_ptx_problems(checked: Checked, spec: AnySpecification) -> Iterator[tuple[AnyCase, str]]:
    """Yield problems with a schedule each: the first that schedules are tried on, and some small ones."""
    first = make_schedule_cases(checked, spec)[0]
    for schedule in SCHEDULES:
        yield first, schedule
    smaller = [c for c in make_number_cases(checked, spec, [], "quick") if _count_work(c) <= _count_work(first)]
    step = max(1, len(smaller) // FURTHER)
    for seed, case in enumerate(smaller[::step][:FURTHER]):
        yield case, f"random:{seed + 2}"


def _count_work(case: AnyCase) -> int:
    """Return the product of a problem's lengths."""
    if isinstance(case, Draw):
        return prod(max(1, n) for n in case.sizes.values())
    lengths = case.lengths
    return lengths.B * lengths.H * max(1, lengths.M) * max(1, lengths.N)


def check_ptx_case(program: Program, kernel: PtxKernel, spec: AnySpecification, case: AnyCase, schedule: str) -> None:
    """Judge one problem as `judge_ptx_case` does, and require the interpreter's NaN and infinities, and its integers.

    Raises CuirError: V301, V302, V402, and what the machine finds.
    """
    checked = kernel.cuda.checked
    problem = judge_ptx_case(program, kernel, spec, case, schedule)
    interpreted = problem.fresh()
    run(checked, interpreted.arguments(), undefined=interpreted.undefined)
    _require_same_special(checked, problem, interpreted)


def judge_ptx_case(
    program: Program, kernel: PtxKernel, spec: AnySpecification, case: AnyCase, schedule: str, resident: int = RESIDENT
) -> AnyLaunch:
    """Run one problem on so many CTAs and judge what the kernel wrote, without the interpreter; return the launch.

    Raises CuirError: V301, V302, and what the machine finds.
    """
    checked = kernel.cuda.checked
    if isinstance(spec, FunctionSpecification) and isinstance(case, Case):  # lengths that the schedules need
        case = convert_case(checked, spec, case)
    problem = prepare_launch(program, checked, spec, case, poison=True)

    def execute(launched: AnyLaunch) -> None:
        kernel.launch(launched.arguments(), schedule, resident)

    if isinstance(problem, FunctionLaunch):
        assert isinstance(spec, FunctionSpecification) and isinstance(case, Draw)
        check_function(checked, spec, problem, case, execute)
    else:
        execute(problem)
        assert isinstance(spec, Specification) and isinstance(case, Case)
        judge(problem, spec, case, checked.origin.span)
    return problem


def _require_same_special(checked: Checked, problem: AnyLaunch, interpreted: AnyLaunch) -> None:
    """Require the interpreter's NaN and infinities, and its integers. Raises CuirError V402."""
    for name, x in problem.outputs.items():
        y = interpreted.outputs[name]
        differs = x != y
        if x.is_floating_point():
            a, b = x.double(), y.double()
            differs = (a.isfinite() != b.isfinite()) | (~a.isfinite() & ~b.isfinite() & (a != b) & ~(a.isnan() & b.isnan()))
        elif name in find_accumulated(checked):
            continue
        if differs.any():
            index = torch.nonzero(differs)[0].tolist()
            compiled_text, interpreted_text = show_different(x[tuple(index)].item(), y[tuple(index)].item())
            message = f"{name}{index} is {compiled_text} below the lowering, {interpreted_text} in the interpreter; {int(differs.sum())} such elements"
            raise CuirError.of("V402", message, checked.origin.span)


def _explain(d: Diagnostic, case: AnyCase | None) -> Diagnostic:
    """Add the problem to a finding, and that the program itself is right."""
    if case is None or d.code[0] in "OUX":
        return d
    told = any(str(case) in n.message for n in d.notes)
    return replace(d, notes=(*d.notes, *(() if told else (Note(f"in the case {case}"),)), Note(FAULT)))
