"""Transfer by a model: a kernel of another specification from an expert kernel and its specification.

The deterministic transfer (cuir.transfer) serves mods; this serves any PyTorch function as well. Both end in the same
verification.
"""

from __future__ import annotations

import difflib
import inspect
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import corpus
from cuir.attn.splicing.splice import transfer as by_rules
from cuir.attn.tracing.splice_names import STANDARD
from cuir.attn.verification.contracts import has_splice_points
from cuir.checking.checked import Const
from cuir.checking.checker import check
from cuir.lowering import lower
from cuir.ops.limits import FEATURES, Target
from cuir.spec.function_specification import AnySpecification, FunctionSpecification
from cuir.spec.specification import Specification
from cuir.syntax.nodes import GlobalType, Kernel, Param, Program, ScalarType
from cuir.syntax.parser import parse
from cuir.syntax.printer import show
from cuir.syntax.types import DType
from cuir.text.diagnostics import CuirError, Diagnostic
from cuir.verification import verify

from .. import speed
from ..added_parameters import list_added_parameters, supply_parameters
from ..answer import merge, program_text, read
from ..examples.second_keys import second_keys
from ..examples.time_stamps import time_stamps
from ..limited_processes import Died, LimitedProcesses, OutOfTime
from ..loop import Stage, Verdict
from ..messages import Message
from ..prompting import fence, fill, language, report
from ..specification_source import sources
from .answer_judging import STAGE_OF, make_unjudged_diagnostic

EXAMPLES = (
    "local",
    "prefix_lm",
    "relu",
)  # a mask with two edges, one with an edge that stands still; weights that are no softmax, where the target's are none

_INTERFACE = ("V300", "X105", "X106", "X108", "X132")  # the kernel does not fit the specification, whatever stage noticed


@dataclass(frozen=True)
class Job:
    """Data for a judgement, in whatever process it runs; can be pickled.

    `load` returns the target specification.
    """

    origin: Program
    kernel: str
    load: Callable[[], AnySpecification]
    consts: Mapping[str, Const]
    level: str = "quick"


@dataclass
class Transfer:
    """Pass that transfers a kernel.

    Attributes:
        origin_spec: Specification of the origin, None if unknown.
        processes: Pool of processes for judgements.
        seconds: Processor time for one judgement.
        card: What the origin's architecture lacks, of an origin that was written for another; see `describe_card`.
    """

    job: Job
    origin_spec: AnySpecification | None
    processes: LimitedProcesses
    seconds: float = 240.0
    card: str = ""
    name: str = field(default="transfer", init=False)

    def __post_init__(self) -> None:
        self.target = self.job.load()

    def opening(self) -> list[Message]:
        """Return the language, then the task."""
        origin, target = self.job.origin, self.target
        kernel = origin.kernels()[self.job.kernel]
        function = isinstance(target, FunctionSpecification)
        text = fill(
            "transfer",
            origin=fence(show(origin), "cuir"),
            origin_spec=describe_specification(self.origin_spec) if self.origin_spec is not None else "(unknown: see the origin)",
            target_spec=describe_specification(target),
            interface=interface(origin, kernel, target, _select_known_consts(kernel, self.job.consts)) + self.card,
            conventions=fill("conventions_function" if function else "conventions_mods"),
            splice=fill("transfer_splice") if has_splice_points(origin) else "",
            measured=fill("measured_function" if function else "measured_mods").strip(),
            examples=examples(origin, self.job.kernel, target),
        )
        return [Message("system", language(origin)), Message("user", text)]

    def judge(self, text: str, finish: str = "stop") -> Verdict:
        """Return the verdict on an answer.

        It must be a program within the limits, well-formed, with the origin's interface and the specification's
        numbers, and waste nothing.
        """
        try:
            verdict: Verdict = self.processes(judge_answer, self.job, text, finish, seconds=self.seconds)
            return verdict
        except (OutOfTime, Died) as how:
            return Verdict(False, "time", (make_unjudged_diagnostic(how, self.seconds),))

    def feedback(self, verdict: Verdict) -> Message:
        """Return the faults, in the order in which they were found, and the advice for the next answer."""
        of = (
            "the text of your block"
            if verdict.program is None
            else "the whole program: the origin with your definitions in place of its own"
        )
        advice = _ADVICE.get(verdict.stage, "Find the cause.")
        return Message(
            "user",
            fill("transfer_again", verdict=_HEADS[verdict.stage], diagnostics=report(verdict.diagnostics), advice=advice, lines_of=of),
        )


_HEADS: dict[Stage, str] = {
    "answer": "Your answer could not be read as a program:",
    "time": "Your program could not be judged:",
    "parse": "Your program is not CuIR; the parser says:",
    "check": "Your program is CuIR, but not well-formed:",
    "orchestration": "Your program's orchestration is not what it has to be:",
    "contracts": "Your program is well-formed, but its splice points break their contracts:",
    "schedules": "Your program goes wrong when it runs:",
    "mask": "Your program runs without faults, but attends to other pairs than the specification:",
    "numbers": "Your program runs without faults, but computes other numbers than the specification:",
    "speed": "Your program is right. It is slower than it could be:",
    "passed": "Your program passed.",
}
_ADVICE: dict[Stage, str] = {
    "schedules": "The simulator names the statement and the workers involved. Compare with how the origin synchronises this place.",
    "numbers": "Compare factors (scale, LOG2E), the order of rules, masked pairs (S = -inf), and rows without a key.",
    "speed": "The program is kept as it is unless your next answer is right as well.",
}


def judge_answer(job: Job, text: str, finish: str) -> Verdict:
    """Return the verdict on an answer, in this process: without limits of time and memory."""
    try:
        return _judge_stages(job, text, finish)
    except RecursionError:
        return Verdict(
            False,
            "answer",
            (
                Diagnostic(
                    "A004", "the program is nested too deeply to be checked", hint="break expressions and blocks into steps and @funcs"
                ),
            ),
        )


def _judge_stages(job: Job, text: str, finish: str) -> Verdict:
    """Judge an answer stage by stage."""
    target = job.load()
    try:
        block = program_text(text, finish)
    except CuirError as error:
        return Verdict(False, "answer", error.diagnostics)
    try:
        answer = read(block)
    except CuirError as error:
        return Verdict(False, "parse", error.diagnostics, text=block, repair_text=block)
    answer_text = full = show(answer)
    program: Program | None = None
    try:
        whole = merge(job.origin, job.kernel, answer)
        full = show(whole if answer.kernels() else supply_parameters(whole, job.kernel, job.origin, target))
        program = parse(full, f"{target.name}.cuir")
        kernel = _kernel(job, program)
        keeps_interface(job.origin, job.kernel, kernel, target)
        checked = check(program, kernel.name, _select_known_consts(kernel, job.consts))
        lower(checked)  # a program that no GPU can run is not well-formed either
    except CuirError as error:
        return Verdict(False, "check", error.diagnostics, program, text=full, repair_text=answer_text)

    def verdict(stage: Stage, diagnostics: tuple[Diagnostic, ...], ok: bool = False, **extra: Any) -> Verdict:
        return Verdict(ok, stage, diagnostics, program, full, extra, answer_text)

    try:
        verification = verify(program, target, kernel.name, _select_known_consts(kernel, job.consts), job.level)  # type: ignore[arg-type]
    except CuirError as error:  # the program cannot be called, for instance it has an unknown parameter
        return verdict("check", error.diagnostics)
    failed = next((s for s in verification.stages if s.verdict == "failed"), None)
    if failed is not None:
        unusable = all(d.code in _INTERFACE for d in failed.diagnostics)
        return verdict(
            "check" if unusable else STAGE_OF.get(failed.name, "numbers"), failed.diagnostics, verification=verification.as_json()
        )
    pace = speed.judge_speed(job.origin, program, checked, target if isinstance(target, Specification) else None)
    return verdict(
        "speed" if pace.diagnostics else "passed",
        pace.diagnostics,
        not pace.diagnostics,
        verification=verification.as_json(),
        speed=pace.facts,
    )


def _kernel(job: Job, program: Program) -> Kernel:
    """Return the kernel that replaced the origin's: a new one, or that of the same name."""
    kernels = program.kernels()
    new = [k for name, k in kernels.items() if name not in job.origin.kernels()]
    return new[0] if new else kernels[job.kernel]


def _select_known_consts(kernel: Kernel, consts: Mapping[str, Const]) -> dict[str, Const]:
    """Return the consts that the kernel has: an answer may drop one of the origin's."""
    names = {p.name for p in kernel.params}
    return {n: v for n, v in consts.items() if n in names}


def keeps_interface(origin: Program, name: str, kernel: Kernel, target: AnySpecification) -> None:
    """Check that the kernel is for the origin's architecture and takes its parameters that the target needs.

    Otherwise callers of the origin could not call it. Raises CuirError A010.
    """
    parameters = {p.name: p for p in kernel.params}
    arch = origin.kernels()[name].arch
    if kernel.arch != arch:
        raise CuirError.of("A010", f"the kernel must be for {arch}, found {kernel.arch}", kernel.span, f'write @kernel(arch="{arch}")')
    for p in origin.kernels()[name].params:
        if p.name not in STANDARD or not _is_needed(p, target):
            continue
        if p.name not in parameters:
            raise CuirError.of(
                "A010",
                f"the kernel must take `{_show_declaration(p)}`, found no parameter `{p.name}`",
                kernel.span,
                "keep the origin's parameters",
            )
        if parameters[p.name].type != p.type:
            raise CuirError.of(
                "A010",
                f"the kernel must take `{_show_declaration(p)}`, found `{_show_declaration(parameters[p.name])}`",
                parameters[p.name].span,
                "keep the origin's parameters",
            )
    for p, _ in list_added_parameters(origin, target) if isinstance(target, FunctionSpecification) else ():
        if p.name not in parameters:
            raise CuirError.of(
                "A010",
                f"the kernel must take `{_show_declaration(p)}`, found no parameter `{p.name}`",
                kernel.span,
                "the specification reads it",
            )
        if _shape(parameters[p.name]) != _shape(p):
            raise CuirError.of(
                "A010",
                f"the kernel must take `{_show_declaration(p)}`, found `{_show_declaration(parameters[p.name])}`",
                parameters[p.name].span,
                "the specification fixes its type",
            )


def _is_needed(p: Param, target: AnySpecification) -> bool:
    """Return whether the target needs a parameter.

    It needs O always, since it is compared, and inputs if it reads them.
    """
    return isinstance(target, Specification) or p.name == "O" or target.asks(p.name)


def _shape(p: Param) -> tuple[Any, ...]:
    """Return a type up to the names of dims that the origin does not have."""
    return (type(p.type), p.type.dtype, len(p.type.dims)) if isinstance(p.type, GlobalType) else (p.type,)


def _show_declaration(p: Param) -> str:
    """Return a parameter as a kernel declares it."""
    if isinstance(p.type, GlobalType):
        return f"{p.name}: Global[{', '.join([str(p.type.dtype), *map(str, p.type.dims)])}]"
    return f"{p.name}: {p.type.dtype}" if isinstance(p.type, ScalarType) else f"{p.name}: const"


def interface(origin: Program, kernel: Kernel, target: AnySpecification, consts: Mapping[str, Const]) -> str:
    """Describe what the target's kernel must take and may take, for the prompt."""
    required = ", ".join(_show_declaration(p) for p in kernel.params if p.name in STANDARD and _is_needed(p, target))
    setting = ", ".join(f"{name} = {value.name if isinstance(value, DType) else value}" for name, value in consts.items())
    lines = [
        "# The kernel's parameters",
        f"It takes `{required}`, as the origin does, and keeps `T` and `D` as consts; other consts are yours. It is judged with {setting}, and the others at your defaults.",
    ]
    further_params = list_added_parameters(origin, target)
    listed = ", ".join(
        f"`{_show_declaration(p)}`" + (f" (here {value})" if isinstance(value, (int, float)) else "") for p, value in further_params
    )
    if not listed:
        lines.append("It takes no other tensors or scalars.")
    elif isinstance(target, FunctionSpecification):
        lines.append(f"It takes further: {listed}.")
    else:
        lines.append(f"Values that the target captures are further parameters: {listed}. What you do not read is left out.")
        if any(p.type == ScalarType("i32") for p, _ in further_params):
            lines.append(
                "Whole numbers are tried as 1, 6 and 45, too, so write the name and not the value; 0, negative ones and other floats are not."
            )
        if any(isinstance(p.type, GlobalType) for p, _ in further_params):
            lines.append(
                "Tensors hold what the target's code makes for each problem's lengths, from its other arguments as they are; no other values are tried, but users bring their own: rely on what the text says of them, on no number behind them. Their dims are scalars as others are; behind the data of a dim below 16 may lie zeros."
            )
        if fixed := [p.name for p, value in further_params if isinstance(p.type, GlobalType) and value is not None]:
            lines.append(
                f"Of these {', '.join(fixed)} keep their size whatever the lengths: no element is read beyond it, where gathers give 0."
            )
    if listed:
        lines.append(
            "An answer without a kernel has them already: name them in the functions. A kernel that you write declares them before the `*`; arguments are bound by name, in any order."
        )
    return "\n".join(lines)


def describe_card(before: Target, after: Target, faults: tuple[Diagnostic, ...]) -> str:
    """Describe what an architecture lacks beside the one that a program was written for, for the prompt."""
    lacks = [
        f"* {FEATURES[name]}" + (f". Instead, {words}" if (words := after.find_substitute(name)) else "")
        for name in sorted(before.features - after.features)
    ]
    return "\n\n" + fill(
        "transfer_card",
        before=before.name,
        after=after.name,
        shared=str(after.shared_bytes),
        dtypes=" and ".join(after.operands.get("mma_sync", ())),
        lacks="\n".join(lacks) or "* nothing",
        faults=report(faults),
    ).rstrip("\n")


def describe_specification(spec: AnySpecification) -> str:
    """Return a specification as text: its name, facts and docstring, and the source of its functions.

    The docstring is left out where the source has it.
    """
    facts = []
    if isinstance(spec, Specification):
        facts = [f'normalize="{spec.normalize}"', "with a sink" if spec.sink is not None else "no sink"]
        facts += [] if spec.mask_mod else ["no mask: every query attends to every key"]
        facts += [] if spec.score_mod else ["scores as they are"]
    texts, doc = sources(spec), inspect.cleandoc(spec.doc)
    needs_doc = doc and not any(_unindent(doc) in _unindent(text) for text in texts)
    about = f"`{spec.name}`" + (f" ({', '.join(facts)})" if facts else "") + (f": {doc}" if needs_doc else "")
    return "\n\n".join([about, *(fence(text, "python") for text in texts)])


def _unindent(text: str) -> str:
    """Return a text without indentation."""
    return "\n".join(line.strip() for line in text.splitlines())


def examples(origin: Program, kernel: str, target: AnySpecification) -> str:
    """Return two other variants as differences, with their specifications, near to the target.

    They change the origin where the rules can. One changes a kernel's text, where the target may need that.
    """
    small = parse(corpus.programs()["flash_fwd"].read_text(encoding="utf-8"), "flash_fwd.cuir")
    parts = []
    if isinstance(target, FunctionSpecification) or not has_splice_points(origin):
        program = parse(_text_of("second_keys"), "second_keys.cuir")
        parts.append(_example(second_keys(), small, program, "the kernel `flash_fwd`, causal attention (a change of the kernel's text)"))
    elif any(isinstance(p.type, GlobalType) and p.type.dtype == "i32" for p, _ in list_added_parameters(origin, target)):
        spec = time_stamps()
        program = supply_parameters(merge(origin, kernel, parse(_text_of("time_stamps"), "time_stamps.cuir")), kernel, origin, spec)
        parts.append(_example(spec, origin, program, "the origin (its splice points; data, and a search)"))
    weighs = isinstance(target, Specification) and target.normalize != "softmax"
    for name in [n for n in sorted(EXAMPLES, key=lambda n: weighs and n != "relu") if n != target.name][: 2 - len(parts)]:
        spec = corpus.variant(name)()
        try:
            parts.append(_example(spec, origin, by_rules(origin, spec, kernel).program, "the origin (its splice points)"))
        except CuirError:  # an origin without splice points, or a variant itself
            parts.append(
                _example(spec, small, by_rules(small, spec).program, "the kernel `flash_fwd`, causal attention (its splice points)")
            )
    return "\n\n".join(parts)


def _text_of(example: str) -> str:
    """Return the text of an example."""
    return (files("llm") / "examples" / f"{example}.cuir").read_text(encoding="utf-8")


def _example(spec: AnySpecification, before: Program, after: Program, of: str) -> str:
    """Return an example as a difference."""
    lines = list(difflib.unified_diff(_headless(before), _headless(after), lineterm="", n=1))
    return f"`{spec.name}`, from {of}: {inspect.cleandoc(spec.doc)}\n\n" + fence("\n".join(_plain(lines)), "diff")


def _headless(program: Program) -> list[str]:
    """Return the lines of a program behind its leading comment.

    The specification beside a difference says what it computes.
    """
    return list(itertools.dropwhile(lambda line: line.startswith("#"), show(program).splitlines()))


def _plain(lines: list[str]) -> list[str]:
    """Return a difference without line numbers."""
    return ["@@" if line.startswith("@@") else line for line in lines if not line.startswith(("---", "+++"))]
