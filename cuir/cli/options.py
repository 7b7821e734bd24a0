"""Options that several commands have; one that another makes meaningless is refused, never ignored."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from ..text.diagnostics import CuirError
from .completion import complete_const, complete_dtype, complete_kernel, complete_level, complete_program, complete_variant

File = Annotated[
    str,
    typer.Argument(
        help="a .cuir or .py file, a name out of `cuir corpus`, or - for standard input",
        autocompletion=complete_program,
        show_default=False,
    ),
]
Variant = Annotated[
    str,
    typer.Argument(help="a variant of `cuir corpus`, or your own as file.py:function", autocompletion=complete_variant, show_default=False),
]
KERNEL = "Which kernel"  # panel of the help for what most calls leave out
EXPLORATION = "Every schedule of small launches"

Parameters = Annotated[
    list[str] | None,
    typer.Option("-p", "--param", metavar="NAME=VALUE", help="a parameter of the variant: -p prefix=256", show_default=False),
]
KernelName = Annotated[
    str | None,
    typer.Option(
        "-k",
        "--kernel",
        metavar="NAME",
        help="the kernel, if the file holds several",
        autocompletion=complete_kernel,
        show_default=False,
        rich_help_panel=KERNEL,
    ),
]
Consts = Annotated[
    list[str] | None,
    typer.Option(
        "-c",
        "--const",
        metavar="NAME=VALUE",
        help="a const parameter, such as a tile size: -c BM=128",
        autocompletion=complete_const,
        show_default=False,
        rich_help_panel=KERNEL,
    ),
]
Dtype = Annotated[str, typer.Option("--dtype", help="f16, bf16 or f32", autocompletion=complete_dtype, rich_help_panel=KERNEL)]
GivenDtype = Annotated[
    str | None,
    typer.Option(
        "--dtype", help="f16, bf16 or f32", autocompletion=complete_dtype, show_default="the file's, else f16", rich_help_panel=KERNEL
    ),
]
HeadDim = Annotated[
    int | None,
    typer.Option("--head-dim", metavar="N", help="length of a head, 1 to 576", show_default="the file's, else 128", rich_help_panel=KERNEL),
]
Level = Annotated[str, typer.Option("--level", help="how much to try: quick (seconds) or full (minutes)", autocompletion=complete_level)]
Origin = Annotated[
    str,
    typer.Option(
        "--origin",
        metavar="FILE",
        help="the expert kernel to adapt: a file, or a name out of `cuir corpus`",
        autocompletion=complete_program,
        rich_help_panel=KERNEL,
    ),
]
HtmlPage = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="write a page for the browser: program, pictures, verdicts", show_default=False),
]
HtmlReport = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="write the results as one page, without a network", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="print one JSON object and nothing else on stdout")]

# of commands that compile CUDA
COMPILING = "Compilation by nvcc"  # panel of the help
CudaArch = Annotated[str | None, typer.Option("--arch", help="architecture", show_default="sm_90a (Hopper)", rich_help_panel=COMPILING)]
IncludeFolders = Annotated[
    list[Path] | None, typer.Option("-I", "--include", metavar="FOLDER", help="a folder of headers", rich_help_panel=COMPILING)
]
Macros = Annotated[list[str] | None, typer.Option("-D", "--define", metavar="NAME[=VALUE]", help="a macro", rich_help_panel=COMPILING)]
Seconds = Annotated[
    float,
    typer.Option(
        "--seconds", min=1, metavar="N", help="with --exhaustive: give up on a launch after so many seconds", rich_help_panel=EXPLORATION
    ),
]
Written = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FILE",
        help="with --exhaustive: write the shortest failing schedule there",
        show_default=False,
        rich_help_panel=EXPLORATION,
    ),
]
Budget = Annotated[
    float, typer.Option("--budget", min=0.001, metavar="SECONDS", help="processor time that one run in the interpreter may take")
]
Replay = Annotated[
    Path | None,
    typer.Option(
        "--replay",
        metavar="FILE",
        help="run the schedule in this file, which --exhaustive wrote, with data",
        show_default=False,
        rich_help_panel=EXPLORATION,
    ),
]
Limit = Annotated[
    float, typer.Option("--limit", min=0, metavar="SECONDS", help="time after which nothing new begins; the same command later goes on")
]
Jobs = Annotated[
    int | None, typer.Option("--jobs", min=1, metavar="N", help="compilers at a time", show_default="one a core, as far as memory goes")
]
TASKS = "Tasks in parallel"  # panel of the help
On = Annotated[
    str,
    typer.Option("--on", metavar="PLACE", help="where tasks run: local, ray, or ray:HOST:PORT", rich_help_panel=TASKS),
]
Processes = Annotated[
    int | None,
    typer.Option("--jobs", min=1, metavar="N", help="with --on local: processes", show_default="one a core", rich_help_panel=TASKS),
]
KeptTasks = Annotated[
    Path | None,
    typer.Option(
        "--journal",
        metavar="FILE",
        help="results of tasks, from which the same command resumes",
        show_default=False,
        rich_help_panel=TASKS,
    ),
]
Fresh = Annotated[bool, typer.Option("--fresh", help="forget what an earlier run has found")]

Effort = Literal["quick", "full"]  # of verification


def read_level(level: str, quick: bool = False) -> Effort:
    """Check the level of verification. Raises CuirError U100."""
    if quick and level != "quick":
        raise CuirError.of("U100", f"--quick says --level quick, found --level {level} beside it")
    if level == "quick":
        return "quick"
    if level == "full":
        return "full"
    raise CuirError.of("U100", f"--level is quick or full, found `{level}`")


def list_given_options(context: typer.Context, *names: str) -> list[str]:
    """Return the options among these parameters that the command line gives, as they are written there."""
    sources = {name: context.get_parameter_source(name) for name in names}
    return [_spell_option(context, name) for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]


def only_with(context: typer.Context, needed: str, *names: str) -> None:
    """Refuse the options `names` without the parameter `needed`, which they depend on.

    Raises CuirError U100.
    """
    if list_given_options(context, needed):
        return
    for option in list_given_options(context, *names):
        spelling = _spell_option(context, needed)
        raise CuirError.of("U100", f"{option} is for {spelling}, which is not given", hint=f"add {spelling}, or leave out {option}")


def one_of(context: typer.Context, *names: str) -> str | None:
    """Return the one option that the command line gives among mutually exclusive ones, or None.

    Raises CuirError U100 for two of them.
    """
    present = list_given_options(context, *names)
    if len(present) > 1:
        raise CuirError.of(
            "U100",
            f"{present[0]} and {present[1]} are different jobs, found both",
            hint=f"leave out one of them: {present[0]} or {present[1]}",
        )
    return next((name for name in names if list_given_options(context, name)), None)


def not_beside(context: typer.Context, job: str, why: str, *names: str) -> None:
    """Refuse the options `names` together with the parameter `job`, which ignores them.

    `why` says what the job does instead. Raises CuirError U100.
    """
    for job_spelling in list_given_options(context, job):
        for option in list_given_options(context, *names):
            raise CuirError.of(
                "U100", f"{option} says nothing beside {job_spelling}, which {why}", hint=f"leave out {option}, or {job_spelling}"
            )


def _spell_option(context: typer.Context, name: str) -> str:
    """Return the longest spelling of an option (`--level`), or the name of an argument (`FILE`).

    The name is as the help shows it.
    """
    spelling = max((option for p in context.command.params if p.name == name for option in p.opts), key=len)
    return spelling if spelling.startswith("-") else spelling.upper()
