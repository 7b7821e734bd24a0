"""Command `cuda run`: a host program on a stand-in for CUDA's runtime, its launches in the machine for PTX."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from ...text.diagnostics import CuirError
from ..completion import complete_cuda_or_ptx
from ..live_view import ProgressLine
from ..options import CudaArch, IncludeFolders, Json, Macros
from ..output import exit_code
from ..process_setup import Interrupted, configure_process
from .cuda_check import print_report


def cuda_run(
    program: Annotated[
        str,
        typer.Argument(
            help="a program built by nvcc -cudart shared, or its .cu file with a `main`",
            autocompletion=complete_cuda_or_ptx,
            show_default=False,
        ),
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGS", help="of the program; behind -- if they begin with a dash", show_default=False)
    ] = None,
    schedule: Annotated[
        str, typer.Option("--schedule", metavar="NAME", help="order of warps and copies: together, first, last or random:SEED")
    ] = "together",
    memory: Annotated[int, typer.Option("--memory", min=2, metavar="MIB", help="device memory")] = 1024,
    arch: CudaArch = None,
    include: IncludeFolders = None,
    define: Macros = None,
    as_json: Json = False,
) -> int:
    """Run a CUDA program of your own on the CPU, unchanged: each of its launches is checked as `cuda check` does.

    Calls of CUDA's runtime go to a stand-in: memory, copies, streams, events, launches.

    Examples:
        cuir cuda run main.cu
        cuir cuda run ./a.out 4096 --schedule random:3
    """
    from ...ops.limits import list_architectures
    from ...ptx.launch.stand_in import compile_host_program, require_shared_runtime
    from ...ptx.machine.lane_machine import SCHEDULES
    from ...verification.cuda_runs import RunLedger
    from ...verification.host_programs import HostProgram
    from ..command_inputs import read_defines

    configure_process()
    path = Path(program)
    if not path.is_file():
        raise CuirError.of("U201", f"no file `{path}`", hint="a program, or a .cu file; the path is relative to the current folder")
    if schedule.partition(":")[0] not in SCHEDULES:
        raise CuirError.of("U111", f"no such schedule: {schedule!r}", None, "together, first, last, random:SEED")
    flags = [word for folder in include or () for word in ("-I", str(folder))]
    flags += [f"-D{name}={value}" if value else f"-D{name}" for name, value in read_defines(define or ()).items()]
    ledger = RunLedger(f"cuir cuda run {program} --schedule {{}}")
    step, code = None, 0
    with tempfile.TemporaryDirectory() as folder:
        if path.suffix == ".cu":
            built = compile_host_program(path, Path(folder), arch or list_architectures("wgmma")[0], flags)
        else:
            built = path
            require_shared_runtime(path)
        try:
            with ProgressLine(f"{program} on the stand-in for CUDA's runtime", quiet=as_json) as line:
                code = HostProgram(built, schedule, ledger, memory << 20, line.update).run(arguments or (), to_stderr=as_json)
        except Interrupted as stop:
            step = stop.step
    report = ledger.make_report((schedule,) if step is None and not ledger.findings else ())
    print_report(report, path, as_json, step, {"exit_code": code})
    if step is not None:
        raise Interrupted(step=step, told=True)
    return exit_code(report.findings) if not report.ok else int(code != 0)
