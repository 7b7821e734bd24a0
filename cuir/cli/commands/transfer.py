"""Command `transfer`: a kernel adapted to a specification by rules, or by a model.

The pass is llm/passes/transfer.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...text.diagnostics import CuirError, Diagnostic
from ..completion import complete_kernel, complete_program, complete_specification
from ..conversations_view import as_data, print_drift
from ..model_options import (
    ASKING,
    MODEL,
    Asking,
    Attempts,
    Cache,
    Model,
    ModelOptions,
    Money,
    Record,
    Replay,
    Samples,
    Temperature,
    Timeout,
    Tokens,
    find_model_name,
    open_model,
)
from ..options import KERNEL, Consts, Effort, GivenDtype, HeadDim, HtmlPage, Json, Level, Parameters, read_level
from ..output import exit_code, print_errors, print_json, stderr, stdout
from ..process_setup import configure_process

if TYPE_CHECKING:
    from llm.loop import Outcome, Verdict

    from ...attn.splicing.splice import TransferResult
    from ...checking.checked import Const
    from ...spec.function_specification import AnySpecification
    from ...syntax.nodes import Program

KernelOfFile = Annotated[  # -k is the number of conversations here
    str | None,
    typer.Option(
        "--kernel",
        metavar="NAME",
        help="the kernel, if the file holds several",
        autocompletion=complete_kernel,
        show_default=False,
        rich_help_panel=KERNEL,
    ),
]
JudgeTime = Annotated[
    float, typer.Option("--time-limit", min=1, metavar="SECONDS", help="processor time to judge one answer", rich_help_panel=ASKING)
]


def transfer(
    origin: Annotated[
        str,
        typer.Argument(
            help="the expert kernel to adapt: a file, or a name out of `cuir corpus`", autocompletion=complete_program, show_default=False
        ),
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="SPEC",
            help="what it is to compute: a variant or function of `cuir corpus`, or FILE.py:FUNCTION",
            autocompletion=complete_specification,
            show_default=False,
        ),
    ],
    origin_spec: Annotated[
        str | None,
        typer.Option("--from", metavar="SPEC", help="what the origin computes (known for programs of the corpus)", show_default=False),
    ] = None,
    param: Parameters = None,
    model: Model = None,
    samples: Samples = 1,
    attempts: Attempts = 5,
    budget: Money = None,
    tokens: Tokens = None,
    temperature: Temperature = None,
    timeout: Timeout = 600,
    kernel: KernelOfFile = None,
    dtype: GivenDtype = None,
    head_dim: HeadDim = None,
    const: Consts = None,
    level: Level = "quick",
    time_limit: JudgeTime = 240,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="folder for the program and reports", show_default="out/TARGET")
    ] = None,
    record: Record = None,
    replay: Replay = None,
    cache: Cache = None,
    page: HtmlPage = None,
    as_json: Json = False,
) -> int:
    """Adapt a kernel to a specification, by rules or by a model.

    A model is asked where rules are not enough, and its answer is verified.

    Examples:
        cuir transfer flash_fwd_sm90 --to prefix_lm
        cuir transfer gemm --to gelu_gemm --model PROVIDER/NAME
    """
    from ...checking.checker import pick_kernel
    from ...performance.search.space import plain as plain_consts
    from ..command_inputs import find_computed, find_corpus_consts, output_folder, read_kernel_consts, read_program, read_specification

    configure_process()
    effort = read_level(level)
    program = read_program(origin)
    picked = pick_kernel(program, kernel)
    name, consts = picked.name, read_kernel_consts(picked, dtype, head_dim, const or (), find_corpus_consts(origin, picked))
    load = partial(read_specification, to, tuple(param or ()))
    target = load()
    folder = output_folder(out if out is not None else Path("out") / target.name, target.name, origin)
    why_not: tuple[Diagnostic, ...] = ()
    if model is None and replay is None:
        try:
            return _by_rules(origin, Task(program, name, consts, effort, folder, page), target, as_json)
        except NoRule as no:
            why_not = no.diagnostics
            if not os.environ.get(MODEL):
                _cannot(why_not, as_json)
                find_model_name(None)
    if replay is None:
        from llm.passes.tuning_target import require_usable_target

        require_usable_target(program, name, target, consts, effort)
    table = find_computed(origin, name)
    origin_specification = origin_spec or (table[1].specification if table is not None else None)
    request = {
        "pass": "transfer",
        "origin": origin,
        "kernel": name,
        "to": to,
        "parameters": list(param or ()),
        "from": origin_specification,
        "consts": plain_consts(consts),
        "level": effort,
        "samples": samples,
        "attempts": attempts,
        "temperature": temperature,
    }
    asking = open_model(request, ModelOptions(model, record, replay, cache, temperature, timeout, budget, tokens))
    _cannot(why_not, as_json)
    dialogue = Dialogue(asking, samples, attempts, time_limit)
    return ask_model(origin, Task(program, name, consts, effort, folder, page), load, origin_specification, dialogue, as_json)


@dataclass(frozen=True)
class Task:
    """Kernel to adapt with its consts, the effort of verification, and the places of results.

    folder: for results; page: the file of --html; card: words of a prompt on the card that the kernel is ported to.
    """

    program: Program
    kernel: str
    consts: dict[str, Const]
    level: Effort
    folder: Path
    page: Path | None
    card: str = ""


@dataclass(frozen=True)
class Dialogue:
    """Conversations with a model: their number, answers of each, and processor seconds to judge one."""

    asking: Asking
    samples: int
    attempts: int
    seconds: float


class NoRule(Exception):
    """Error of the deterministic transfer where it cannot express the target."""

    def __init__(self, diagnostics: Sequence[Diagnostic]):
        self.diagnostics = tuple(diagnostics)
        super().__init__("; ".join(d.message for d in self.diagnostics))


def _cannot(why: Sequence[Diagnostic], as_json: bool) -> None:
    """Print why the deterministic transfer cannot do it."""
    if not as_json:
        for d in why:
            stderr().print(f"without a model this transfer cannot be done: {d.code}: {d.message}", soft_wrap=True)


def transfer_by_rules(program: Program, target: AnySpecification, kernel: str) -> TransferResult:
    """Return the result of the deterministic transfer. Raises NoRule if it cannot express the target."""
    from ...attn.splicing.splice import transfer as by_rules
    from ...spec.specification import Specification

    if not isinstance(target, Specification):
        raise NoRule(
            [Diagnostic("X120", f"`{target.name}` is a function of all that the kernel reads, and the rules know masks and scores")]
        )
    try:
        return by_rules(program, target, kernel)
    except CuirError as error:
        if all(d.code in ("X120", "X121", "X123", "X130", "X131", "X134") for d in error.diagnostics):
            raise NoRule(error.diagnostics) from error
        raise


def _by_rules(title: str, task: Task, target: AnySpecification, as_json: bool) -> int:
    """Run the deterministic transfer and verify it. Raises NoRule if it cannot express the target."""
    from ...bridging import Step, bridge
    from ...checking.const_defaults import parenthesise_consts
    from ...spec.specification import Specification
    from ..job_views import Steps, print_bridge

    transfer_by_rules(task.program, target, task.kernel)
    assert isinstance(target, Specification)

    with Steps(f"{title} -> {target.name}, by rules{parenthesise_consts(task.consts)}", quiet=as_json, lines=True) as steps:

        def tell(step: Step) -> None:
            if step.status != "skipped":  # steps that a transfer never takes are not shown
                steps(step)

        report = bridge(
            target,
            task.program,
            kernel=task.kernel,
            consts=task.consts,
            level=task.level,
            out=task.folder,
            compile="no",
            run="no",
            progress=tell,
        )
    if task.page is not None:
        from ...pages.bridge_page import write_bridge_page

        write_bridge_page(task.page, report, task.program, target)
    if as_json:
        print_json({**report.as_json(), "how": "rules"})
    else:
        print_bridge(report, task.folder)
        print_errors(report.diagnostics, False)
    return 0 if report.ok else exit_code(report.diagnostics)


def ask_model(
    title: str, task: Task, load: Callable[[], AnySpecification], origin_spec: str | None, dialogue: Dialogue, as_json: bool
) -> int:
    """Run the transfer by a model; return the exit code."""
    from llm.limited_processes import LimitedProcesses
    from llm.loop import improve
    from llm.passes.transfer import Job, Transfer

    from ...checking.const_defaults import parenthesise_consts
    from ..command_inputs import read_specification
    from ..conversations_view import Conversations

    asking = dialogue.asking
    origin_specification = read_specification(origin_spec, ()) if origin_spec is not None else None
    with LimitedProcesses() as processes:
        job = Job(task.program, task.kernel, load, task.consts, task.level)
        adaptation = Transfer(job, origin_specification, processes, dialogue.seconds, task.card)
        name = adaptation.target.name
        with Conversations(f"{title} -> {name}, by {asking.asks.model}{parenthesise_consts(task.consts)}", quiet=as_json) as view:
            outcome = improve(adaptation, asking.asks, asking.budget, dialogue.samples, dialogue.attempts, view, asking.recorder)
    files = write_files(outcome.verdict, task.program, task.kernel, name, task.folder)
    if task.page is not None:
        from ..conversation_pages import write_transfer_page

        write_transfer_page(task.page, f"{title} to {name}", outcome, task.program, adaptation.target, task.kernel, task.consts)
    if as_json:
        print_json(as_data(outcome, asking.asks) | {"how": "model", "variant": name, "model": asking.asks.model, "files": files})
    else:
        _print(outcome, asking, task.folder, files)
    return 0 if outcome.ok else 1


def write_files(verdict: Verdict | None, origin: Program, kernel: str, name: str, folder: Path) -> dict[str, str]:
    """Write the program of the best attempt and its reports; a wrong program is named so."""
    import difflib

    from ...syntax.printer import show
    from ...text.jsontext import to_json

    files: dict[str, str] = {}
    if verdict is None or verdict.program is None:
        return files
    stem = name if verdict.right else f"{name}.wrong"
    before = show(origin)
    diff = (
        "\n".join(
            difflib.unified_diff(before.splitlines(), verdict.text.splitlines(), f"{kernel} (origin)", f"{kernel} ({name})", lineterm="")
        )
        + "\n"
    )
    texts = {f"{stem}.cuir": verdict.text, f"{stem}.diff": diff}
    if "verification" in verdict.extra:
        texts["verification.json"] = to_json(verdict.extra["verification"]) + "\n"
    for file, text in texts.items():
        try:
            (folder / file).write_text(text, encoding="utf-8")
        except OSError as error:
            raise CuirError.of("U108", f"cannot write {folder / file}: {error.strerror}", hint="name another folder with --out") from None
        files[file] = str(folder / file)
    return files


def _print(outcome: Outcome, asking: Asking, folder: Path, files: Mapping[str, str]) -> None:
    """Print the attempts, the verification and the difference."""
    from ..tables import print_diff, print_table

    verdict, console = outcome.verdict, stdout()
    rows = [
        (
            f"{a.sample}.{a.number}",
            a.verdict.stage,
            " ".join(dict.fromkeys(d.code for d in a.verdict.diagnostics)),
            f"{a.answer.tokens:,}",
            f"{a.answer.seconds:.1f} s",
        )
        for s in outcome.samples
        for a in s.attempts
    ]
    if rows:
        print_table("attempts", ("sample", "stage", "codes", "tokens", "answered in"), rows)
    if verdict is not None and outcome.ok:
        diff = next((Path(p).read_text(encoding="utf-8") for n, p in files.items() if n.endswith(".diff")), "")
        print_diff(diff.splitlines())
        asked_stages = [s for s in verdict.extra.get("verification", {}).get("stages", []) if s["verdict"] != "skipped"]
        if asked_stages:
            print_table("verification", ("question", "verdict", "why"), [(s["name"], s["verdict"], s["reason"]) for s in asked_stages])
    console.print(f"{outcome.why}; {asking.budget.summary()}", style="bold green" if outcome.ok else "bold red", soft_wrap=True)
    print_drift(asking.asks)
    if files:
        console.print(f"  in {folder}: {', '.join(files)}", soft_wrap=True)
    if verdict is not None and not verdict.ok:
        print_errors(verdict.diagnostics, False)
