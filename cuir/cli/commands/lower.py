"""Command `lower`: a program as CUDA, and what each pass of the lowering does to it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...text.diagnostics import CuirError
from ..completion import IR, complete_lowered
from ..live_view import ProgressLine
from ..options import TASKS, Consts, Json, KeptTasks, KernelName, On, list_given_options, not_beside, only_with
from ..output import print_errors, print_json, stderr, stdout

if TYPE_CHECKING:
    from ...checking.checked import Checked
    from ...lowering import Cuda, Stage
    from ...lowering.validate import Runs, TensorRuns
    from ...runtime.launch_description import LaunchDescription

Number = int | float | bool
PASSES = "Passes of the lowering"  # panel of the help
OURS = re.compile(r"\d\d-[a-z_]+\.ir")  # names of files that --stages writes


def lower(
    context: typer.Context,
    file: Annotated[
        str | None,
        typer.Argument(
            help="a .cuir or .py file, a name out of `cuir corpus`, or an .ir file of --stages",
            autocompletion=complete_lowered,
            show_default=False,
        ),
    ] = None,
    kernel: KernelName = None,
    const: Consts = None,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FILE", help="write the CUDA source there instead of printing it", show_default=False),
    ] = None,
    cubin: Annotated[
        Path | None, typer.Option("--cubin", metavar="FILE", help="compile, and write the cubin there (needs nvcc)", show_default=False)
    ] = None,
    launch: Annotated[
        bool, typer.Option("--launch", help="print what a launch takes instead: symbol, grid, block, parameters, tensor maps")
    ] = False,
    explain: Annotated[bool, typer.Option("--explain", help="print what the lowering chose for each line instead, and why")] = False,
    stages: Annotated[
        Path | None,
        typer.Option(
            "--stages",
            metavar="FOLDER",
            help="write the IR after each pass into this folder, and list the passes",
            show_default=False,
            rich_help_panel=PASSES,
        ),
    ] = None,
    validate: Annotated[
        bool,
        typer.Option(
            "--validate",
            help="run the IR on random inputs before and after each pass: do results stay as they are?",
            rich_help_panel=PASSES,
        ),
    ] = False,
    seed: Annotated[
        int, typer.Option("--seed", min=0, max=2**63 - 1, metavar="N", help="with --validate: seed of the inputs", rich_help_panel=PASSES)
    ] = 0,
    dim: Annotated[
        list[str] | None,
        typer.Option(
            "-d",
            "--dim",
            metavar="DIMS",
            help="with --validate: lengths of dims, -d B=1,M=100",
            show_default="drawn by the seed",
            rich_help_panel=PASSES,
        ),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=1, metavar="N", help="with --on local: processes", rich_help_panel=TASKS)] = 1,
    on: On = "local",
    journal: KeptTasks = None,
    without: Annotated[
        list[str] | None,
        typer.Option("--without", metavar="PASS", help="leave out a pass; several allowed", show_default=False, rich_help_panel=PASSES),
    ] = None,
    passes: Annotated[bool, typer.Option("--passes", help="list the passes of the lowering, and run none", rich_help_panel=PASSES)] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="with --passes: as markdown (docs/passes.md)", rich_help_panel=PASSES)
    ] = False,
    as_json: Json = False,
) -> int:
    """Print the CUDA C++ of a program, or compile it; show and check what each pass does to it.

    Examples:
        cuir lower gemm
        cuir lower mine.cuir -c BM=64 --cubin mine.cubin
        cuir lower gemm --stages ir --validate
        cuir lower ir/02-eliminate_common_subexpressions.ir
    """
    from ...checking.checker import check
    from ...checking.const_defaults import consts_as_json
    from ...lowering import lower as run_lower
    from ...runtime.launch_description import describe_launch
    from ...runtime.launchable import describe_spills
    from ...runtime.nvcc import compile_cuda
    from ..command_inputs import check_output_path, read_numbers, read_program, read_program_consts
    from ..process_setup import goes_on_from
    from ..task_places import TaskWords, use_executor

    only_with(context, "validate", "seed", "dim", "jobs", "on", "journal")
    only_with(context, "passes", "markdown")
    not_beside(
        context, "passes", "lists the passes of any program", "file", "kernel", "const", "out", "cubin", "stages", "validate", "without"
    )
    not_beside(context, "markdown", "prints the page of the passes", "as_json")
    not_beside(context, "launch", "prints what a launch takes", "passes", "stages", "validate", "explain")
    not_beside(context, "explain", "prints the choices for each line", "passes", "out", "cubin", "stages", "validate")
    if passes:
        return _list_passes(markdown, as_json)
    if file is None:
        raise CuirError.of("U100", "missing argument FILE", hint="`cuir lower --help` lists what it takes")
    left_out = _optional(without or ())
    for path in filter(None, (out, cubin, journal)):
        check_output_path(path, [file])
    if Path(file).suffix == IR:
        for option in list_given_options(context, "kernel", "const", "cubin", "launch", "explain", "stages", "validate"):
            raise CuirError.of("U100", f"{option} needs the program, and {file} is its IR", hint=f"leave out {option}, or name the program")
        return _lower_ir(file, left_out, out, as_json)
    program = read_program(file)
    picked, consts = read_program_consts(program, file, kernel, const or ())
    checked = check(program, picked.name, consts)
    if explain:
        return _explain(checked, left_out, as_json)
    with_stages = stages is not None or validate
    stages_run: list[Stage] = []
    error: CuirError | None = None
    if with_stages:
        lengths = _read_lengths(checked, read_numbers(dim or (), "-d"))
        title = f"{checked.name}: the IR before and behind each pass"
        with goes_on_from(journal), ProgressLine(title, quiet=as_json or not validate) as view, use_executor(on, jobs, view) as executor:
            runs: Runs[Any] | None = None
            if validate and TaskWords(on, jobs, journal).wanted:
                from ..validation_tasks import validate_in_tasks

                def tell(n: int, of: int) -> None:
                    view.update(f"{n} of {of} tasks", n / of)

                runs = validate_in_tasks(checked, program, left_out, (seed, lengths), executor, journal, tell)
            elif validate:
                runs = _make_runs(checked, seed, lengths)
            stages_run, error, cuda = _stages(checked, left_out, stages, runs, view)
    else:
        cuda = run_lower(checked, left_out)
    compiled = compile_cuda(cuda) if cubin is not None and cuda is not None else None
    spilled = describe_spills(cuda, compiled.resources) if cuda is not None and compiled is not None else ""
    written = _outputs(out, cuda.source.encode() if cuda else None) + _outputs(cubin, compiled.cubin if compiled else None)
    if as_json:
        print_json(
            {
                "ok": error is None,
                "diagnostics": [d.as_json() for d in error.diagnostics] if error else [],
                "kernel": checked.name,
                "consts": consts_as_json(checked.consts),
                "source": cuda.source if cuda else None,
                "choices": list(cuda.choices) if cuda else [],
                "launch": describe_launch(cuda).as_json() if cuda else None,
                "resources": compiled.resources.as_json() if compiled else None,
                "warnings": [spilled] if spilled else [],
                **({"stages": [_as_json(s, stages) for s in stages_run]} if with_stages else {}),
            }
        )
        return 1 if error else 0
    if with_stages:
        _print_stages(stages_run, stages, validate)
    if error is not None:
        print_errors(error.diagnostics, False)
        return 1
    if cuda is not None and launch:
        _print_launch(describe_launch(cuda))
    elif cuda is not None and not (with_stages or list_given_options(context, "out", "cubin")):
        print(cuda.source, end="")
    for path in written:
        stderr().print(f"written: {path}", soft_wrap=True)
    if compiled is not None:
        stdout().print(compiled.resources.as_text())
    if spilled:
        stderr().print(f"warning: {spilled}", style="yellow", soft_wrap=True)
    return 0


# ---- choices
def _explain(checked: Checked, without: Collection[str], as_json: bool) -> int:
    """Print the choices for each line of a program; return the exit code."""
    from ...checking.const_defaults import consts_as_json
    from ...lowering.compiler import explain

    choices = explain(checked, without)
    if as_json:
        data = {"kernel": checked.name, "consts": consts_as_json(checked.consts), "choices": [c.as_json() for c in choices]}
        print_json({"ok": True, "diagnostics": [], **data})
        return 0
    width = max((len(c.operation) for c in choices), default=0)
    ways = max((len(c.selection.way) for c in choices), default=0)
    for (source, number), of_line in itertools.groupby(choices, lambda c: (c.span.source, c.span.line)):
        lines = list(of_line)
        _print_plain(f"{source.name}:{number}: {source.line(number).strip()}")
        for choice in lines:
            in_roles = f" ({', '.join(choice.roles)})" if choice.roles and any(c.roles != choice.roles for c in lines) else ""
            chosen = choice.selection
            head = f"{choice.operation:<{width}}  {chosen.way:<{ways}}  " if choice.operation else ""
            _print_plain(f"    {head}{chosen.because}{in_roles}")
            for text in chosen.rejected:
                _print_plain(f"    {'':<{width}}  {'':<{ways}}  not {text}")
    return 0


def _print_plain(text: str) -> None:
    stdout().print(text, soft_wrap=True, highlight=False, markup=False)


def _lower_ir(file: str, without: Collection[str], out: Path | None, as_json: bool) -> int:
    """Print the CUDA of an IR file; return the exit code."""
    from ...lowering import lower_ir

    cuda = lower_ir(file, without)
    written = _outputs(out, cuda.source.encode())
    if as_json:
        print_json({"ok": True, "diagnostics": [], "kernel": cuda.name, "source": cuda.source, "choices": list(cuda.choices)})
    elif not written:
        print(cuda.source, end="")
    else:
        stderr().print(f"written: {out}", soft_wrap=True)
    return 0


# ---- the launch
def _print_launch(launch: LaunchDescription) -> None:
    """Print a launch's symbol, grid, block, shared memory and parameters."""
    from ..tables import print_table

    console = stdout()
    for name, text in (
        ("symbol", launch.symbol),
        ("arch", launch.arch),
        ("grid", launch.grid),
        ("block", f"{launch.block} threads"),
        ("cluster", f"{launch.cluster} CTAs" if launch.cluster > 1 else "none"),
        ("shared", f"{launch.shared_bytes} bytes, dynamic"),
    ):
        console.print(f"{name:<8}  {text}", soft_wrap=True, highlight=False, markup=False)
    print_table(
        "parameters, in order",
        ("name", "type", "offset", "meaning"),
        [(p.name, p.type, str(p.offset), p.meaning) for p in launch.parameters],
    )
    if launch.maps:
        rows = [(m.name, m.tensor, m.dtype, ", ".join(m.dims), ", ".join(map(str, m.box)), m.swizzle) for m in launch.maps]
        print_table("tensor maps, innermost dim first", ("name", "tensor", "dtype", "dims", "box", "swizzle"), rows)


# ---- passes
def _optional(names: Iterable[str]) -> set[str]:
    """Return the passes to leave out.

    Raises CuirError for an unknown name, or that of a pass without which nothing can be printed.
    """
    from ...lowering.passes.pipeline import PASSES, optional_passes
    from ..command_inputs import suggestion

    pass_names = {p.name for p in PASSES}
    for name in names:
        if name not in pass_names:
            raise CuirError.of(
                "U100", f"no pass is called `{name}`", hint=suggestion(name, optional_passes(), "passes that can be left out")
            )
        if name not in optional_passes():
            raise CuirError.of(
                "U100",
                f"without `{name}` the lowering cannot print anything",
                hint=f"passes that can be left out: {', '.join(optional_passes())}",
            )
    return set(names)


def _list_passes(markdown: bool, as_json: bool) -> int:
    """Print the passes; return the exit code."""
    from ..passes_page import as_json as list_as_json
    from ..passes_page import kind, number_passes
    from ..passes_page import markdown as make_page
    from ..tables import print_table

    if markdown:
        print(make_page(), end="")
    elif as_json:
        print_json({"ok": True, "diagnostics": [], "passes": list_as_json()})
    else:
        rows = [(f"{n:02} {p.name}", kind(p), p.purpose) for n, p in number_passes()]
        print_table("", ("pass", "kind", "purpose"), rows)
    return 0


# ---- stages
def _read_lengths(checked: Checked, dims: Mapping[str, Number]) -> dict[str, int]:
    """Return the lengths that the command line gives. Raises CuirError U113 for invalid ones."""
    from ..command_inputs import suggestion

    lengths: dict[str, int] = {}
    for name, length in dims.items():
        if name not in checked.dims:
            raise CuirError.of("U113", f"`{checked.name}` has no dim `{name}`", hint=suggestion(name, checked.dims, "it has"))
        if isinstance(length, bool) or not isinstance(length, int) or length < 1:
            raise CuirError.of("U113", f"the length of {name} is a positive integer, found {length}", hint=f"for example -d {name}=100")
        lengths[name] = length
    return lengths


def _make_runs(checked: Checked, seed: int, lengths: Mapping[str, int]) -> TensorRuns:
    """Return runs of the IR on random arguments."""
    import torch

    from ...lowering.validate import TensorRuns, ctas_for, random_arguments

    torch.set_num_threads(1)
    return TensorRuns(random_arguments(checked, torch.Generator().manual_seed(seed), lengths), ctas_for(checked))


def _stages(
    checked: Checked,
    without: Collection[str],
    folder: Path | None,
    runs: Runs[Any] | None,
    view: ProgressLine,
) -> tuple[list[Stage], CuirError | None, Cuda | None]:
    """Run the passes, and write the IR behind each into the folder, if there is one.

    Returns the stages with the error that names the first pass to blame for other results of `runs`, or with the
    kernel's CUDA.
    """
    from ...lowering import Lowering
    from ...lowering.ir.evaluator_state import Fault
    from ...lowering.passes.pipeline import select_passes
    from ...lowering.validate import run_lanes

    if folder is not None:
        _clear(folder)
    lowering = Lowering(checked, without)
    stages: list[Stage] = []
    number_of_passes = len(list(select_passes(without)))
    try:
        for stage in lowering.stages(runs):
            stages.append(stage)
            view.update(f"behind {stage.name}, {len(stages) - 1} of {number_of_passes} passes", (len(stages) - 1) / number_of_passes)
            if folder is not None and stage.text is not None:
                _write(folder / _file(stage), stage.text.encode())
    except Fault as fault:
        raise CuirError.of(
            "L013",
            f"before any pass the IR cannot be run on these inputs: {fault}",
            checked.origin.span,
            "`cuir run` and `cuir verify` say what is wrong with a program; -d and --seed give other inputs",
        ) from None
    wrong = next((s for s in stages if s.outcome is not None and not s.outcome.ok), None)
    if wrong is None:
        return stages, None, lowering.cuda()
    problem = "cannot be run" if wrong.outcome is not None and wrong.outcome.error else "changes what the kernel computes"
    error = CuirError.of(
        "L012",
        f"pass {wrong.number:02} {problem}: {wrong.outcome}",
        checked.origin.span,
        "leave --without insert_synchronisation away"
        if wrong.name == run_lanes.__name__
        else f"--stages DIR writes the IR before and behind it; --without {wrong.name} leaves it out",
    )
    return stages, error, None


def _file(stage: Stage) -> str:
    """Return the name of a stage's file."""
    return f"{stage.number:02}-{stage.name}.ir"


def _clear(folder: Path) -> None:
    """Create the folder, and remove what an earlier call wrote into it. Raises CuirError U108."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            if OURS.fullmatch(path.name) and path.is_file():
                path.unlink()
    except OSError as error:
        raise CuirError.of("U108", f"cannot write into {folder}: {error.strerror}", hint="name another folder with --stages") from None


def _print_stages(stages: Collection[Stage], folder: Path | None, validated: bool) -> None:
    """Print the table of stages."""
    from ..tables import print_table

    head = ["pass", "operations", "seconds", *(["results"] if validated else []), "purpose"]
    rows = []
    for s in stages:
        failed = s.outcome is not None and s.outcome.error
        count = "" if failed else str(s.after) if not s.number else f"{s.before} -> {s.after}" if s.text is not None else "unchanged"
        verdict = [s.outcome.verdict if s.outcome else ""] if validated else []
        rows.append((f"{s.number:02} {s.name}", count, f"{s.seconds:.3f}", *verdict, s.purpose))
    print_table("", head, rows)
    if folder is not None:
        stderr().print(f"written: {sum(s.text is not None for s in stages)} stages to {folder}", soft_wrap=True)


def _as_json(s: Stage, folder: Path | None) -> dict[str, Any]:
    """Return a stage as JSON data."""
    data: dict[str, Any] = {
        "number": s.number,
        "pass": s.name,
        "purpose": s.purpose,
        "before": s.before,
        "after": s.after,
        "seconds": s.seconds,
        "changed": s.text is not None,
    }
    if folder is not None:
        data["file"] = str(folder / _file(s)) if s.text is not None else None
    if s.outcome is not None:
        differs = {n: {"share": share, "most": most} for n, (share, most) in s.outcome.tensors.items()}
        data["results"] = {"verdict": s.outcome.verdict, "differs": differs, "error": s.outcome.error or None}
    return data


# ---- files
def _outputs(path: Path | None, content: bytes | None) -> list[Path]:
    """Write a file, if it is requested and there is content for it."""
    if path is None or content is None:
        return []
    _write(path, content)
    return [path]


def _write(path: Path, content: bytes) -> None:
    """Write a file. Raises CuirError U108."""
    try:
        path.write_bytes(content)
    except OSError as error:
        raise CuirError.of("U108", f"cannot write {path}: {error.strerror}", hint="name another file, in a folder that is there") from None
