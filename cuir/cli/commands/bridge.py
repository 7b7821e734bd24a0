"""Command `bridge`: an expert kernel adapted to a variant, verified, compiled and timed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..command_defaults import EXPERT
from ..options import Consts, GivenDtype, HeadDim, HtmlPage, Json, KernelName, Level, Origin, Parameters, Variant, read_level
from ..output import exit_code, print_errors, print_json
from ..process_setup import configure_process


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
        Path | None,
        typer.Option("--out", metavar="FOLDER", help="folder for programs, reports, CUDA and cubin", show_default="out/VARIANT"),
    ] = None,
    compile: Annotated[
        bool | None,
        typer.Option("--compile/--no-compile", help="demand the compiled kernel, or leave it out", show_default="if nvcc is there"),
    ] = None,
    run: Annotated[
        bool | None,
        typer.Option("--run/--no-run", help="demand a run on a GPU, or leave it out", show_default="if one is there"),
    ] = None,
    page: HtmlPage = None,
    as_json: Json = False,
) -> int:
    """Adapt an expert kernel to a variant, verify it, compile it, and time it if a GPU is there.

    This is the main job.

    Examples:
        cuir bridge prefix_lm
        cuir bridge sliding_window -p window=256 --head-dim 64
        cuir bridge mine.py:my_mask --html report.html
    """
    from ...bridging import bridge as run_bridge
    from ...checking.const_defaults import parenthesise_consts, select_main_consts
    from ..command_inputs import KernelWords, output_folder, read_origin, read_variant
    from ..job_views import Steps, print_bridge

    configure_process()
    effort = read_level(level)
    specification = read_variant(variant, param or ())
    origin, program, picked, consts = read_origin(origin, KernelWords(kernel, dtype, head_dim, const or ()))
    folder = output_folder(out if out is not None else Path("out") / specification.name, specification.name, origin)
    demand: dict[bool | None, Any] = {None: "auto", True: "yes", False: "no"}
    with Steps(
        f"{origin} -> {specification.name}{parenthesise_consts(select_main_consts(picked, consts))}", quiet=as_json, lines=True
    ) as steps:
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
    if page is not None:
        from ...pages.bridge_page import write_bridge_page

        write_bridge_page(page, report, program, specification)
    if as_json:
        print_json(report.as_json())
    else:
        print_bridge(report, folder)
        print_errors(report.diagnostics, False)
    return 0 if report.ok else exit_code(report.diagnostics)
