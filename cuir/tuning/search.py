"""The search: settings that pass `check`, compile cleanly and compute the right thing are timed in turns, axis by axis from the best.

Owns the order of trials and what is recorded. Does not own the GPU (a `Device`), the compiler, nor the cache.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..checking.checked import Const
from ..syntax.nodes import Program
from .cache import Journal
from .compiling import Built
from .space import Consts, Space, defaults, from_plain, label, plain, ruled_out

FINALISTS = 4
BETTER = 0.995  # less than this of the best's time is a gain, the rest is noise


class Device(Protocol):
    """What runs candidates. A candidate that hangs or faults costs itself alone."""

    def check(self, consts: Mapping[str, Const]) -> tuple[str, str]:
        """("right" | "wrong" | "hangs" | "fault", why)."""

    def time(self, consts: Mapping[str, Const]) -> float:
        """Milliseconds, the median of many; NaN if there is no figure."""


Compile = Callable[[Sequence[Consts]], Iterator[tuple[int, Built]]]


@dataclass
class Outcome:
    """What became of a candidate. status: waiting, fits (`check` takes it), pruned (does not fit), refused (does not compile), flawed (spills or serialised products, and others do not),
    compiled, wrong, hangs, fault, right, timed."""

    consts: Consts
    status: str = "waiting"
    why: str = ""
    milliseconds: list[float] = field(default_factory=list)
    built: Built | None = None
    recorded: bool = False

    @staticmethod
    def of(entry: Mapping[str, Any]) -> Outcome:
        """An entry of a journal: its consts are the whole setting, what was given among them."""
        return Outcome(from_plain(entry["consts"]), entry["status"], entry["why"], list(entry.get("milliseconds", [])), recorded=True)

    @property
    def median(self) -> float:
        return statistics.median(self.milliseconds) if self.milliseconds else float("inf")

    def as_json(self) -> dict[str, Any]:
        timed = {"milliseconds": [round(t, 5) for t in self.milliseconds]} if self.milliseconds else {}
        registers = (
            {"registers": self.built.registers, "spills": self.built.spills} if self.built is not None and not self.built.refused else {}
        )
        return {"consts": plain(self.consts), "status": self.status, "why": self.why, **timed, **registers}


@dataclass
class TuneReport:
    """best: the fastest candidate, or None. complete: the search came to its end (and not to its limit of time)."""

    best: Outcome | None
    outcomes: list[Outcome]
    seconds: float = 0.0
    complete: bool = True

    def __repr__(self) -> str:
        best = f"{label(self.best.consts)} at {self.best.median:.4f} ms" if self.best is not None else "nothing timed"
        return f"TuneReport({best}; {len(self.outcomes)} candidates, {self.seconds:.0f} s)"

    def count(self, status: str) -> int:
        return sum(o.status == status for o in self.outcomes)


@dataclass
class Progress:
    """Where a search stands, told after every step."""

    doing: str
    outcomes: list[Outcome]
    best: Outcome | None
    seconds: float


def tune(
    program: Program, kernel: str | None, fixed: Mapping[str, Const], space: Space, device: Device | None, compile: Compile, *,
    journal: Journal | None = None, limit: float = 600.0, rounds: int = 3, exhaustive: bool = False, tell: Callable[[Progress], None] | None = None,
    keep: Callable[[Outcome], None] | None = None, clock: Callable[[], float] = time.monotonic,
) -> TuneReport:  # fmt: skip
    """Searches `space` for the fastest setting of a kernel's const parameters.

    fixed: consts that are given (T, D). device: None only prunes and compiles nothing (a dry run). compile: settings -> what came of each.
    limit: seconds after which no further step begins. rounds: of timing, all survivors in turns. keep: told each time that a new best is found.
    """
    space.check_names(program, kernel)
    search = _Search(
        program, kernel, dict(fixed), space.narrowed(fixed), device, compile, journal or Journal(None), limit, rounds, tell, keep, clock
    )
    return search.run(exhaustive)


class _Search:
    def __init__(
        self, program: Program, kernel: str | None, fixed: Consts, space: Space, device: Device | None, compile: Compile, journal: Journal,
        limit: float, rounds: int, tell: Callable[[Progress], None] | None, keep: Callable[[Outcome], None] | None, clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self.program, self.kernel, self.fixed, self.space, self.device, self.compile = program, kernel, fixed, space, device, compile
        self.journal, self.limit, self.rounds, self.tell, self.keep, self.clock = journal, limit, rounds, tell, keep, clock
        self.outcomes: dict[str, Outcome] = {}
        self.best: Outcome | None = None
        self.started, self.complete = clock(), True
        self.defaults = defaults(program, kernel)

    def run(self, exhaustive: bool) -> TuneReport:
        if exhaustive:
            self.batch(self.space.everything())
        elif self.device is None:  # what a search would begin with
            first = self.space.starts[0] if self.space.starts else {}
            self.batch([*self.space.starts, *(c for axis in self.space.axes for c in self.space.around(axis, first))])
        else:
            self.batch(self.space.starts)
            if self.best is None:
                self.batch(c for axis in self.space.axes[:1] for c in self.space.around(axis, {}))
            self.descend()
        self.play_off()
        return TuneReport(self.best, list(self.outcomes.values()), self.clock() - self.started, self.complete)

    def descend(self) -> None:
        """Every combination on one axis, the rest as in the best so far; axis after axis, until a whole pass brings nothing."""
        changed = True
        while changed and self.best is not None and self.in_time():
            changed = False
            for axis in self.space.axes:
                before = self.best
                self.batch(self.space.around(axis, self.best.consts))
                changed |= self.best is not before

    def in_time(self) -> bool:
        self.complete &= self.clock() - self.started < self.limit
        return self.complete

    def say(self, doing: str) -> None:
        if self.tell is not None:
            self.tell(Progress(doing, list(self.outcomes.values()), self.best, self.clock() - self.started))

    # ---- the way of a candidate
    def batch(self, candidates: Iterable[Mapping[str, Const]]) -> None:
        fresh = []
        for consts in candidates:
            whole = {**self.defaults, **consts}
            tuned = {p: whole[p] for p in self.space.parameters if p in whole}
            name = label(tuned)
            if name not in self.outcomes:
                self.outcomes[name] = Outcome(tuned)
                fresh.append(self.outcomes[name])
        for outcome in fresh:
            self.recall(outcome)
        fitting = self.fitting([o for o in fresh if o.status == "waiting"])
        if self.device is None:
            return
        self.build(fitting)
        self.examine(self.clean([o for o in fresh if o.status == "compiled"]))
        self.measure([o for o in fresh if o.status == "right"])
        self.choose([o for o in fresh if o.status == "timed"])

    def recall(self, outcome: Outcome) -> None:
        entry = self.journal.look({**self.fixed, **outcome.consts})
        if entry is None or entry["status"] == "flawed":  # whether flaws end a candidate depends on the others
            return
        known = Outcome.of(entry)
        outcome.status, outcome.why, outcome.milliseconds, outcome.recorded = known.status, known.why, known.milliseconds, True

    def settle(self, outcome: Outcome, status: str, why: str = "") -> None:
        outcome.status, outcome.why = status, why
        if status in ("refused", "flawed", "wrong", "hangs", "fault", "timed"):
            self.journal.write({**self.fixed, **outcome.consts}, {k: v for k, v in outcome.as_json().items() if k != "consts"})

    def fitting(self, outcomes: list[Outcome]) -> list[Outcome]:
        for done, outcome in enumerate(outcomes, 1):
            self.say(f"check {done} of {len(outcomes)}: {label(outcome.consts)}")
            diagnostic = ruled_out(self.program, self.kernel, {**self.fixed, **outcome.consts})
            if diagnostic is not None:
                self.settle(outcome, "pruned", f"{diagnostic.code}: {diagnostic.message}")
            else:
                self.settle(outcome, "fits")
        return [o for o in outcomes if o.status == "fits"]

    def build(self, outcomes: list[Outcome]) -> None:
        if not outcomes or not self.in_time():
            return
        self.say(f"compile {len(outcomes)}")
        results = self.compile([{**self.fixed, **o.consts} for o in outcomes])
        for done, (index, built) in enumerate(results, 1):
            outcomes[index].built = built
            self.settle(outcomes[index], "refused" if built.refused else "compiled", built.refused)
            self.say(f"compile {done} of {len(outcomes)}")
            if not self.in_time():
                break

    def clean(self, outcomes: list[Outcome]) -> list[Outcome]:
        """Those without spills and serialised products; if there is none and nothing was timed yet, those that spill least."""
        good = [o for o in outcomes if o.built is not None and o.built.clean]
        if not good and self.best is None:
            least = min((o.built.serialised, o.built.spills) for o in outcomes if o.built is not None) if outcomes else (0, 0)
            good = [o for o in outcomes if o.built is not None and (o.built.serialised, o.built.spills) == least]
        for o in outcomes:
            if all(o is not g for g in good) and o.built is not None:
                self.settle(o, "flawed", o.built.flaw())
        return good

    def examine(self, outcomes: list[Outcome]) -> None:
        assert self.device is not None
        for done, outcome in enumerate(outcomes, 1):
            if not self.in_time():
                return
            self.say(f"run {done} of {len(outcomes)} against float64: {label(outcome.consts)}")
            status, why = self.device.check({**self.fixed, **outcome.consts})
            self.settle(outcome, status, why)

    def measure(self, outcomes: list[Outcome]) -> None:
        """All in turns, the best so far among them: the card's clock drifts."""
        if not outcomes:
            return
        turns = [*outcomes, self.best] if self.best is not None else outcomes
        times: dict[int, list[float]] = {}
        for turn in range(self.rounds):
            for outcome in turns:
                if not self.in_time() and not all(times.get(id(o)) for o in turns):
                    return
                self.say(f"time, round {turn + 1} of {self.rounds}: {label(outcome.consts)}")
                self.time(outcome, times)
        for outcome in turns:
            if outcome.status in ("right", "timed") and times.get(id(outcome)):
                outcome.milliseconds = times[id(outcome)]
                self.settle(outcome, "timed")

    def time(self, outcome: Outcome, times: dict[int, list[float]]) -> None:
        assert self.device is not None
        if outcome.status not in ("right", "timed"):
            return
        taken = self.device.time({**self.fixed, **outcome.consts})
        if taken != taken:
            self.settle(outcome, "hangs", "no answer while it was timed")
        else:
            times.setdefault(id(outcome), []).append(taken)

    def choose(self, outcomes: list[Outcome]) -> None:
        best = min(
            (o for o in [*outcomes, *([self.best] if self.best else [])] if o.status == "timed"), key=lambda o: o.median, default=None
        )
        if best is None or best is self.best:
            return
        if self.best is None or self.best.status != "timed" or best.median < BETTER * self.best.median:
            self.best = best
            if self.keep is not None:
                self.keep(best)

    def play_off(self) -> None:
        """The fastest few once more, side by side: their figures may be of different minutes, or of an earlier run."""
        if self.device is None or self.best is None:
            return
        timed = sorted((o for o in self.outcomes.values() if o.status == "timed"), key=lambda o: o.median)[:FINALISTS]
        if len(timed) < 2 and not any(o.recorded for o in timed):
            return
        times: dict[int, list[float]] = {}
        for turn in range(self.rounds):
            for outcome in timed:
                self.say(f"the last {len(timed)}, round {turn + 1} of {self.rounds}: {label(outcome.consts)}")
                self.time(outcome, times)
        for outcome in timed:
            if outcome.status == "timed" and id(outcome) in times:
                outcome.milliseconds = times[id(outcome)]
                self.settle(outcome, "timed")
        best = min((o for o in timed if o.status == "timed"), key=lambda o: o.median, default=None)
        if best is not None:
            self.best = best
            if self.keep is not None:
                self.keep(best)
        self.say("done")
