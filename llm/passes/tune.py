"""Pass `tune`: a model proposes schedules of a verified program, which are verified and timed.

Each proposal is timed beside the best so far, and kept only when faster. An answer holds the definitions that differ
from the program: order and overlap cannot be expressed by values of consts, and consts stand as defaults in the
kernel's signature, so that one form serves both. Proposals are verified here; `cuir.performance.search.settings_contest` decides which is
faster.
"""

from __future__ import annotations

import functools
import statistics
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cuir.checking.checked import Const
from cuir.checking.checker import check, pick_kernel
from cuir.performance.search.search import Outcome as Setting
from cuir.performance.search.settings_contest import Contender, Contest, Entry, compare_interfaces, with_defaults
from cuir.performance.search.space import label
from cuir.spec.specification import Specification
from cuir.syntax.nodes import Program
from cuir.syntax.parser import parse
from cuir.syntax.printer import show
from cuir.text.diagnostics import CuirError, Diagnostic
from cuir.text.source import Span
from cuir.verification import verify

from ..answer import NAME, merge, program_text, read
from ..budget import Budget
from ..limited_processes import Died, LimitedProcesses, OutOfTime
from ..loop import Outcome, Progress, Records, Stage, Verdict, improve
from ..messages import Asks, Message
from ..prompting import fence, fill, language, report
from .answer_judging import STAGE_OF, make_unjudged_diagnostic
from .tune_words import describe_search, difference, resources

SECONDS = 240.0  # of processor time, for the verification of one proposal
SEEDED = 200  # schedules, for a proposal that is faster, before it is kept
REMEMBERED = 5  # proposals that a later round is told about


@dataclass(frozen=True)
class Target:
    """Program to tune.

    Attributes:
        load: Function that returns the specification; it is called in another process, so it must be picklable.
        fixed: Consts that the caller fixes.
        words: Specification as a model reads it.
        measured: What is timed, or why nothing is, as a model reads it.
        settings: Results of an earlier search over the program's consts.
    """

    program: Program
    kernel: str
    load: Callable[[], Specification]
    fixed: Mapping[str, Const]
    words: str
    measured: str
    settings: tuple[Setting, ...] = ()


@dataclass(frozen=True)
class Proof:
    """Result of proving a proposal.

    Attributes:
        stage: Stage that refused it, or "speed" (only its speed is open).
        text: The whole program.
        repair_text: The answer's program.
    """

    stage: Stage
    diagnostics: tuple[Diagnostic, ...] = ()
    program: Program | None = None
    text: str = ""
    repair_text: str = ""


def prove_answer(
    base: str,
    kernel: str,
    load: Callable[[], Specification],
    fixed: Mapping[str, Const],
    answer: str,
    finish: str,
    seeded: int | None = None,
) -> Proof:
    """Put the definitions of an answer into the program `base`, check and verify the result.

    Runs in a worker process (`LimitedProcesses`).
    """
    before = parse(base, "program.cuir")
    try:
        answer_text = program_text(answer, finish)
    except CuirError as error:
        return Proof("answer", error.diagnostics)
    try:
        definitions = read(answer_text)
    except CuirError as error:
        return Proof("parse", error.diagnostics, None, answer_text, answer_text)
    except RecursionError:
        deep = Diagnostic(
            "A004", "the program is nested too deeply to be checked", hint="break expressions and blocks into steps and @funcs"
        )
        return Proof("answer", (deep,))
    answer_text = whole = show(definitions)
    program: Program | None = None
    try:
        whole = show(merge(before, kernel, definitions))
        program = parse(whole, NAME)
        wrong = compare_interfaces(before, program, kernel)
        if wrong:
            return Proof("check", wrong, program, whole, answer_text)
        check(program, kernel, fixed)
        verification = verify(program, load(), kernel, fixed, "quick", shrink=False, seeded=seeded)
    except CuirError as error:
        return Proof("check", error.diagnostics, program, whole, answer_text)
    failed = next((s for s in verification.stages if s.verdict == "failed"), None)
    if failed is not None:
        return Proof(STAGE_OF[failed.name], failed.diagnostics, program, whole, answer_text)
    return Proof("speed", (), program, whole, answer_text)


@dataclass(frozen=True)
class Tried:
    """Proposal that was right: its change, and its entry in the contest."""

    diff: str
    entry: Entry


@dataclass
class Tuning:
    """Job: the target, the contest, the proposals so far. `start`: the entry of the original program."""

    target: Target
    contest: Contest
    processes: LimitedProcesses
    seconds: float = SECONDS
    tried: list[Tried] = field(default_factory=list)
    start: Entry | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @staticmethod
    def of(
        target: Target,
        setting: Mapping[str, Const],
        device: Any,
        compile: Any,
        processes: LimitedProcesses,
        rounds: int = 3,
        seconds: float = SECONDS,
    ) -> Tuning:
        """Start a job.

        `setting` has values that become the defaults of the program's signature. Raises CuirError: of `check`, or of
        Contest.open for the original program.
        """
        program = with_defaults(target.program, target.kernel, {**setting, **target.fixed})
        contest = Contest(Contender.of(program, target.kernel, target.fixed), device, compile, rounds)
        tuning = Tuning(target, contest, processes, seconds)
        tuning.start = contest.open()
        return tuning

    @property
    def ranked(self) -> bool:
        """True if anything can be timed on this machine."""
        return self.contest.device is not None

    def prove(self, base: str, answer: str, finish: str = "stop", seeded: int | None = None) -> Proof:
        """Run `prove_answer` within limits of time and memory."""
        target = self.target
        try:
            proof: Proof = self.processes(
                prove_answer, base, target.kernel, target.load, target.fixed, answer, finish, seeded, seconds=self.seconds
            )
        except (OutOfTime, Died) as how:
            return Proof("time", (make_unjudged_diagnostic(how, self.seconds),))
        return proof

    def consider(self, base: str, answer: str, finish: str = "stop") -> Verdict:
        """Return the verdict on an answer whose definitions change `base`: verified, then compiled and timed."""
        proof = self.prove(base, answer, finish)
        if proof.stage != "speed" or proof.program is None:
            return _verdict(proof, proof.stage, proof.diagnostics)
        if proof.text == base:
            same = Diagnostic("V502", "the answer changes nothing", hint="answer with definitions that differ from the program's")
            return _verdict(proof, "speed", (same,))
        contender = Contender.of(proof.program, self.target.kernel, self.target.fixed)
        entry = self.contest.enter(contender, functools.partial(self._confirm, base, answer, finish))
        with self._lock:
            self.tried.append(Tried(difference(base, proof.text), entry))
        span = pick_kernel(proof.program, self.target.kernel).span
        return _verdict(proof, *_came_to(entry, span), entry)

    def _confirm(self, base: str, answer: str, finish: str) -> str:
        """Verify a faster proposal under more schedules; return the reason not to keep it."""
        proof = self.prove(base, answer, finish, SEEDED)
        return "" if proof.stage == "speed" else f"{proof.diagnostics[0].code} under {SEEDED} schedules: {proof.diagnostics[0].message}"


def _verdict(proof: Proof, stage: Stage, diagnostics: tuple[Diagnostic, ...], entry: Entry | None = None) -> Verdict:
    """Return the verdict of a proof, with its entry in the contest."""
    extra = {"entry": entry.as_json()} if entry is not None else {}
    return Verdict(stage == "passed", stage, diagnostics, proof.program, text=proof.text, repair_text=proof.repair_text, extra=extra)


def _came_to(entry: Entry, span: Span) -> tuple[Stage, tuple[Diagnostic, ...]]:
    """Return stage and report of a proposal that was verified and entered the contest."""
    match entry.status:
        case "faster" | "unranked":
            return "passed", ()
        case "slower":
            mine, best = statistics.median(entry.milliseconds), statistics.median(entry.best)
            times = f"it takes {mine:.4f} ms where the best so far takes {best:.4f} ms ({mine / best - 1:+.1%}), timed in turns"
            return "speed", (Diagnostic("V502", f"{times}; {resources(entry.contender)}", span),)
        case "refused":
            return "speed", (Diagnostic("V503", f"it does not compile: {entry.why}", span),)
        case "unconfirmed":
            return "schedules", (Diagnostic("V201", f"it is faster, but not right: {entry.why}", span),)
        case "wrong":
            return "numbers", (Diagnostic("V401", f"compiled, it is wrong: {entry.why}", span),)
    return "numbers", (Diagnostic("V403", f"compiled, it does not come to an end: {entry.why}", span),)


@dataclass(frozen=True)
class TunePass:
    """Round of proposals that change the best program of its beginning (see `Pass`)."""

    tuning: Tuning
    base: Contender
    name: str = "tune"

    def opening(self) -> list[Message]:
        """Return the language, then the task."""
        target = self.tuning.target
        task = fill(
            "tune",
            program=fence(self.base.text, "cuir"),
            spec=target.words,
            measured=target.measured,
            state=self._state(),
            fixed=", ".join(f"`{name}`" for name in target.fixed),
        )
        return [Message("system", language(parse(self.base.text, NAME))), Message("user", task)]

    def _state(self) -> str:
        """Describe the program's setting and the proposals so far."""
        start = self.tuning.start
        parts = [f"The program's setting is {label(self.base.consts)}; {resources(self.base)}."]
        if start is not None and start.milliseconds:
            parts.append(f"The first program of this search took {statistics.median(start.milliseconds):.4f} ms.")
        if start is not None and (settings := describe_search(self.tuning.target.settings, start.contender.consts)):
            parts.append(settings)
        for proposal in self.tuning.tried[-REMEMBERED:]:
            entry = proposal.entry
            came = f"{entry.status}" + (
                f", {1 / entry.speedup - 1:+.1%} of the time of the best then" if entry.speedup else f": {entry.why}"
            )
            parts.append(f"Tried before ({came}; {resources(entry.contender)}):\n{fence(proposal.diff, 'diff')}")
        return "\n\n".join(parts)

    def judge(self, text: str, finish: str = "stop") -> Verdict:
        """Return the verdict on an answer."""
        return self.tuning.consider(self.base.text, text, finish)

    def feedback(self, verdict: Verdict) -> Message:
        """Return the faults, or the reason why the proposal is not kept."""
        if verdict.stage == "speed":
            words, advice = (
                "Your program is right, but it is not kept:",
                "Another change is asked for, which removes idle time that this one did not.",
            )
        else:
            words, advice = f"Your program is refused ({verdict.stage}):", "It is timed when it is right."
        lines_of = (
            "your answer"
            if verdict.stage in ("answer", "parse")
            else "the whole program: the one you were given, with your definitions in it"
        )
        return Message("user", fill("tune_again", verdict=words, diagnostics=report(verdict.diagnostics), advice=advice, lines_of=lines_of))


@dataclass(frozen=True)
class Tuned:
    """Result of a search.

    `best` is the start's program if nothing was faster; `entries` are all proposals that were right; `why` is the
    reason of its end.
    """

    best: Contender
    start: Entry
    entries: tuple[Entry, ...]
    outcomes: tuple[Outcome, ...]
    why: str

    @property
    def faster(self) -> bool:
        """True if a proposal was faster."""
        return any(e.status == "faster" for e in self.entries)

    @property
    def speedup(self) -> float:
        """Time of the start over that of the best.

        It is the product of what each winner gained over the best before it, as both were timed in turns.
        """
        gained = 1.0
        for e in self.entries:
            gained *= e.speedup or 1.0 if e.status == "faster" else 1.0
        return gained


def tune(
    tuning: Tuning,
    asks: Asks,
    budget: Budget,
    k: int = 1,
    attempts: int = 5,
    progress: Progress | None = None,
    recorder: Records | None = None,
) -> Tuned:
    """Run rounds of `k` conversations until a round brings nothing faster or the budget is spent.

    Each conversation has at most `attempts` proposals. A round begins with the best program so far; the first proposal
    that is faster ends it. Without a GPU there is one round, which ends with the first proposal that is right: nothing
    can be ranked, so nothing is kept. Raises CuirError if the model gives no answer at all.
    """
    assert tuning.start is not None
    outcomes: list[Outcome] = []
    while True:
        outcomes.append(improve(TunePass(tuning, tuning.contest.best), asks, budget, k, attempts, progress, recorder))
        last = outcomes[-1].verdict
        won = last is not None and last.ok
        if not won or not tuning.ranked or budget.exhausted:
            break
    why = budget.exhausted or outcomes[-1].why
    return Tuned(tuning.contest.best, tuning.start, tuple(tuning.contest.entries), tuple(outcomes), why)
