"""Propose, check, repair: the loop that all passes share.

It decides who asks when and what is kept; a pass decides what to ask and how an answer is judged.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from cuir.syntax.nodes import Program
from cuir.text.diagnostics import CuirError, Diagnostic

from .budget import Budget
from .messages import Answer, Asks, Message
from .prompting import fence

Stage = Literal["answer", "time", "parse", "check", "orchestration", "contracts", "schedules", "mask", "numbers", "speed", "passed"]
STAGES: tuple[Stage, ...] = (
    "answer",
    "time",
    "parse",
    "check",
    "orchestration",
    "contracts",
    "schedules",
    "mask",
    "numbers",
    "speed",
    "passed",
)


@dataclass(frozen=True)
class Verdict:
    """Result of judging an answer: the stage that refused it, or "passed".

    Attributes:
        ok: No further request is needed.
        text: Program in canonical form, or what the answer held if it was no program.
        extra: Facts for reports, as JSON has them.
        repair_text: Text of the answer in a request for a repair, if that is less than `text`.
    """

    ok: bool
    stage: Stage
    diagnostics: tuple[Diagnostic, ...] = ()
    program: Program | None = None
    text: str = ""
    extra: dict[str, Any] = field(default_factory=dict)
    repair_text: str = ""

    @property
    def right(self) -> bool:
        """True if it is a correct program, though perhaps slower than it could be (stage "speed")."""
        return self.ok or self.stage in ("speed", "passed")

    @property
    def rank(self) -> tuple[int, int]:
        """Order of verdicts: by stage, then by the number of faults there."""
        return STAGES.index(self.stage), -len(self.diagnostics)

    def as_json(self) -> dict[str, Any]:
        """Return the verdict as JSON data."""
        return {
            "ok": self.ok,
            "stage": self.stage,
            "diagnostics": [d.as_json() for d in self.diagnostics],
            "text": self.text,
            "extra": self.extra,
        }


class Pass(Protocol):
    """Task for a model: the requests and the judging of answers.

    `judge` and `feedback` may be called from several threads.
    """

    @property
    def name(self) -> str: ...

    def opening(self) -> list[Message]:
        """Return the messages that every sample begins with."""
        ...

    def judge(self, text: str, finish: str = "stop") -> Verdict:
        """Return the verdict on an answer's text. Never raises for what a model says."""
        ...

    def feedback(self, verdict: Verdict) -> Message:
        """Return the message to the model about an answer that was not accepted."""
        ...


@dataclass(frozen=True)
class Attempt:
    """Request of a sample with its answer and the verdict."""

    sample: int
    number: int
    request: tuple[Message, ...]
    answer: Answer
    verdict: Verdict


@dataclass
class Sample:
    """Conversation with a model."""

    number: int
    attempts: list[Attempt] = field(default_factory=list)
    why: str = ""

    @property
    def best(self) -> Attempt | None:
        """Attempt that got furthest, of equals the last."""
        furthest: Attempt | None = None
        for a in self.attempts:
            if furthest is None or STAGES.index(a.verdict.stage) >= STAGES.index(furthest.verdict.stage):
                furthest = a
        return furthest


@dataclass(frozen=True)
class Outcome:
    """Result of the loop.

    Attributes:
        ok: The best attempt of some sample is right.
        verdict: Verdict on the best attempt of all samples, None if the model never answered.
        why: Reason why the loop ended, in words.
    """

    ok: bool
    verdict: Verdict | None
    samples: list[Sample]
    spent: dict[str, Any]
    why: str

    def __bool__(self) -> bool:
        return self.ok


@dataclass(frozen=True)
class Event:
    """Progress: a sample asks, judges an answer, has judged it, or is over."""

    kind: Literal["asking", "judging", "judged", "over"]
    sample: int
    attempt: int
    budget: Budget
    answer: Answer | None = None
    verdict: Verdict | None = None
    why: str = ""


Progress = Callable[[Event], None]


class Records(Protocol):
    """Recorder of a job; see transcript.Recorder."""

    def exchange(self, attempt: Attempt) -> None: ...

    def outcome(self, outcome: Outcome) -> None: ...


def improve(
    task: Pass, asks: Asks, budget: Budget, k: int = 1, attempts: int = 5, progress: Progress | None = None, recorder: Records | None = None
) -> Outcome:
    """Lead `k` conversations side by side until one passes, all attempts are made, or the budget is spent.

    A repair that gets at least as far replaces the answer before it; one that falls behind is only mentioned. The first
    answer that passes ends the other conversations before their next request. Raises CuirError if nothing at all was
    answered (U60x), with the reason of the first sample.
    """
    stop = threading.Event()
    tell = _one_at_a_time(progress)
    samples = [Sample(i) for i in range(k)]

    def lead(sample: Sample) -> CuirError | None:
        """Lead a conversation; return the error that ended it."""
        try:
            _converse(task, asks, budget, sample, attempts, tell, recorder, stop)
        except CuirError as error:
            sample.why = error.diagnostics[0].message
            return error
        except BaseException:
            stop.set()
            raise
        finally:
            tell(Event("over", sample.number, len(sample.attempts), budget, why=sample.why))
        return None

    if k == 1:
        failures = [lead(samples[0])]
    else:
        pool = ThreadPoolExecutor(k, thread_name_prefix="sample")
        try:
            failures = list(pool.map(lead, samples))
        finally:  # after an interruption nobody waits: conversations under way end before their next request
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
    best = max((a for s in samples if (a := s.best) is not None), key=lambda a: a.verdict.rank, default=None)
    if best is None:
        error = next((f for f in failures if f is not None), None)
        if error is not None:
            raise error
    outcome = Outcome(
        best is not None and best.verdict.right, best.verdict if best else None, samples, budget.as_json(), _why(samples, best, budget)
    )
    if recorder is not None:
        recorder.outcome(outcome)
    return outcome


@dataclass(frozen=True)
class Session:
    """A source of answers with its budget, and the rules by which passes ask it.

    Attributes:
        asks: Source of answers.
        budget: Money and tokens to spend.
        k: Conversations that are led side by side.
        attempts: Answers of one conversation.
        progress: Called with each event.
        recorder: Recorder of exchanges.
    """

    asks: Asks
    budget: Budget
    k: int = 1
    attempts: int = 5
    progress: Progress | None = None
    recorder: Records | None = None

    def improve(self, task: Pass) -> Outcome:
        """Run `improve` on a task."""
        return improve(task, self.asks, self.budget, self.k, self.attempts, self.progress, self.recorder)


def _converse(
    task: Pass, asks: Asks, budget: Budget, sample: Sample, attempts: int, tell: Progress, recorder: Records | None, stop: threading.Event
) -> None:
    """Request, judge and repair answers of one sample until one passes, or the attempts or the budget end."""
    first_messages = task.opening()
    for number in range(1, attempts + 1):
        why = "another sample passed" if stop.is_set() else budget.exhausted
        if why:
            sample.why = why
            return
        request = (*first_messages, *_repair(task, sample))
        tell(Event("asking", sample.number, number, budget))
        answer = asks.ask(request, sample.number)
        budget.spend(answer)
        tell(Event("judging", sample.number, number, budget, answer))
        attempt = Attempt(sample.number, number, request, answer, task.judge(answer.text, answer.finish))
        sample.attempts.append(attempt)
        if recorder is not None:
            recorder.exchange(attempt)
        tell(Event("judged", sample.number, number, budget, answer, attempt.verdict))
        if attempt.verdict.ok:
            stop.set()
            sample.why = "passed"
            return
    sample.why = f"{attempts} attempts were made"


def _repair(task: Pass, sample: Sample) -> list[Message]:
    """Return the best answer so far with its faults, and those of a later one that fell behind."""
    best = sample.best
    if best is None:
        return []
    messages = [Message("assistant", _show_attempt(best)), task.feedback(best.verdict)]
    last = sample.attempts[-1]
    if last is not best:
        behind = "\n".join(f"* {d.code}: {d.message}" for d in last.verdict.diagnostics[:4])
        text = f"{messages[1].text}\n\nAn attempt to repair this got less far (stage: {last.verdict.stage}) and was dropped:\n{behind}\nDo it another way."
        messages[1] = Message("user", text)
    return messages


def _show_attempt(attempt: Attempt) -> str:
    """Return an answer as a request for a repair shows it.

    That is the program in the form that reports point into, without the text around it.
    """
    text = attempt.verdict.repair_text or attempt.verdict.text
    return fence(text, "cuir") if text else attempt.answer.text[:4000] or "(an empty answer)"


def _why(samples: Sequence[Sample], best: Attempt | None, budget: Budget) -> str:
    """Return the reason of the loop's end in words."""
    if best is not None and best.verdict.ok:
        return f"attempt {best.number} of sample {best.sample} passed"
    reasons = list(dict.fromkeys(s.why for s in samples if s.why))
    if best is not None and best.verdict.right:
        return f"attempt {best.number} of sample {best.sample} is right, but slower than it could be; {'; '.join(reasons)}"
    return "; ".join(reasons) or budget.exhausted or "nothing was asked"


def _one_at_a_time(progress: Progress | None) -> Progress:
    """Return a progress function that may be called from several threads."""
    lock = threading.Lock()

    def tell(event: Event) -> None:
        if progress is not None:
            with lock:
                progress(event)

    return tell
