"""Commands that run things: verify, run, bridge; their options and output."""

from __future__ import annotations

import gc
import os
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from ..text.diagnostics import CuirError
from .command_defaults import EXPERT
from .completion import (
    complete_dtype,
    complete_kernel,
    complete_level,
    complete_program,
    complete_specification,
    complete_target,
    complete_variant,
)
from .option_conflicts import asked_for, not_beside, one_of, only_with
from .output import exit_code, print_errors, print_json

Variant = Annotated[
    str,
    typer.Argument(help="a variant of `cuir corpus`, or your own as file.py:function", autocompletion=complete_variant, show_default=False),
]
Parameters = Annotated[
    list[str] | None, typer.Option("-p", "--param", help="a parameter of the variant: -p prefix=256", show_default=False)
]
KernelName = Annotated[
    str | None,
    typer.Option("-k", "--kernel", help="the kernel, if the file holds several", autocompletion=complete_kernel, show_default=False),
]
Consts = Annotated[list[str] | None, typer.Option("-c", "--const", help="a const parameter: -c BM=128", show_default=False)]
Dtype = Annotated[str, typer.Option("--dtype", help="f16, bf16 or f32", autocompletion=complete_dtype)]
GivenDtype = Annotated[
    str | None, typer.Option("--dtype", help="f16, bf16 or f32", autocompletion=complete_dtype, show_default="the file's, else f16")
]
HeadDim = Annotated[int | None, typer.Option("--head-dim", help="1 to 256", show_default="the file's, else 128")]
Level = Annotated[str, typer.Option("--level", help="how much to try: quick or full", autocompletion=complete_level)]
Origin = Annotated[
    str,
    typer.Option("--origin", help="the expert kernel to adapt: a file, or a name out of `cuir corpus`", autocompletion=complete_program),
]
Json = Annotated[bool, typer.Option("--json", help="print one JSON object and nothing else on stdout")]
Replay = Annotated[
    Path | None, typer.Option("--replay", help="run the schedule in this file, which --exhaustive wrote, with data", show_default=False)
]
Written = Annotated[
    Path | None, typer.Option("--out", help="with --exhaustive: write the shortest failing schedule found there", show_default=False)
]
Budget = Annotated[float, typer.Option("--budget", min=0.001, help="seconds of processor time that one run in the interpreter may take")]
Seconds = Annotated[float, typer.Option("--seconds", min=1, help="with --exhaustive: give up on a launch after so many, deciding nothing")]


def _one_thread() -> None:
    """Configure the process for the interpreter.

    Its operations are small: threads cost more than they bring unless OMP_NUM_THREADS is set, and so do frequent
    garbage collections. Functions of a user that do not end are given up.
    """
    import torch

    from ..spec import user_calls
    from .giving_up import give_up

    user_calls.on_stuck = give_up
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    gc.set_threshold(50_000, 20, 100)


def _level(level: str, quick: bool = False) -> Any:
    """Check the level of verification. Raises CuirError U100."""
    if quick and level != "quick":
        raise CuirError.of("U100", f"--quick says --level quick, found --level {level} beside it")
    if level not in ("quick", "full"):
        raise CuirError.of("U100", f"--level is quick or full, found `{level}`")
    return level


def bridge(
    variant: Variant,
    param: Parameters = None,
    origin: Origin = EXPERT,
    kernel: KernelName = None,
    dtype: GivenDtype = None,
    head_dim: HeadDim = None,
    const: Consts = None,
    level: Level = "quick",
    out: Annotated[
        Path | None, typer.Option("--out", help="folder for programs, reports, CUDA and cubin (left out: out/VARIANT)", show_default=False)
    ] = None,
    compile: Annotated[
        bool | None,
        typer.Option("--compile/--no-compile", help="demand the cubin, or leave it out (left out: if nvcc is there)", show_default=False),
    ] = None,
    run: Annotated[
        bool | None,
        typer.Option("--run/--no-run", help="demand a run on a GPU, or leave it out (left out: if one is there)", show_default=False),
    ] = None,
    as_json: Json = False,
) -> int:
    """The main job: adapt an expert kernel to a variant, verify it, compile it, and time it if a GPU is there."""
    from ..bridging import bridge as run_bridge
    from ..checking.const_defaults import parenthesise_consts, select_main_consts
    from .command_inputs import output_folder, read_origin, read_variant
    from .progress_bar import Steps
    from .report_view import print_bridge

    _one_thread()
    effort = _level(level)
    specification = read_variant(variant, param or ())
    origin, program, picked, consts = read_origin(origin, kernel, dtype, head_dim, const or ())
    folder = output_folder(out if out is not None else Path("out") / specification.name, specification.name, origin)
    demand: dict[bool | None, Any] = {None: "auto", True: "yes", False: "no"}
    with Steps(f"{origin} -> {specification.name}{parenthesise_consts(select_main_consts(picked, consts))}", quiet=as_json) as steps:
        report = run_bridge(
            specification,
            program,
            kernel=kernel,
            consts=consts,
            level=effort,
            out=folder,
            compile=demand[compile],
            run=demand[run],
            progress=steps,
        )
    if as_json:
        print_json(report.as_json())
    else:
        print_bridge(report, folder)
        print_errors(report.diagnostics, False)
    return 0 if report.ok else exit_code(report.diagnostics)


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
            help="what a program should compute: a variant, or FILE.py with a function `reference` or only one (known for the corpus' programs)",
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
    quick: Annotated[bool, typer.Option("--quick", help="the same as --level quick")] = False,
    schedules: Annotated[
        int | None,
        typer.Option("--schedules", min=0, help="at least so many seeded schedules (left out: 15 or 72, by level)", show_default=False),
    ] = None,
    exhaustive: Annotated[
        bool, typer.Option("--exhaustive", help="explore every schedule of small launches, instead of trying some")
    ] = False,
    tiles: Annotated[int, typer.Option("--tiles", min=1, help="with --exhaustive: tiles of a CTA")] = 2,
    blocks: Annotated[int, typer.Option("--blocks", min=1, help="with --exhaustive: key blocks of a tile")] = 4,
    gpu: Annotated[bool, typer.Option("--gpu", help="then run the compiled kernel on a GPU, against the interpreter")] = False,
    sanitizer: Annotated[
        str | None, typer.Option("--sanitizer", help="with --gpu: memcheck or racecheck of compute-sanitizer", show_default=False)
    ] = None,
    seconds: Seconds = 600,
    out: Written = None,
    replay: Replay = None,
    problem: Annotated[
        list[str] | None, typer.Option("--problem", help="run and judge one problem: --problem B=1,H=2,HK=1,M=100,N=64", show_default=False)
    ] = None,
    inputs: Annotated[str, typer.Option("--inputs", help="with --problem: how inputs are drawn")] = "normal",
    data_seed: Annotated[int, typer.Option("--data-seed", min=0, max=2**63 - 1, help="with --problem: of the inputs")] = 0,
    schedule: Annotated[
        str, typer.Option("--schedule", help="with --problem: in_order, random:SEED, adversarial:SEED or adversarial:POLICY")
    ] = "in_order",
    grid: Annotated[int | None, typer.Option("--grid", help="with --problem: how many CTAs (or clusters) run", show_default=False)] = None,
    budget: Budget = 20,
    as_json: Json = False,
) -> int:
    """Is a program well-formed, right under the schedules tried (more than 30 runs), and the variant it should be?"""
    import corpus

    from ..bridging import Step
    from ..checking.checker import pick_kernel
    from ..checking.const_defaults import parenthesise_consts, select_main_consts
    from ..interp.step_budget import limit_seconds
    from ..spec.user_calls import limit_calls
    from ..syntax.types import DType
    from ..verification import verify as run_verify
    from .command_inputs import kept, programs, read_consts
    from .one_problem import replayed, run_problem
    from .progress_bar import Steps
    from .report_view import print_verification
    from .verifying_gpu import gpu_stage, verified_of

    _one_thread()
    only_with(context, "exhaustive", "tiles", "blocks", "seconds", "out")
    only_with(context, "problem", "inputs", "data_seed", "schedule", "grid")
    one_of(context, "problem", "exhaustive", "replay", "gpu")
    for job, why in (
        ("problem", "runs one problem once"),
        ("exhaustive", "explores every schedule"),
        ("replay", "runs the schedule of the file"),
    ):
        not_beside(context, job, why, "schedules", "level", "quick")
    if out is not None:
        kept(out, [target])
    effort = _level(level, quick)
    is_program = against is not None or target.endswith(".cuir") or (target in programs() and target not in corpus.variants())
    if against is not None and target in corpus.variants() and target not in programs() and not Path(target).exists():
        raise CuirError.of(
            "U100",
            f"`{target}` is a variant, which is transferred and verified against itself",
            hint="leave out --against, or name a program",
        )
    if is_program and asked_for(context, "origin"):
        raise CuirError.of("U100", f"--origin is what a variant is transferred to, and `{target}` is a program", hint="leave out --origin")
    with limit_calls(budget):
        verified = verified_of(target, against, tuple(param or ()), origin, kernel, dtype, head_dim, const or (), effort, is_program)
        specification, program, kernel, consts = verified.specification, verified.program, verified.kernel, verified.consts
    tool = _gpu_wanted(gpu, sanitizer)
    if problem is not None:
        with limit_seconds(budget), limit_calls(budget):
            return run_problem(verified, problem, inputs, data_seed, schedule, grid, as_json)
    title = f"{target} against {specification.name}{parenthesise_consts(select_main_consts(pick_kernel(program, kernel), consts))}"
    if replay is not None or exhaustive:
        from ..checking.checker import check
        from ..verification.problems import is_attention
        from .exploring import explore_variant, replay_variant

        if replay is not None:
            named = {*read_consts(const or ()), *(["D"] if head_dim is not None else [])}
            named |= {n for n, value in consts.items() if dtype is not None and isinstance(value, DType)}
            return replay_variant(program, kernel, specification, {n: consts[n] for n in named}, replay, as_json)
        checked = check(program, kernel, consts)
        if not is_attention(checked.origin):
            for option in asked_for(context, "tiles", "blocks"):
                message = f"{option} counts tiles and key blocks of an attention, and `{checked.name}` is of none"
                raise CuirError.of("U100", message, hint=f"leave out {option}: its launches go round every ring twice")
        return explore_variant(title, program, checked, specification, tiles, blocks, seconds, out, as_json)
    step = Step("verify")
    with Steps(title, quiet=as_json) as steps:

        def tell(message: str) -> None:
            step.detail = message
            steps(step)

        tell("")
        report = run_verify(
            program, specification, kernel=kernel, consts=consts, level=effort, progress=tell, seeded=schedules, budget=budget
        )
        if gpu and report.ok:
            report.stages.append(gpu_stage(verified, sanitizer, tell, sanitizer=tool))
        step.status, step.detail = "done" if report.ok else "failed", "" if report.ok else report.summary()
        step.seconds = sum(stage.seconds for stage in report.stages)
        steps(step)
    diagnostics = replayed(report.diagnostics, verified, consts)
    if as_json:
        print_json({"ok": report.ok, "diagnostics": [d.as_json() for d in diagnostics], "verification": report.as_json()})
    else:
        print_verification(report)
        print_errors(diagnostics, False)
    return 0 if report.ok else exit_code(diagnostics)


def _gpu_wanted(gpu: bool, sanitizer: str | None) -> str:
    """Return the path of the sanitizer, "" without one.

    Raises CuirError for what is missing, before anything runs.
    """
    from ..performance.timing.gpu import require_gpu
    from .verifying_gpu import find_sanitizer

    if sanitizer is not None and not gpu:
        raise CuirError.of("U100", "--sanitizer is for a run on a GPU", hint="--gpu --sanitizer memcheck")
    if not gpu:
        return ""
    require_gpu("leave out --gpu to verify on the CPU alone")
    return find_sanitizer(sanitizer) if sanitizer is not None else ""


def run(
    context: typer.Context,
    file: Annotated[
        str, typer.Argument(help="a .cuir or .py file, or a name out of `cuir corpus`", autocompletion=complete_program, show_default=False)
    ],
    kernel: KernelName = None,
    const: Consts = None,
    dim: Annotated[list[str] | None, typer.Option("-d", "--dim", help="the length of a dim: -d B=1,H=4,M=100", show_default=False)] = None,
    scalar: Annotated[
        list[str] | None, typer.Option("-s", "--scalar", help="a scalar of the kernel: -s scale=0.125", show_default=False)
    ] = None,
    schedule: Annotated[
        str,
        typer.Option(
            "--schedule", help="in_order, random:SEED, adversarial:SEED, adversarial:POLICY, or all of those that verification tries"
        ),
    ] = "in_order",
    grid: Annotated[int | None, typer.Option("--grid", help="how many CTAs (or clusters) run", show_default=False)] = None,
    data_seed: Annotated[int, typer.Option("--data-seed", min=0, max=2**63 - 1, help="of the random tensors")] = 0,
    trace: Annotated[
        Path | None, typer.Option("--trace", help="write a trace there: .json (Perfetto, Chrome), .png, .svg or .html", show_default=False)
    ] = None,
    on: Annotated[str, typer.Option("--on", help="interpreter, or gpu: the compiled kernel")] = "interpreter",
    loader: Annotated[
        str, typer.Option("--loader", help="on a GPU: driver, or pycuda, by which the kernel is compiled and launched")
    ] = "driver",
    exhaustive: Annotated[
        bool, typer.Option("--exhaustive", help="explore every schedule, without the data, instead of running one")
    ] = False,
    seconds: Seconds = 600,
    out: Written = None,
    replay: Replay = None,
    budget: Budget = 60,
    as_json: Json = False,
) -> int:
    """Run a kernel on random tensors: in the interpreter, which finds races and deadlocks, or on a GPU."""
    from ..interp.step_budget import limit_seconds
    from .command_inputs import kept, read_numbers, read_program, read_program_consts
    from .run_command import replayable, run_kernel

    _one_thread()
    only_with(context, "exhaustive", "seconds", "out")
    one_of(context, "exhaustive", "replay")
    not_beside(context, "exhaustive", "explores every schedule, without the data", "schedule", "trace", "on", "loader")
    not_beside(context, "replay", "runs the schedule of the file in the interpreter", "schedule", "trace", "on", "loader")
    not_beside(context, "loader", "launches the compiled kernel, with a grid and an order of its own", "schedule", "grid", "trace")
    if on == "gpu":
        not_beside(context, "on", "is gpu: the compiled kernel has a grid and an order of its own", "schedule", "grid", "trace")
    elif on == "interpreter" and asked_for(context, "loader"):
        not_beside(context, "on", "runs no compiled kernel", "loader")
        on = "gpu"
    for path in filter(None, (trace, out)):
        kept(path, [file, replay])
    if trace is not None:
        from ..interp.trace_files import require_trace_format

        require_trace_format(trace)
    program = read_program(file)
    if replay is not None or exhaustive:
        from .exploring import explore_or_replay

        return explore_or_replay(
            program,
            kernel,
            file,
            const or (),
            read_numbers(dim or (), "-d"),
            read_numbers(scalar or (), "-s"),
            grid=grid,
            data_seed=data_seed,
            seconds=seconds,
            out=out,
            file=replay,
            as_json=as_json,
        )
    typed = [f"{option} {value}" for name, value in (("on", on), ("loader", loader)) for option in asked_for(context, name)]
    option_values = [
        ("-k", [kernel] if kernel else []),
        ("-c", const or []),
        ("-d", dim or []),
        ("-s", scalar or []),
        ("--data-seed", [str(data_seed)]),
    ]
    command = ["cuir", "run", file, *(word for option, values in option_values for v in values for word in (option, v))]
    picked, consts = read_program_consts(program, file, kernel, const or ())
    try:
        with limit_seconds(budget):
            result = run_kernel(
                program,
                picked.name,
                consts,
                read_numbers(dim or (), "-d"),
                read_numbers(scalar or (), "-s"),
                schedule=schedule,
                grid=grid,
                data_seed=data_seed,
                trace=trace,
                on=on,
                loader=loader,
                typed=" ".join(typed),
            )
    except CuirError as error:
        raise replayable(error, command) from error
    by_loader = ["--loader", loader] if asked_for(context, "loader") else []
    how = ["--on", "gpu", *by_loader] if on == "gpu" else ["--schedule", schedule, *(["--grid", str(grid)] if grid is not None else [])]
    result["replay"] = shlex.join([*command, *how])
    if as_json:
        print_json({"ok": True, "diagnostics": [], **result})
        return 0
    from .report_view import print_run

    print_run(result)
    return 0
