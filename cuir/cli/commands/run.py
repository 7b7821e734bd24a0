"""Command `run`: a kernel on random tensors, in the interpreter or on a GPU."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from ...text.diagnostics import CuirError
from ..completion import complete_program, complete_words
from ..options import (
    EXPLORATION,
    Budget,
    Consts,
    Json,
    KernelName,
    Replay,
    Seconds,
    Written,
    list_given_options,
    not_beside,
    one_of,
    only_with,
)
from ..output import print_json
from ..process_setup import configure_process


def run(
    context: typer.Context,
    file: Annotated[
        str, typer.Argument(help="a .cuir or .py file, or a name out of `cuir corpus`", autocompletion=complete_program, show_default=False)
    ],
    kernel: KernelName = None,
    const: Consts = None,
    dim: Annotated[
        list[str] | None, typer.Option("-d", "--dim", metavar="DIMS", help="the length of a dim: -d B=1,H=4,M=100", show_default=False)
    ] = None,
    scalar: Annotated[
        list[str] | None,
        typer.Option("-s", "--scalar", metavar="NAME=VALUE", help="a scalar of the kernel: -s scale=0.125", show_default=False),
    ] = None,
    schedule: Annotated[
        str,
        typer.Option(
            "--schedule", help="in_order, random:SEED, adversarial:SEED, adversarial:POLICY, or all of those that verification tries"
        ),
    ] = "in_order",
    grid: Annotated[int | None, typer.Option("--grid", metavar="N", help="how many CTAs (or clusters) run", show_default=False)] = None,
    data_seed: Annotated[int, typer.Option("--data-seed", min=0, max=2**63 - 1, metavar="N", help="seed of the random tensors")] = 0,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE", help="write a trace: .json (Perfetto, Chrome), .png, .svg or .html", show_default=False),
    ] = None,
    on: Annotated[
        str,
        typer.Option(
            "--on", metavar="WHERE", help="interpreter, or gpu: the compiled kernel", autocompletion=complete_words("interpreter", "gpu")
        ),
    ] = "interpreter",
    loader: Annotated[
        str,
        typer.Option(
            "--loader",
            help="on a GPU: driver, or pycuda, by which the kernel is compiled and launched",
            autocompletion=complete_words("driver", "pycuda"),
        ),
    ] = "driver",
    exhaustive: Annotated[
        bool,
        typer.Option(
            "--exhaustive",
            help="explore every schedule, without the data, of the launch that -d gives, or of small ones",
            rich_help_panel=EXPLORATION,
        ),
    ] = False,
    seconds: Seconds = 600,
    out: Written = None,
    replay: Replay = None,
    budget: Budget = 60,
    as_json: Json = False,
) -> int:
    """Run a kernel on random tensors: in the interpreter, which finds races and deadlocks, or on a GPU.

    Examples:
        cuir run gemm -d M=128,N=128,K=64
        cuir run gemm -d M=128,N=128,K=64 --schedule random:7 --trace trace.json
        cuir run gemm --exhaustive
        cuir run gemm -d M=4096,N=4096,K=4096 --on gpu
    """
    from ...interp.step_budget import limit_seconds
    from ..command_inputs import check_output_path, read_numbers, read_program, read_program_consts
    from ..kernel_run import RunOptions, replayable, run_kernel

    configure_process()
    only_with(context, "exhaustive", "seconds", "out")
    one_of(context, "exhaustive", "replay")
    not_beside(context, "exhaustive", "explores every schedule, without the data", "schedule", "trace", "on", "loader")
    not_beside(context, "replay", "runs the schedule of the file in the interpreter", "schedule", "trace", "on", "loader")
    not_beside(context, "loader", "launches the compiled kernel, with a grid and an order of its own", "schedule", "grid", "trace")
    if on == "gpu":
        not_beside(context, "on", "is gpu: the compiled kernel has a grid and an order of its own", "schedule", "grid", "trace")
    elif on == "interpreter" and list_given_options(context, "loader"):
        not_beside(context, "on", "runs no compiled kernel", "loader")
        on = "gpu"
    for path in filter(None, (trace, out)):
        check_output_path(path, [file, replay])
    if trace is not None:
        from ...interp.trace_files import require_trace_format

        require_trace_format(trace)
    program = read_program(file)
    if replay is not None or exhaustive:
        from ..schedule_exploration import ExplorationOptions, LaunchWords, explore_or_replay

        words = LaunchWords(kernel, file, const or (), read_numbers(dim or (), "-d"), read_numbers(scalar or (), "-s"), grid, data_seed)
        return explore_or_replay(program, words, replay, ExplorationOptions(seconds, out, as_json))
    typed = [f"{option} {value}" for name, value in (("on", on), ("loader", loader)) for option in list_given_options(context, name)]
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
                RunOptions(schedule, grid, data_seed, trace, on, loader, " ".join(typed), command),
            )
    except CuirError as error:
        raise replayable(error, command) from error
    by_loader = ["--loader", loader] if list_given_options(context, "loader") else []
    how = ["--on", "gpu", *by_loader] if on == "gpu" else ["--schedule", schedule, *(["--grid", str(grid)] if grid is not None else [])]
    result["replay"] = shlex.join([*command, *how])
    if as_json:
        print_json({"ok": True, "diagnostics": [], **result})
        return 0
    from ..job_views import print_run

    print_run(result)
    return 0
