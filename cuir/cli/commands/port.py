"""Command `port`: a kernel for another card, by rules, or by a model."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...text.diagnostics import CuirError, Diagnostic
from ..completion import complete_architecture, complete_program, complete_specification
from ..model_options import (
    MODEL,
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
from ..options import Consts, Effort, GivenDtype, HeadDim, Json, Level, Parameters, read_level
from ..output import exit_code, print_errors, print_json, stderr, stdout
from ..process_setup import configure_process
from .transfer import Dialogue, JudgeTime, KernelOfFile, NoRule, Task, ask_model, transfer_by_rules, write_files

if TYPE_CHECKING:
    from ...checking.checked import Const
    from ...ops.limits import Target
    from ...spec.function_specification import AnySpecification
    from ...syntax.nodes import Kernel, Program
    from ..command_inputs import KernelWords


def port(
    origin: Annotated[
        str, typer.Argument(help="a file, or a name out of `cuir corpus`", autocompletion=complete_program, show_default=False)
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="ARCH",
            help="the card's architecture: sm_75, sm_80, ...",
            autocompletion=complete_architecture,
            show_default=False,
        ),
    ],
    spec: Annotated[
        str | None,
        typer.Option(
            "--spec",
            metavar="SPEC",
            help="what it is to compute: a variant, or FILE.py:FUNCTION (known for programs of the corpus)",
            autocompletion=complete_specification,
            show_default=False,
        ),
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
        Path | None,
        typer.Option("-o", "--out", metavar="FOLDER", help="folder for the program and reports", show_default="out/KERNEL_ARCH"),
    ] = None,
    record: Record = None,
    replay: Replay = None,
    cache: Cache = None,
    as_json: Json = False,
) -> int:
    """Port a kernel to another card, by rules or by a model, and verify it.

    Rules take the expert kernel of that card, or rewrite the statements that the card lacks.

    Examples:
        cuir port flash_fwd_sm90 --to sm_75 --spec prefix_lm
        cuir port mine.cuir --to sm_75 --spec mine.py --model PROVIDER/NAME
    """
    from ...checking.checker import pick_kernel
    from ...ops.limits import TARGETS
    from ..command_inputs import KernelWords, find_computed, output_folder, read_program, read_specification

    configure_process()
    effort = read_level(level)
    target, notes = find_target(to)
    program = read_program(origin)
    picked = pick_kernel(program, kernel)
    if picked.arch == target.name:
        raise CuirError.of("U100", f"`{picked.name}` is for {picked.arch}, which {to} runs", hint=f"architectures: {', '.join(TARGETS)}")
    table = find_computed(origin, picked.name)
    computed = table[1].specification if table is not None else None
    if spec is None and computed is None:
        raise CuirError.of("U130", f"`{origin}` is a program: what does it compute?", hint="--spec VARIANT, or --spec FILE.py:FUNCTION")
    load = partial(read_specification, spec or computed or "", tuple(param or ()))
    specification = load()
    folder = output_folder(out if out is not None else Path("out") / f"{picked.name}_{target.name}", specification.name, origin)
    words = KernelWords(kernel, dtype, head_dim, const or ())
    base = choose_base(origin, program, picked, target, words)
    asked = None if param else spec or computed
    changes = base.computes is not None and base.computes != asked
    try:
        return _by_rules(Port(origin, program, base, target, (*notes, *base.notes), effort, folder), specification, changes, as_json)
    except NoRule as no:
        why = no.diagnostics
    if replay is None and not (model or os.environ.get(MODEL)):
        return _refuse(why, as_json)
    if not as_json:
        print_errors(why, False)
    from llm.passes.transfer import describe_card
    from llm.passes.tuning_target import require_usable_target

    rewritten = base.how == "rewriting"
    if replay is None:
        require_usable_target(program if rewritten else base.program, picked.name, specification, base.consts, effort)
    request = {
        "pass": "port",
        "origin": origin,
        "kernel": picked.name,
        "to": target.name,
        "specification": spec or computed,
        "parameters": list(param or ()),
        "level": effort,
        "samples": samples,
        "attempts": attempts,
        "temperature": temperature,
    }
    asking = open_model(request, ModelOptions(model, record, replay, cache, temperature, timeout, budget, tokens))
    card = describe_card(TARGETS[picked.arch], target, why) if rewritten else ""
    task = Task(base.program, base.kernel.name, base.consts, effort, folder, None, card)
    dialogue = Dialogue(asking, samples, attempts, time_limit)
    return ask_model(f"{origin} for {target.name}", task, load, computed or asked, dialogue, as_json)


@dataclass(frozen=True)
class Base:
    """Program for the card, before a variant is put into it.

    Attributes:
        how: "expert" for the card's own kernel, "rewriting" for the origin with other statements.
        computes: its specification's name, None for programs that the corpus does not have.
        notes: what the rules chose, and what that costs.
    """

    program: Program
    kernel: Kernel
    consts: dict[str, Const]
    how: str
    computes: str | None
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Port:
    """Port by rules: the origin, the base, the card, the effort of verification, the folder of results."""

    title: str
    origin: Program
    base: Base
    target: Target
    notes: tuple[str, ...]
    level: Effort
    folder: Path


def find_target(word: str) -> tuple[Target, tuple[str, ...]]:
    """Return the target for a card's architecture, and a note if the card runs the code of another.

    Raises CuirError U100 for a word that is none, or a card that nothing runs on.
    """
    from ...ops.limits import TARGETS

    if word in TARGETS:
        return TARGETS[word], ()
    match = re.fullmatch(r"sm_(\d+)(\d)[af]?", word)
    capability = (int(match[1]), int(match[2])) if match else (0, 0)
    target = next((t for t in reversed(TARGETS.values()) if t.runs_on(capability)), None)
    if target is None:
        raise CuirError.of("U100", f"--to names the architecture of a card, found `{word}`", hint=f"one of {', '.join(TARGETS)}")
    return target, (f"{word} runs the code of {target.name}",)


def choose_base(origin: str, program: Program, picked: Kernel, target: Target, words: KernelWords) -> Base:
    """Return the card's expert kernel for the task of the origin; else the origin, rewritten. Raises CuirError."""
    from ...attn.kernels.card_kernels import KERNELS, find_arch, find_counterpart
    from ...checking.checker import pick_kernel
    from ...checking.const_defaults import USUAL_DTYPE
    from ...rewrites.porting import port_program
    from ...syntax.types import DTYPES, DType
    from ...text.phrases import count_noun
    from ..command_inputs import find_computed, find_corpus_consts, read_consts, read_kernel_consts, read_program

    def read(name: str, kernel: Kernel) -> dict[str, Const]:
        return read_kernel_consts(kernel, words.dtype, words.head_dim, words.items, find_corpus_consts(name, kernel))

    def describe(name: str, kernel: Kernel) -> str | None:
        entry = find_computed(name, kernel.name)
        return entry[1].specification if entry is not None else None

    dtype = DTYPES.get(words.dtype or "") or read_consts(words.items).get("T", USUAL_DTYPE)
    family = target.name if target.name in KERNELS else find_arch(target.capability)
    name = find_counterpart(origin, family, dtype) if family is not None and isinstance(dtype, DType) else ""
    expert = read_program(name) if name not in ("", origin) else None
    if expert is not None and picked.name in expert.kernels():
        kernel = pick_kernel(expert, picked.name)
        return Base(expert, kernel, read(name, kernel), "expert", describe(name, kernel), (f"`{name}` is the expert kernel of {family}",))
    ported = port_program(program, target.name)
    copies = f"copies at {count_noun(ported.copies, 'place')} go through registers: they overlap nothing"
    kernel = ported.program.kernels()[picked.name]
    return Base(ported.program, kernel, read(origin, picked), "rewriting", describe(origin, picked), (copies,) if ported.copies else ())


@contextmanager
def _explain_faults(base: Base, target: Target) -> Iterator[None]:
    """Turn faults of the check into NoRule where a statement has no rule, else add what to do about them."""
    from ...rewrites.porting import list_smaller_consts

    try:
        yield
    except CuirError as error:
        faults = error.diagnostics
        if missing := [d for d in faults if d.code == "S217"]:
            raise NoRule(missing) from error
        if product := next((d for d in faults if d.code == "T132"), None):
            dtypes = target.operands.get("mma_sync", ())
            hint = f"--dtype {dtypes[0]}"
            raise CuirError.of("U109", f"{target.name} multiplies {' and '.join(dtypes)}: {product.message}", product.span, hint) from error
        if any(d.code == "M301" for d in faults):
            smaller = list_smaller_consts(base.program, base.kernel, base.consts)
            fits = " or ".join(f"-c {name}={value}" for name, value in smaller)
            raise CuirError([replace(d, hint=f"smaller consts that fit: {fits}" if fits else d.hint) for d in faults]) from error
        raise


def _by_rules(job: Port, specification: AnySpecification, changes: bool, as_json: bool) -> int:
    """Verify the base, with the variant in it if it changes, and write it; return the exit code.

    Raises NoRule if the rules cannot make the program.
    """
    from llm.loop import Verdict

    from ...bridging import Step
    from ...checking.checker import check
    from ...checking.const_defaults import consts_as_json, parenthesise_consts, select_main_consts
    from ...syntax.parser import parse
    from ...syntax.printer import show
    from ...verification import verify
    from ..job_views import Steps, print_verification

    base, name = job.base, job.base.kernel.name
    with _explain_faults(base, job.target):
        check(base.program, name, base.consts)
    program = transfer_by_rules(base.program, specification, name).program if changes else base.program
    text = show(program)
    program = parse(text, f"{specification.name}.cuir")
    step = Step("verify")
    consts = parenthesise_consts(select_main_consts(base.kernel, base.consts))
    with Steps(f"{job.title} for {base.kernel.arch} -> {specification.name}{consts}", quiet=as_json, lines=True) as steps:

        def tell(message: str) -> None:
            step.detail = message
            steps(step)

        tell("")
        report = verify(program, specification, name, base.consts, job.level, progress=tell)
        step.status, step.detail = "done" if report.ok else "failed", "" if report.ok else report.summary()
        step.seconds = sum(stage.seconds for stage in report.stages)
        steps(step)
    verdict = Verdict(
        report.ok, "passed" if report.ok else "numbers", report.diagnostics, program, text, {"verification": report.as_json()}
    )
    files = write_files(verdict, job.origin, name, specification.name, job.folder)
    if as_json:
        print_json(
            {
                "ok": report.ok,
                "how": base.how,
                "kernel": name,
                "arch": base.kernel.arch,
                "variant": specification.name,
                "consts": consts_as_json(base.consts),
                "notes": list(job.notes),
                "diagnostics": [d.as_json() for d in report.diagnostics],
                "verification": report.as_json(),
                "files": files,
            }
        )
    else:
        print_verification(report)
        for note in job.notes:
            stdout().print(f"note: {note}", soft_wrap=True)
        stdout().print(f"in {job.folder}: {', '.join(files)}", soft_wrap=True)
        print_errors(report.diagnostics, False)
    return 0 if report.ok else exit_code(report.diagnostics)


def _refuse(why: tuple[Diagnostic, ...], as_json: bool) -> int:
    """Print what has no rule, and how to name a model; return the exit code of a call that lacks one."""
    try:
        find_model_name(None)
    except CuirError as error:
        if not as_json:
            stderr().print("rules cannot port this: rewrite what follows, or let a model do it", soft_wrap=True)
        print_errors((*why, *error.diagnostics), as_json)
    return 2
