"""Command `judge`: a solution in CUDA or Triton for a PyTorch module, judged without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...text.diagnostics import CuirError
from ..completion import complete_cuda_or_ptx, complete_python
from ..live_view import ProgressLine
from ..options import CudaArch, Json
from ..output import make_styled_text, print_errors, print_json, stderr, stdout
from ..process_setup import Interrupted, configure_process

if TYPE_CHECKING:
    from ...judge.judging import Judgement

CODES = {"right": 0, "limited": 0, "wrong": 1, "no kernel": 1, "not judged": 2}
WORDS = {
    "right": "in everything that was tried",
    "limited": "where it runs; it refuses other inputs",
    "wrong": "",
    "no kernel": "the results do not come from a kernel",
    "not judged": "it cannot run here",
}


def judge(
    reference: Annotated[
        str,
        typer.Argument(
            metavar="REFERENCE.py",
            help="a module `Model` with `get_inputs` and `get_init_inputs`, or a function `reference` with `get_inputs`",
            autocompletion=complete_python,
            show_default=False,
        ),
    ],
    solution: Annotated[
        str,
        typer.Argument(
            metavar="SOLUTION",
            help="a .py file with `ModelNew`, or a .cu file with a function of tensors",
            autocompletion=complete_cuda_or_ptx,
            show_default=False,
        ),
    ],
    launch: Annotated[
        str | None,
        typer.Option(
            "--launch",
            metavar="FILE.py",
            help="for a .cu or .ptx file of kernels alone: `launch(*inputs)` returns a KernelCall, or a list, and the outputs",
            autocompletion=complete_python,
            show_default=False,
        ),
    ] = None,
    schedules: Annotated[int, typer.Option("--schedules", min=1, metavar="N", help="orders of warps and copies that are tried")] = 8,
    seconds: Annotated[
        float, typer.Option("--seconds", min=1, metavar="N", help="that a call, or a launch in the machine, may take")
    ] = 120,
    arch: CudaArch = None,
    as_json: Json = False,
) -> int:
    """Judge a CUDA or Triton solution for a PyTorch module, without a GPU.

    It runs with inputs that users have, in a machine that finds races, beside float64. The verdict says what was not judged.

    Examples:
        cuir judge softmax.py softmax_new.py
        cuir judge softmax.py softmax.cu --json
    """
    from ...judge.judging import SolutionJudge
    from ...judge.references import Reference
    from ...ops.limits import list_architectures

    configure_process()
    for name in filter(None, (solution, launch)):
        if not Path(name).is_file():
            raise CuirError.of("U201", f"no file `{name}`", hint="the path is relative to the current folder")
    made = SolutionJudge(
        Reference(Path(reference)),
        Path(solution),
        Path(launch) if launch is not None else None,
        arch or list_architectures("wgmma")[0],
        schedules,
        seconds,
    )
    step = None
    try:
        with ProgressLine(f"{solution} in the machine for PTX", quiet=as_json) as line:
            made.progress = line.update
            made.run()
    except Interrupted as stop:
        step = stop.step
    print_judgement(made.judgement, solution, as_json, step)
    if step is not None:
        raise Interrupted(step=step, told=True)
    return CODES[made.judgement.verdict]


def print_judgement(judgement: Judgement, solution: str, as_json: bool, step: str | None) -> None:
    """Print a verdict with its reasons; step: what was interrupted."""
    if as_json:
        interrupted = {"interrupted": True, "step": step or None} if step is not None else {}
        print_json({**_as_data(judgement), **interrupted})
        return
    from ...judge.judging import FAULTS

    print_errors((*judgement.diagnostics, *judgement.warnings), False)
    console, verdict = stdout(), judgement.verdict
    style = "bold green" if CODES[verdict] == 0 and step is None else "bold red"
    words = f"{solution}: {judgement.reason if verdict == 'not judged' and judgement.reason else WORDS[verdict]}".removesuffix(": ")
    console.print(make_styled_text((verdict if step is None else "interrupted", style), f"  {words}"), soft_wrap=True)
    for fault in judgement.faults:
        console.print(f"    {FAULTS[fault.kind]}: {fault.message}{f' ({fault.problem})' if fault.problem else ''}", soft_wrap=True)
    for text in _list_facts(judgement):
        console.print(f"    {text}", style="dim", soft_wrap=True)
    if step is not None:
        stderr().print("interrupted; what was found until then stands above", soft_wrap=True)


def _list_facts(judgement: Judgement) -> list[str]:
    """Return lines on what was tried, and what was not judged."""
    from ...text.phrases import count_noun

    facts = [f"tried       {name}: {count_noun(count, 'call')}" for name, count in judgement.tried.items()]
    facts.append(f"ran         {count_noun(judgement.launches, 'kernel')}, {judgement.lane_instructions:,} instructions of threads")
    facts += [f"numbers     {r.name}: {r.error:.1e} from float64, {r.allowed:.1e} is allowed" for r in judgement.compared.values()]
    facts += [f"note        {text}" for text in judgement.notes]
    facts += [f"refused     {text}" for text in judgement.refused]
    facts += [f"not judged  {text}" for text in judgement.not_judged]
    for part in judgement.unrun:
        name = Path(part.path).name.partition(".")[2] if part.path else "the PTX"
        facts.append(f"not judged  {part.count} of {part.of} lines of {name}, which never ran: {part}")
    return facts


def _as_data(judgement: Judgement) -> dict[str, Any]:
    """Return a judgement as JSON values."""
    return {
        "ok": CODES[judgement.verdict] == 0,
        "verdict": judgement.verdict,
        "reason": judgement.reason,
        "faults": [{"kind": f.kind, "message": f.message, "problem": f.problem} for f in judgement.faults],
        "diagnostics": [d.as_json() for d in judgement.diagnostics],
        "warnings": [d.as_json() for d in judgement.warnings],
        "tried": judgement.tried,
        "launches": judgement.launches,
        "lane_instructions": judgement.lane_instructions,
        "numbers": [{"name": r.name, "error": r.error, "allowed": r.allowed} for r in judgement.compared.values()],
        "notes": judgement.notes,
        "refused": judgement.refused,
        "not_judged": judgement.not_judged,
        "not_run": [{"file": u.path, "lines": [list(x) for x in u.lines], "count": u.count, "of": u.of} for u in judgement.unrun],
    }
