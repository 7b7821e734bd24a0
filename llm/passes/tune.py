"""The pass `tune`: a model proposes other schedules of a verified program; each is verified again, then timed beside the best so far, and kept only when faster.

An answer holds the definitions that differ from the program: order and overlap cannot be said as values of consts, and consts stand as defaults in the kernel's
signature, so that one form says all. Proposals are verified here; `cuir.tuning.contest` decides which is faster.
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
from cuir.spec.specification import Specification
from cuir.syntax.nodes import Program
from cuir.syntax.parser import parse
from cuir.syntax.printer import show
from cuir.text.diagnostics import CuirError, Diagnostic
from cuir.text.source import Span
from cuir.tuning.contest import Contender, Contest, Entry, compare_interfaces, with_defaults
from cuir.tuning.search import Outcome as Setting
from cuir.tuning.space import label
from cuir.verification import verify

from ..answer import NAME, program_text, read
from ..apart import Apart, Died, OutOfTime
from ..budget import Budget
from ..loop import Outcome, Progress, Records, Stage, Verdict, improve
from ..merging import merged
from ..messages import Asks, Message
from ..prompting import fenced, filled, language, report
from .judging import STAGE_OF, unjudged
from .tune_words import difference, resources, searched

SECONDS = 240.0  # of processor time, for the verification of one proposal
SEEDED = 200  # schedules, for a proposal that is faster, before it is kept
REMEMBERED = 5  # proposals that a later round is told about


@dataclass(frozen=True)
class Target:
    """What is tuned. load: gives the specification, called in another process, so it can be pickled. fixed: consts that the caller gives. words: the specification
    as a model reads it. measured: what is timed, or why nothing is, as a model reads it. settings: of the program's consts, what an earlier search found out."""

    program: Program
    kernel: str
    load: Callable[[], Specification]
    fixed: Mapping[str, Const]
    words: str
    measured: str
    settings: tuple[Setting, ...] = ()


@dataclass(frozen=True)
class Proof:
    """What proving a proposal came to: the stage that refused it, or "speed" (nothing but its speed is open). text: the whole program; shown: what the answer held."""

    stage: Stage
    diagnostics: tuple[Diagnostic, ...] = ()
    program: Program | None = None
    text: str = ""
    shown: str = ""


def proven(
    base: str,
    kernel: str,
    load: Callable[[], Specification],
    fixed: Mapping[str, Const],
    answer: str,
    finish: str,
    seeded: int | None = None,
) -> Proof:
    """Puts the definitions of an answer into the program `base`, checks and verifies what comes out. Runs in a process of its own (`Apart`)."""
    before = parse(base, "program.cuir")
    try:
        shown = program_text(answer, finish)
    except CuirError as error:
        return Proof("answer", error.diagnostics)
    try:
        definitions = read(shown)
    except CuirError as error:
        return Proof("parse", error.diagnostics, None, shown, shown)
    except RecursionError:
        deep = Diagnostic(
            "A004", "the program is nested too deeply to be checked", hint="break expressions and blocks into steps and @funcs"
        )
        return Proof("answer", (deep,))
    shown = whole = show(definitions)
    program: Program | None = None
    try:
        whole = show(merged(before, kernel, definitions))
        program = parse(whole, NAME)
        wrong = compare_interfaces(before, program, kernel)
        if wrong:
            return Proof("check", wrong, program, whole, shown)
        check(program, kernel, fixed)
        verification = verify(program, load(), kernel, fixed, "quick", shrink=False, seeded=seeded)
    except CuirError as error:
        return Proof("check", error.diagnostics, program, whole, shown)
    failed = next((s for s in verification.stages if s.verdict == "failed"), None)
    if failed is not None:
        return Proof(STAGE_OF[failed.name], failed.diagnostics, program, whole, shown)
    return Proof("speed", (), program, whole, shown)


@dataclass(frozen=True)
class Tried:
    """A proposal that was right: what it changed, and what came of it."""

    diff: str
    entry: Entry


@dataclass
class Tuning:
    """A job: the target, the contest, what was tried so far. `start`: the entry of the program itself."""

    target: Target
    contest: Contest
    apart: Apart
    seconds: float = SECONDS
    tried: list[Tried] = field(default_factory=list)
    start: Entry | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @staticmethod
    def of(
        target: Target, setting: Mapping[str, Const], device: Any, compile: Any, apart: Apart, rounds: int = 3, seconds: float = SECONDS
    ) -> Tuning:
        """setting: values that become the defaults of the program's signature. Raises CuirError: what `check` finds; what Contest.open says of the program itself."""
        program = with_defaults(target.program, target.kernel, {**setting, **target.fixed})
        contest = Contest(Contender.of(program, target.kernel, target.fixed), device, compile, rounds)
        tuning = Tuning(target, contest, apart, seconds)
        tuning.start = contest.open()
        return tuning

    @property
    def ranked(self) -> bool:
        """Whether anything can be timed here."""
        return self.contest.device is not None

    def prove(self, base: str, answer: str, finish: str = "stop", seeded: int | None = None) -> Proof:
        """`proven`, within limits of time and memory."""
        target = self.target
        try:
            proof: Proof = self.apart(proven, base, target.kernel, target.load, target.fixed, answer, finish, seeded, seconds=self.seconds)
        except (OutOfTime, Died) as how:
            return Proof("time", (unjudged(how, self.seconds),))
        return proof

    def consider(self, base: str, answer: str, finish: str = "stop") -> Verdict:
        """The verdict on an answer whose definitions change `base`: verified, then compiled and timed."""
        proof = self.prove(base, answer, finish)
        if proof.stage != "speed" or proof.program is None:
            return _verdict(proof, proof.stage, proof.diagnostics)
        if proof.text == base:
            same = Diagnostic("V502", "the answer changes nothing", hint="answer with definitions that differ from the program's")
            return _verdict(proof, "speed", (same,))
        contender = Contender.of(proof.program, self.target.kernel, self.target.fixed)
        entry = self.contest.enter(contender, functools.partial(self._confirmed, base, answer, finish))
        with self._lock:
            self.tried.append(Tried(difference(base, proof.text), entry))
        span = pick_kernel(proof.program, self.target.kernel).span
        return _verdict(proof, *_came_to(entry, span), entry)

    def _confirmed(self, base: str, answer: str, finish: str) -> str:
        """Verify a faster proposal under more schedules; return the reason not to keep it."""
        again = self.prove(base, answer, finish, SEEDED)
        return "" if again.stage == "speed" else f"{again.diagnostics[0].code} under {SEEDED} schedules: {again.diagnostics[0].message}"


def _verdict(proof: Proof, stage: Stage, diagnostics: tuple[Diagnostic, ...], entry: Entry | None = None) -> Verdict:
    extra = {"entry": entry.as_json()} if entry is not None else {}
    return Verdict(stage == "passed", stage, diagnostics, proof.program, text=proof.text, shown=proof.shown, extra=extra)


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
    """One round: proposals that change the best of its beginning (see `Pass`)."""

    tuning: Tuning
    base: Contender
    name: str = "tune"

    def opening(self) -> list[Message]:
        target = self.tuning.target
        asked = filled(
            "tune", program=fenced(self.base.text, "cuir"), spec=target.words, measured=target.measured, state=self._state(),
            fixed=", ".join(f"`{name}`" for name in target.fixed),
        )  # fmt: skip
        return [Message("system", language(parse(self.base.text, NAME))), Message("user", asked)]

    def _state(self) -> str:
        start = self.tuning.start
        parts = [f"The program's setting is {label(self.base.consts)}; {resources(self.base)}."]
        if start is not None and start.milliseconds:
            parts.append(f"The first program of this search took {statistics.median(start.milliseconds):.4f} ms.")
        if start is not None and (known := searched(self.tuning.target.settings, start.contender.consts)):
            parts.append(known)
        for one in self.tuning.tried[-REMEMBERED:]:
            entry = one.entry
            came = f"{entry.status}" + (
                f", {1 / entry.speedup - 1:+.1%} of the time of the best then" if entry.speedup else f": {entry.why}"
            )
            parts.append(f"Tried before ({came}; {resources(entry.contender)}):\n{fenced(one.diff, 'diff')}")
        return "\n\n".join(parts)

    def judge(self, text: str, finish: str = "stop") -> Verdict:
        return self.tuning.consider(self.base.text, text, finish)

    def feedback(self, verdict: Verdict) -> Message:
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
        return Message(
            "user", filled("tune_again", verdict=words, diagnostics=report(verdict.diagnostics), advice=advice, lines_of=lines_of)
        )


@dataclass(frozen=True)
class Tuned:
    """What a search came to: the best program (the start's, if nothing was faster), every proposal that was right, and why it ended."""

    best: Contender
    start: Entry
    entries: tuple[Entry, ...]
    outcomes: tuple[Outcome, ...]
    why: str

    @property
    def faster(self) -> bool:
        return any(e.status == "faster" for e in self.entries)

    @property
    def speedup(self) -> float:
        """The start's time over the best's: the product of what each winner gained over the best before it, as both were timed in turns."""
        gained = 1.0
        for e in self.entries:
            gained *= e.speedup or 1.0 if e.status == "faster" else 1.0
        return gained


def tune(
    tuning: Tuning, asks: Asks, budget: Budget, k: int = 1, attempts: int = 5, progress: Progress | None = None, recorder: Records | None = None
) -> Tuned:  # fmt: skip
    """Rounds of `k` conversations side by side, each of at most `attempts` proposals, until a round brings nothing faster or the budget is spent.

    A round begins with the best program so far; the first proposal that is faster ends it. Without a GPU there is one round, which ends with the first proposal
    that is right: nothing can be ranked, so nothing is kept. Raises CuirError if the model gives no answer at all.
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
