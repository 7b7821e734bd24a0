"""Command `verify`: is a program well-formed, right under many schedules, and what it should be?"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ...text.diagnostics import CuirError
from ...text.phrases import ProgressMessage
from ..command_defaults import EXPERT
from ..completion import complete_specification, complete_target, complete_words
from ..options import (
    EXPLORATION,
    TASKS,
    Budget,
    Consts,
    GivenDtype,
    HeadDim,
    HtmlPage,
    Json,
    KeptTasks,
    KernelName,
    Level,
    On,
    Origin,
    Parameters,
    Replay,
    Seconds,
    Written,
    list_given_options,
    not_beside,
    one_of,
    only_with,
    read_level,
)
from ..output import exit_code, print_errors, print_json
from ..process_setup import configure_process

PROBLEM, GPU = "One problem", "On a GPU"  # panels of the help


def verify(
    context: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            help="a variant, which is transferred first; or a program, with --against", autocompletion=complete_target, show_default=False
        ),
    ],
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            "--spec",
            metavar="SPEC",
            help="what a program should compute: a variant, or FILE.py with a function `reference` (known for programs of the corpus)",
            autocompletion=complete_specification,
            show_default=False,
        ),
    ] = None,
    param: Parameters = None,
    origin: Origin = EXPERT,
    kernel: KernelName = None,
    dtype: GivenDtype = None,
    head_dim: HeadDim = None,
    const: Consts = None,
    level: Level = "quick",
    quick: Annotated[bool, typer.Option("--quick", help="the same as --level quick", hidden=True)] = False,
    schedules: Annotated[
        int | None,
        typer.Option(
            "--schedules", min=0, metavar="N", help="run at least so many seeded schedules", show_default="15, or 72 at level full"
        ),
    ] = None,
    exhaustive: Annotated[
        bool,
        typer.Option("--exhaustive", help="explore every schedule of small launches, instead of trying some", rich_help_panel=EXPLORATION),
    ] = False,
    tiles: Annotated[
        int, typer.Option("--tiles", min=1, metavar="N", help="with --exhaustive: tiles of a CTA", rich_help_panel=EXPLORATION)
    ] = 2,
    blocks: Annotated[
        int, typer.Option("--blocks", min=1, metavar="N", help="with --exhaustive: key blocks of a tile", rich_help_panel=EXPLORATION)
    ] = 4,
    gpu: Annotated[
        bool, typer.Option("--gpu", help="then run the compiled kernel on a GPU, against the interpreter", rich_help_panel=GPU)
    ] = False,
    ptx: Annotated[bool, typer.Option("--ptx", help="then execute the PTX of the lowered kernel, on the CPU; needs nvcc")] = False,
    order: Annotated[
        bool, typer.Option("--order-of-sums", help="then ask whether the sequence alone decides the order in which keys are added up")
    ] = False,
    sanitizer: Annotated[
        str | None,
        typer.Option(
            "--sanitizer",
            metavar="TOOL",
            help="with --gpu: memcheck or racecheck of compute-sanitizer",
            autocompletion=complete_words("memcheck", "racecheck"),
            show_default=False,
            rich_help_panel=GPU,
        ),
    ] = None,
    seconds: Seconds = 600,
    out: Written = None,
    replay: Replay = None,
    problem: Annotated[
        list[str] | None,
        typer.Option(
            "--problem",
            metavar="DIMS",
            help="run and judge one problem: --problem B=1,H=2,HK=1,M=100,N=64",
            show_default=False,
            rich_help_panel=PROBLEM,
        ),
    ] = None,
    inputs: Annotated[
        str, typer.Option("--inputs", metavar="KIND", help="with --problem: how inputs are drawn", rich_help_panel=PROBLEM)
    ] = "normal",
    data_seed: Annotated[
        int,
        typer.Option("--data-seed", min=0, max=2**63 - 1, metavar="N", help="with --problem: seed of the inputs", rich_help_panel=PROBLEM),
    ] = 0,
    schedule: Annotated[
        str,
        typer.Option(
            "--schedule", help="with --problem: in_order, random:SEED, adversarial:SEED or adversarial:POLICY", rich_help_panel=PROBLEM
        ),
    ] = "in_order",
    grid: Annotated[
        int | None,
        typer.Option(
            "--grid", metavar="N", help="with --problem: how many CTAs (or clusters) run", show_default=False, rich_help_panel=PROBLEM
        ),
    ] = None,
    budget: Budget = 20,
    jobs: Annotated[int, typer.Option("--jobs", min=1, metavar="N", help="with --on local: processes", rich_help_panel=TASKS)] = 1,
    on: On = "local",
    journal: KeptTasks = None,
    page: HtmlPage = None,
    as_json: Json = False,
) -> int:
    """Test a program: is it well-formed, right, and the variant it should be?

    Right means under the schedules tried (more than 30 runs).

    Examples:
        cuir verify prefix_lm
        cuir verify mine.cuir --against mine.py --level full
        cuir verify gemm --exhaustive
    """
    import corpus

    from ...bridging import Step
    from ...checking.checker import pick_kernel
    from ...checking.const_defaults import parenthesise_consts, select_main_consts
    from ...interp.step_budget import limit_seconds
    from ...spec.user_calls import limit_calls
    from ...syntax.types import DType
    from ...verification import verify as run_verify
    from ..command_inputs import KernelWords, check_output_path, programs, read_consts, read_program
    from ..gpu_stage import gpu_stage, read_verified
    from ..job_views import Steps, print_verification
    from ..one_problem import add_commands, run_problem
    from ..process_setup import goes_on_from
    from ..task_places import TaskWords, use_executor

    configure_process()
    only_with(context, "exhaustive", "tiles", "blocks", "seconds", "out")
    only_with(context, "problem", "inputs", "data_seed", "schedule", "grid")
    one_of(context, "problem", "exhaustive", "replay", "gpu")
    for job, why in (
        ("problem", "runs one problem once"),
        ("exhaustive", "explores every schedule"),
        ("replay", "runs the schedule of the file"),
    ):
        places = () if job == "exhaustive" else ("jobs", "on", "journal")
        not_beside(context, job, why, "schedules", "level", "quick", "ptx", "order", *places)
    not_beside(context, "problem", "prints its rows", "page")
    for written in filter(None, (out, page, journal)):
        check_output_path(written, [target])
    effort = read_level(level, quick)
    is_program = against is not None or target.endswith(".cuir") or (target in programs() and target not in corpus.variants())
    if against is not None and target in corpus.variants() and target not in programs() and not Path(target).exists():
        raise CuirError.of(
            "U100",
            f"`{target}` is a variant, which is transferred and verified against itself",
            hint="leave out --against, or name a program",
        )
    if is_program and list_given_options(context, "origin"):
        raise CuirError.of("U100", f"--origin is what a variant is transferred to, and `{target}` is a program", hint="leave out --origin")
    with limit_calls(budget):
        words = KernelWords(kernel, dtype, head_dim, const or ())
        verified = read_verified(target, against, tuple(param or ()), origin, words, effort, is_program)
        specification, program, kernel, consts = verified.specification, verified.program, verified.kernel, verified.consts
    tool = _gpu_wanted(gpu, sanitizer)
    if ptx:
        from ...runtime.nvcc import find_nvcc

        find_nvcc()
    if problem is not None:
        with limit_seconds(budget), limit_calls(budget):
            return run_problem(verified, problem, inputs, data_seed, schedule, grid, as_json)
    title = f"{target} against {specification.name}{parenthesise_consts(select_main_consts(pick_kernel(program, kernel), consts))}"
    if replay is not None or exhaustive:
        from ...attn.verification.problems import is_attention
        from ..schedule_exploration import ExplorationOptions, SmallLaunches, explore_variant, replay_variant

        if replay is not None:
            named = {*read_consts(const or ()), *(["D"] if head_dim is not None else [])}
            named |= {n for n, value in consts.items() if dtype is not None and isinstance(value, DType)}
            return replay_variant(program, kernel, specification, {n: consts[n] for n in named}, replay, as_json, page)
        checked = verified.checked
        if not is_attention(checked.origin):
            for option in list_given_options(context, "tiles", "blocks"):
                message = f"{option} counts tiles and key blocks of an attention, and `{checked.name}` is of none"
                raise CuirError.of("U100", message, hint=f"leave out {option}: its launches go round every ring twice")
        tasks = TaskWords(on, jobs, journal)
        return explore_variant(title, verified, SmallLaunches(tiles, blocks), ExplorationOptions(seconds, out, as_json, page, tasks))
    step = Step("verify")
    with goes_on_from(journal), Steps(title, quiet=as_json) as steps, use_executor(on, jobs, steps) as executor:

        def tell(message: str) -> None:
            step.detail = message
            steps(step)

        tell("")
        plan = None
        if TaskWords(on, jobs, journal).wanted:
            from ..verification_tasks import make_plan

            plan = make_plan(
                verified, schedules, budget, executor, journal, lambda n, of: tell(ProgressMessage(f"{n} of {of} tasks", n / of))
            )
        report = run_verify(
            program, specification, kernel=kernel, consts=consts, level=effort, progress=tell, seeded=schedules, budget=budget, tasks=plan
        )
        if gpu and report.ok:
            report.stages.append(gpu_stage(verified, sanitizer, tell, sanitizer=tool))
        if ptx and report.ok:
            from ...verification.ptx_stage import ask_ptx

            with limit_seconds(budget), limit_calls(budget):
                report.stages.append(ask_ptx(program, verified.checked, specification, tell))
        if order and report.ok:
            from ...attn.kernels.split_kv import join_shares
            from ...verification.sum_order import ask_order

            with limit_seconds(budget), limit_calls(budget):
                report.stages.append(ask_order(verified.checked, tell, partial(join_shares, interpreted=True)))
        step.status, step.detail = "done" if report.ok else "failed", "" if report.ok else report.summary()
        step.seconds = sum(stage.seconds for stage in report.stages)
        steps(step)
    replayed = [s for s in report.stages if s.name not in ("ptx", "order of sums")]  # whose launches are no problems of --problem
    report.stages[:] = [
        replace(s, diagnostics=add_commands(s.diagnostics, verified, consts)) if s in replayed else s for s in report.stages
    ]
    diagnostics = report.diagnostics
    if page is not None:
        from ...checking.checker import check
        from ...pages.page import write_page
        from ...pages.verification_page import render_verification_page

        well_formed = check(program, kernel, consts) if report.stages[0].verdict == "passed" else None
        source = None if is_program else read_program(verified.origin)
        write_page(page, render_verification_page(report, program, well_formed, specification, source))
    if as_json:
        print_json({"ok": report.ok, "diagnostics": [d.as_json() for d in diagnostics], "verification": report.as_json()})
    else:
        print_verification(report)
        print_errors(diagnostics, False)
    return 0 if report.ok else exit_code(diagnostics)


def _gpu_wanted(gpu: bool, sanitizer: str | None) -> str:
    """Check that a run on the GPU is possible; return the sanitizer's path, "" without --sanitizer.

    Raises CuirError for what is missing, before anything runs.
    """
    from ...performance.timing.gpu import require_gpu
    from ..gpu_stage import find_sanitizer

    if sanitizer is not None and not gpu:
        raise CuirError.of("U100", "--sanitizer is for a run on a GPU", hint="--gpu --sanitizer memcheck")
    if not gpu:
        return ""
    require_gpu("leave out --gpu to verify on the CPU alone")
    return find_sanitizer(sanitizer) if sanitizer is not None else ""
