"""Command `cuda check`: a CUDA or PTX kernel in the machine for PTX, without a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...text.diagnostics import CuirError
from ..completion import complete_cuda_or_ptx, complete_python
from ..live_view import ProgressLine
from ..options import COMPILING, TASKS, CudaArch, IncludeFolders, Json, KeptTasks, Macros, On, not_beside, only_with
from ..output import exit_code, make_styled_text, print_errors, print_json, stderr, stdout
from ..process_setup import Interrupted, configure_process

if TYPE_CHECKING:
    from ...ptx.launch.kernel_launch import LoadedModule
    from ...verification.cuda_runs import CudaReport
    from ..cuda_tasks import CudaCheckWords


def cuda_check(
    context: typer.Context,
    source: Annotated[
        str, typer.Argument(metavar="FILE", help="a .cu or .ptx file", autocompletion=complete_cuda_or_ptx, show_default=False)
    ],
    launch: Annotated[
        str | None,
        typer.Option(
            "--launch",
            metavar="FILE.py",
            help="a file whose function `launch` returns KernelCall(grid, block, *arguments), or a list; without it a template is printed",
            autocompletion=complete_python,
            show_default=False,
        ),
    ] = None,
    kernel: Annotated[
        str | None, typer.Option("-k", "--kernel", metavar="NAME", help="the kernel, if the file holds several", show_default=False)
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="FILE.py[:NAME]",
            help="a PyTorch function (`reference`) of the launch's arguments, which returns what the kernel writes",
            autocompletion=complete_python,
            show_default=False,
        ),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            "--tolerance",
            min=0,
            metavar="X",
            help="with --against: allowed error as a share of the largest element of a row",
            show_default="twice PyTorch's own, and the rounding",
        ),
    ] = None,
    schedules: Annotated[int, typer.Option("--schedules", min=1, metavar="N", help="orders of warps and copies that are tried")] = 8,
    schedule: Annotated[
        str | None,
        typer.Option("--schedule", metavar="NAME", help="run this one alone: together, first, last or random:SEED", show_default=False),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=1, metavar="N", help="with --on local: processes", rich_help_panel=TASKS)] = 1,
    on: On = "local",
    journal: KeptTasks = None,
    arch: CudaArch = None,
    include: IncludeFolders = None,
    define: Macros = None,
    instantiate: Annotated[
        str,
        typer.Option(
            "--instantiate",
            metavar="TEXT",
            help="text behind the source: 'template __global__ void f<64>(int*);'",
            show_default=False,
            rich_help_panel=COMPILING,
        ),
    ] = "",
    as_json: Json = False,
) -> int:
    """Run a CUDA kernel on the CPU, and find races, deadlocks, missing waits and fences, bad addresses.

    The kernel runs as PTX under several schedules. What never ran is listed: it was not judged.

    Examples:
        cuir cuda check mine.cu --launch mine.py
        cuir cuda check mine.cu --launch mine.py --against mine.py --schedules 50
        cuir cuda check mine.cu > mine.py
    """
    from ...ops.limits import list_architectures
    from ..command_inputs import check_output_path, read_defines

    configure_process()
    only_with(context, "launch", "against", "schedules", "schedule", "jobs", "on", "journal")
    not_beside(context, "schedule", "runs one alone", "schedules", "jobs", "on", "journal")
    only_with(context, "against", "tolerance")
    if journal is not None:
        check_output_path(journal, [source])
    _require_source(source)
    from ...verification.cuda_runs import list_schedules
    from ..cuda_tasks import CudaCheckWords, run_in_tasks
    from ..process_setup import goes_on_from
    from ..task_places import TaskWords, use_executor

    folders, defines = [str(i) for i in include or ()], read_defines(define or ())
    chosen = arch or list_architectures("wgmma")[0]
    words = CudaCheckWords(source, launch or "", against, tolerance, kernel, chosen, folders, defines, instantiate)
    module = _load(words)
    if launch is None:
        return _print_template(module, source, kernel, as_json)
    check, tried = words.make_check(module), (schedule,) if schedule is not None else list_schedules(schedules)
    stopped = None
    try:
        title = f"{source} in the machine for PTX"
        with goes_on_from(journal), ProgressLine(title, quiet=as_json) as line, use_executor(on, jobs, line) as executor:
            if TaskWords(on, 1, journal).wanted:
                run_in_tasks(check, words, tried, executor, journal, lambda n, of: line.update(f"{n} of {of} schedules", n / of))
            else:
                check.run(tried, line.update, jobs)
    except Interrupted as stop:
        stopped = stop
    report = check.make_report()
    step, more = (stopped.step, {"goes_on": stopped.continuation or None}) if stopped is not None else (None, {})
    print_report(report, Path(source), as_json, step, more)
    if stopped is not None:
        raise Interrupted(stopped.continuation, stopped.step, told=True)
    return 0 if report.ok else exit_code(report.findings)


def _require_source(source: str) -> None:
    """Require a file of CUDA or PTX. Raises CuirError U100, U201, U202."""
    path = Path(source)
    if path.is_dir():
        raise CuirError.of("U202", f"{path} is a folder", hint="name a .cu or .ptx file in it")
    if not path.is_file():
        raise CuirError.of("U201", f"no file `{path}`", hint="the path is relative to the current folder")
    if path.suffix == ".cuir":
        raise CuirError.of("U100", f"`{path}` is no CUDA", hint=f"cuir verify {path} --ptx")


def _load(words: CudaCheckWords) -> LoadedModule:
    """Load the kernels of a file. Raises CuirError U202, U203, and as `cuir.cuda.load`."""
    path = Path(words.source)
    try:
        return words.load()
    except OSError as error:
        raise CuirError.of("U202", f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise CuirError.of("U203", f"{path} is not UTF-8 text (byte {error.start})", hint="a .ptx file holds text") from None


def _print_template(module: LoadedModule, source: str, kernel: str | None, as_json: bool) -> int:
    """Print what a kernel takes, and a launch file for it; the call is not complete."""
    from ...ptx.launch.kernel_parameters import list_parameters
    from ..launch_files import make_template

    chosen = module.choose(kernel)
    parameters = list_parameters(module.module.functions[chosen.name], module.path)
    template = make_template(chosen)
    missing = CuirError.of(
        "O120",
        f"how is the kernel of `{source}` launched? Its parameters are {', '.join(map(str, parameters)) or 'none'}",
        hint=f"complete the template: cuir cuda check {source} > mine.py; then --launch mine.py",
    )
    if as_json:
        rows = [{"name": p.name, "type": p.type, "bytes": p.size} for p in parameters]
        print_json({"ok": False, "diagnostics": [d.as_json() for d in missing.diagnostics], "parameters": rows, "template": template})
    else:
        stdout().print(template, end="", soft_wrap=True)
        print_errors(missing.diagnostics, False)
    return 2


def print_report(report: CudaReport, source: Path, as_json: bool, step: str | None, more: Mapping[str, object] | None = None) -> None:
    """Print what ran and what was found.

    step: what was interrupted. more: what the object of --json holds beside, and the text if it is not 0.
    """
    if as_json:
        interrupted = {"interrupted": True, "step": step or None} if step is not None else {}
        print_json({**_as_data(report, source), **(more or {}), **interrupted})
        return
    print_errors((*report.findings, *report.warnings), False)
    from ...text.phrases import count_noun

    console = stdout()
    count = len(report.findings)
    head = ("ok", "bold green") if report.ok and step is None else ("interrupted" if report.ok else "wrong", "bold red")
    words = f"{count} finding{'s' * (count != 1)}, " if count else ""
    words += f"{count_noun(len(report.warnings), 'warning')}, " if report.warnings else ""
    console.print(make_styled_text(head, f"  {source}: {words}{_describe_runs(report)}"), soft_wrap=True)
    for text in (*_list_facts(report, source), *(f"{name.replace('_', ' '):12s}{value}" for name, value in (more or {}).items() if value)):
        console.print(f"    {text}", style="dim", soft_wrap=True)
    if step is not None:
        stderr().print("interrupted; what was found until then stands above", soft_wrap=True)


def _describe_runs(report: CudaReport) -> str:
    """Describe how much ran."""
    from ...text.phrases import count_noun

    launches = f"{report.launches:,} launch{'es' * (report.launches != 1)}"
    return f"{launches} of {count_noun(report.ctas, 'CTA')} in all, {count_noun(len(report.schedules), 'schedule')} to the end"


def _list_facts(report: CudaReport, source: Path) -> list[str]:
    """Return lines on kernels, instructions, numbers, bits, and what was not judged."""
    from ...ptx.launch.compile_ptx import demangle

    facts = [f"kernel      {name}" for name in demangle(report.kernels)]
    facts.append(f"ran         {report.instructions:,} instructions of sets of warps, {report.lane_instructions:,} of threads")
    for row in report.compared:
        facts.append(f"numbers     {row.name}: {row.error:.1e} from float64, {row.allowed:.1e} is allowed")
    if len(report.schedules) > 1:
        kept = f"depend on the schedule: {', '.join(report.varying)}" if report.varying else "are the same under every schedule"
        facts.append(f"bits        {kept}")
    if not report.unrun:
        facts.append("not judged  nothing: every line with instructions ran")
    for part in report.unrun:
        name = Path(part.path).name if part.path else f"the PTX of {source.name}"
        facts.append(f"not judged  {part.count} of {part.of} lines of {name}, which never ran: {part}")
    return facts


def _as_data(report: CudaReport, source: Path) -> dict[str, Any]:
    """Return the report as JSON values."""
    from ...ptx.launch.compile_ptx import demangle

    return {
        "ok": report.ok,
        "diagnostics": [d.as_json() for d in report.findings],
        "warnings": [d.as_json() for d in report.warnings],
        "kernels": demangle(report.kernels),
        "schedules": list(report.schedules),
        "launches": report.launches,
        "ctas": report.ctas,
        "instructions": report.instructions,
        "lane_instructions": report.lane_instructions,
        "not_run": [
            {"file": u.path or str(source), "lines": [list(x) for x in u.lines], "count": u.count, "of": u.of} for u in report.unrun
        ],
        "numbers": [{"name": r.name, "error": r.error, "allowed": r.allowed, "elements": r.elements} for r in report.compared],
        "varying": list(report.varying),
    }
