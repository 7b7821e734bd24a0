"""Lift: expert CUDA and its specification -> CuIR, in steps.

Annotate (no model), find the workers (no model), lift one worker after another into a program that grows, and with the
last one the whole program: it must parse, check, show the source's orchestration, and compute the specification. A step
before the last is judged by all but the specification.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import corpus
import llm
from cuir.checking.checked import Checked, Const
from cuir.checking.checker import check
from cuir.lowering import lower
from cuir.spec.function_specification import AnySpecification
from cuir.spec.specification import Specification
from cuir.syntax.nodes import ConstType, Program
from cuir.syntax.parser import parse
from cuir.syntax.printer import show
from cuir.text.diagnostics import CuirError, Diagnostic
from cuir.verification import verify

from ..answer import program_text, read
from ..limited_processes import Died, LimitedProcesses, OutOfTime
from ..loop import Outcome, Session, Stage, Verdict
from ..messages import Message
from ..orchestration import Orchestration, compare
from ..orchestration_of_program import of_program
from ..orchestration_of_source import explain, of_source
from ..prompting import fence, fill, language, report
from ..reading import Reading
from ..settled_differences import Settlement, describe_settlements, split_settled, without_effect
from .answer_judging import STAGE_OF, make_unjudged_diagnostic
from .transfer import describe_specification

# architecture -> (description, path) of an example that is no attention
EXAMPLES = {
    "sm_90a": ("a warp-specialised matrix product", corpus.programs()["gemm"]),
    "sm_80": ("a matrix product by warps, with cp.async in two stages", Path(llm.__file__).parent / "examples" / "product_sm80.cuir"),
}
_INTERFACE = ("V300", "X105", "X106", "X108", "X132")


@dataclass(frozen=True)
class LiftJob:
    """Data for a judgement, in whatever process it runs.

    Attributes:
        facts: Orchestration of the source.
        arch: Architecture of the source.
        load: Function that returns the specification.
        consts: T and D at least.
        settlements: Differences in which the program is right.
    """

    name: str
    facts: Orchestration
    arch: str
    load: Callable[[], AnySpecification]
    consts: Mapping[str, Const]
    level: str = "quick"
    settlements: tuple[Settlement, ...] = ()


@dataclass
class Step:
    """Pass of the loop: the program so far gets the last of `roles`.

    With all of the source's roles it is whole. `before` is the program of the step before.
    """

    job: LiftJob
    annotated: Reading
    roles: tuple[str, ...]
    before: str
    processes: LimitedProcesses
    seconds: float = 240.0
    name: str = field(default="lift", init=False)

    @property
    def whole(self) -> bool:
        """True if the step completes the program."""
        return len(self.roles) == len(self.job.facts.roles)

    @property
    def title(self) -> str:
        """Title of the step."""
        return f"role {self.roles[-1]}" + (" and the whole program" if self.whole else "")

    def opening(self) -> list[Message]:
        """Return the language, then the source with its orchestration, then the worker to lift."""
        job, target = self.job, self.job.load()
        slots = {"role": self.roles[-1], "others": ", ".join(r.name for r in job.facts.roles if r.name not in self.roles)}
        if self.before:
            step = fill("lift_last" if self.whole else "lift_next", role=slots["role"], before=fence(self.before, "cuir"))
        elif self.whole:
            step = fill("lift_only", role=slots["role"])
        else:
            step = fill("lift_first", **slots)
        example_is, example = EXAMPLES[job.arch]
        text = fill(
            "lift",
            source=fence(explain(self.annotated, whole=False), "cuda"),
            settled=describe_settlements(job.settlements),
            facts="\n".join(f"* {line}" for line in job.facts.lines()),
            spec=describe_specification(target),
            interface=self.interface(target),
            conventions=fill("lift_attention").strip() if isinstance(target, Specification) else "",
            example_is=example_is,
            example=fence(example.read_text(encoding="utf-8"), "cuir"),
            step=step.strip(),
        )
        return [Message("system", language()), Message("user", text)]

    def interface(self, target: AnySpecification) -> str:
        """Return the kernel's head, for the prompt."""
        job, constants = self.job, self.annotated.constants
        if isinstance(target, Specification):
            tensors = "Q: Global[T, B, H, M, D], K: Global[T, B, HK, N, D], V: Global[T, B, HK, N, D], O: Global[T, B, H, M, D], LSE: Global[f32, B, H, M]"
            takes = f"`{tensors}, scale: f32, *, T: const, D: const`; lengths B, H, HK, M, N are names of the dims"
        else:
            takes = (
                "the tensors and scalars that the specification's `reference` names and gives, in the source's order; after `*` `T: const` for the dtype; "
                "lengths are names of the dims"
            )
        tiles = ", ".join(f"`{name}` = {constants[name]}" for name in ("BM", "BN", "STAGES") if name in constants)
        return (
            f'* `@kernel(arch="{job.arch}")`, with the parameters {takes}. Pointers, strides and tensor maps are no parameters. Tile sizes and stages are further consts '
            f"with defaults{': ' + tiles if tiles else ''}. It is checked with {', '.join(f'`{n}` = {v}' for n, v in job.consts.items())}{'' if isinstance(target, Specification) else ', as far as it has consts of these names'}."
        )

    def judge(self, text: str, finish: str = "stop") -> Verdict:
        """Return the verdict on an answer, made in a worker process."""
        try:
            verdict: Verdict = self.processes(judge_answer, self.job, self.roles, text, finish, seconds=self.seconds)
            return verdict
        except (OutOfTime, Died) as how:
            return Verdict(False, "time", (make_unjudged_diagnostic(how, self.seconds),))

    def feedback(self, verdict: Verdict) -> Message:
        """Return the faults, and the advice for the next answer."""
        return Message(
            "user",
            fill(
                "lift_again",
                verdict=_HEADS[verdict.stage],
                diagnostics=report(verdict.diagnostics),
                advice=_ADVICE.get(verdict.stage, "Find the cause."),
            ),
        )


_HEADS: dict[Stage, str] = {
    "answer": "Your answer could not be read as a program:",
    "time": "Your program could not be judged:",
    "parse": "Your program is not CuIR; the parser says:",
    "check": "Your program is CuIR, but not well-formed:",
    "orchestration": "Your program is well-formed, but its orchestration is not the CUDA source's:",
    "contracts": "Your program has the source's orchestration, but its splice points break their contracts:",
    "schedules": "Your program has the source's orchestration, but goes wrong when it runs:",
    "mask": "Your program runs without faults, but attends to other pairs than the specification:",
    "numbers": "Your program runs without faults, but computes other numbers than the specification:",
    "speed": "Your program is right.",
    "passed": "Your program passed.",
}
_ADVICE: dict[Stage, str] = {
    "orchestration": "Each report names the line of the CUDA source as well: lift what stands there.",
    "schedules": "The simulator names the statement and the workers involved. Compare with where the CUDA source waits and arrives.",
    "numbers": "Compare factors (scale, LOG2E), masked pairs (S = -inf), the order of blocks, and queries without a key.",
}


def judge_answer(job: LiftJob, roles: tuple[str, ...], text: str, finish: str) -> Verdict:
    """Return the verdict on an answer, in this process: without limits of time and memory.

    `roles` are those of the source that the program has by now.
    """
    try:
        return _judge_stages(job, roles, text, finish)
    except RecursionError:
        hint = "break expressions and blocks into steps and @funcs"
        return Verdict(False, "answer", (Diagnostic("A004", "the program is nested too deeply to be checked", hint=hint),))


def _judge_stages(job: LiftJob, roles: tuple[str, ...], text: str, finish: str) -> Verdict:
    """Judge an answer stage by stage."""
    try:
        block = program_text(text, finish)
    except CuirError as error:
        return Verdict(False, "answer", error.diagnostics)
    program: Program | None = None
    full = block
    try:
        full = show(read(block))
        program = parse(full, f"{job.name}.cuir")
    except CuirError as error:
        return Verdict(False, "parse", error.diagnostics, text=full)
    whole = len(roles) == len(job.facts.roles)

    def verdict(stage: Stage, diagnostics: tuple[Diagnostic, ...], **extra: Any) -> Verdict:
        return Verdict(stage == "passed", stage, diagnostics, program, full, extra)

    try:
        checked = _check_program(job, program)
        if whole:
            lower(checked)  # a program that no GPU can run is not well-formed either
    except CuirError as error:
        return verdict("check", error.diagnostics)
    ours = of_program(checked)
    different, settled_differences = split_settled(
        compare(job.facts if whole else part(job.facts, roles), ours, checked.origin.span), job.settlements
    )
    facts = {
        "source": job.facts.lines(),
        "read_by": job.facts.by,
        "program": ours.lines(),
        "roles": list(roles),
        "not_compared": list(job.facts.unknown),
        "settled": settled_differences,
        "settled_without_effect": without_effect(job.settlements, settled_differences),
    }
    if different:
        return verdict("orchestration", different, orchestration=facts)
    if not whole:
        return verdict("passed", (), orchestration=facts)
    try:
        verification = verify(program, job.load(), checked.name, _select_known_consts(checked, job.consts), job.level)  # type: ignore[arg-type]
    except CuirError as error:
        return verdict("check", error.diagnostics, orchestration=facts)
    failed = next((s for s in verification.stages if s.verdict == "failed"), None)
    if failed is None:
        return verdict("passed", (), orchestration=facts, verification=verification.as_json())
    unusable = all(d.code in _INTERFACE for d in failed.diagnostics)
    return verdict(
        "check" if unusable else STAGE_OF.get(failed.name, "numbers"),
        failed.diagnostics,
        orchestration=facts,
        verification=verification.as_json(),
    )


def _check_program(job: LiftJob, program: Program) -> Checked:
    """Check the answer's one kernel, for the source's architecture. Raises CuirError."""
    kernels = list(program.kernels().values())
    if len(kernels) != 1:
        raise CuirError.of("A008", f"the answer holds {len(kernels)} kernels, expected one", kernels[1].span if len(kernels) > 1 else None)
    kernel = kernels[0]
    if kernel.arch != job.arch:
        raise CuirError.of(
            "O111", f"the source is for {job.arch}, so the kernel must be, found {kernel.arch}", kernel.span, f'@kernel(arch="{job.arch}")'
        )
    names = {p.name for p in kernel.params if isinstance(p.type, ConstType)}
    missing = [n for n in job.consts if n not in names]
    if missing and isinstance(job.load(), Specification):
        raise CuirError.of(
            "N111", f"the kernel must have the const parameters {', '.join(job.consts)}, found no {', '.join(missing)}", kernel.span
        )
    return check(program, kernel.name, {n: v for n, v in job.consts.items() if n in names})


def _select_known_consts(checked: Checked, consts: Mapping[str, Const]) -> dict[str, Const]:
    """Return the consts that the kernel has: a kernel that is no attention may lack a head dim."""
    names = {p.name for p in checked.origin.params if isinstance(p.type, ConstType)}
    return {n: v for n, v in consts.items() if n in names}


def part(facts: Orchestration, roles: tuple[str, ...]) -> Orchestration:
    """Return the orchestration of some roles of a source.

    It has their facts, and of the barriers only those users. Declarations are whole from the first step on.
    """
    some = frozenset(roles)
    does = frozenset().union(*(r.does for r in facts.roles if r.name in some))
    barriers = tuple(
        replace(b, arrives=b.arrives & some, waits=b.waits & some, carries_bytes=b.carries_bytes and bool(b.arrives & some))
        for b in facts.barriers
    )
    return replace(
        facts,
        roles=tuple(r for r in facts.roles if r.name in some),
        barriers=barriers,
        groups={agent: g for agent, g in facts.groups.items() if agent in does},
        joins=None,
    )


def order(facts: Orchestration) -> list[str]:
    """Return the roles in the order of lifting: those that only move data first, as others wait for them."""
    return [r.name for r in sorted(facts.roles, key=lambda r: not r.does & {"bulk load", "cp.async"} or bool(r.does & {"wgmma", "mma"}))]


@dataclass(frozen=True)
class Lifted:
    """Result of a lift: the outcome of each step. `ok`: the whole program is accepted."""

    ok: bool
    steps: tuple[tuple[str, Outcome], ...]

    def __bool__(self) -> bool:
        return self.ok

    @property
    def last(self) -> Outcome:
        """Outcome of the last step."""
        return self.steps[-1][1]


def lift(
    job: LiftJob,
    annotated: Reading,
    session: Session,
    processes: LimitedProcesses,
    seconds: float = 240.0,
    on_step: Callable[[Step], None] | None = None,
) -> Lifted:
    """Lift one role after another; the session's attempts hold for each.

    Ends at the first step whose answers are not accepted. Raises CuirError if nothing is answered (U60x).
    """
    names = order(job.facts)
    before, steps = "", list[tuple[str, Outcome]]()
    for number in range(1, len(names) + 1):
        step = Step(job, annotated, tuple(names[:number]), before, processes, seconds)
        if on_step is not None:
            on_step(step)
        outcome = session.improve(step)
        steps.append((step.title, outcome))
        if not outcome.ok or outcome.verdict is None:
            return Lifted(False, tuple(steps))
        before = outcome.verdict.text
    return Lifted(True, tuple(steps))


def job_of(
    annotated: Reading,
    name: str,
    arch: str,
    load: Callable[[], AnySpecification],
    consts: Mapping[str, Const],
    level: str = "quick",
    settlements: tuple[Settlement, ...] = (),
) -> LiftJob:
    """Return the job for an annotated source. Raises CuirError O122 if it shows no worker."""
    facts = of_source(annotated)
    if not facts.roles:
        raise CuirError.of(
            "O122",
            f"`{annotated.kernel}` of {annotated.source.name} must do something that CuIR has a word for, found no copy, product or barrier",
        )
    return LiftJob(name, facts, arch, load, dict(consts), level, settlements)
