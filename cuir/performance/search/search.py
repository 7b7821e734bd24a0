"""The search: settings that pass `check`, compile cleanly and compute correctly are timed in turns.

It descends axis by axis from the best setting so far.
"""

from __future__ import annotations

import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ...checking.checked import Const
from ...checking.checker import pick_kernel
from ...runtime.cards import find_current_limit
from ...syntax.nodes import Program
from .compiling import BuildResult
from .space import Consts, Space, defaults, find_violation, from_plain, label, plain
from .tuning_records import Journal, JournalEntry

FINALISTS = 4
GAIN_RATIO = 0.995  # a time below this share of the best one is a gain, others are noise


class Device(Protocol):
    """A device that runs candidates; one that hangs or faults does not affect the others."""

    def check(self, consts: Mapping[str, Const]) -> tuple[str, str]:
        """Return ("right" | "wrong" | "hangs" | "fault", why)."""

    def time(self, consts: Mapping[str, Const]) -> float:
        """Return the median milliseconds of many launches; NaN if there is no figure."""


class Bench(ABC):
    """Devices that run candidates: one, or those of a cluster."""

    @abstractmethod
    def check(self, settings: Sequence[Consts]) -> Iterator[tuple[int, tuple[str, str]]]:
        """Yield the index of a setting and what `Device.check` returns, in any order."""

    @abstractmethod
    def time(self, settings: Sequence[Consts], rounds: int) -> Iterator[tuple[int, float]]:
        """Yield the index of a setting and its milliseconds, once a round; NaN, and nothing after, if there is no figure."""


class InTurns(Bench):
    """One device, which runs a candidate at a time."""

    def __init__(self, device: Device):
        self.device = device

    def check(self, settings: Sequence[Consts]) -> Iterator[tuple[int, tuple[str, str]]]:
        """Check the settings in order."""
        for index, setting in enumerate(settings):
            yield index, self.device.check(setting)

    def time(self, settings: Sequence[Consts], rounds: int) -> Iterator[tuple[int, float]]:
        """Time all settings once a round, as the GPU's clock drifts."""
        lost: set[int] = set()
        for _ in range(rounds):
            for index, setting in enumerate(settings):
                if index not in lost:
                    milliseconds = self.device.time(setting)
                    if milliseconds != milliseconds:
                        lost.add(index)
                    yield index, milliseconds


Compile = Callable[[Sequence[Consts]], Iterator[tuple[int, BuildResult]]]


@dataclass
class Outcome:
    """Result of a candidate.

    Attributes:
        consts: The setting.
        status: waiting, fits (`check` accepts it), pruned (does not fit), refused (does not compile), flawed (spills or
            serialised products, and others do not), compiled, wrong, hangs, fault, right, timed.
        why: Reason of the status.
        milliseconds: Measured times.
        built: Result of its compilation.
        recorded: True if it was read from a journal.
    """

    consts: Consts
    status: str = "waiting"
    why: str = ""
    milliseconds: list[float] = field(default_factory=list)
    built: BuildResult | None = None
    recorded: bool = False

    @staticmethod
    def of(entry: JournalEntry) -> Outcome:
        """Return an entry of a journal, whose consts are the whole setting with the fixed ones."""
        return Outcome(from_plain(entry["consts"]), entry["status"], entry["why"], list(entry.get("milliseconds", [])), recorded=True)

    @property
    def median(self) -> float:
        """The median time, infinite if it was not timed."""
        return statistics.median(self.milliseconds) if self.milliseconds else float("inf")

    def as_json(self) -> JournalEntry:
        """Return the outcome as JSON data."""
        timed: JournalEntry = {"milliseconds": [round(t, 5) for t in self.milliseconds]} if self.milliseconds else {}
        registers: JournalEntry = (
            {"registers": self.built.registers, "spills": self.built.spills} if self.built is not None and not self.built.refused else {}
        )
        return {"consts": plain(self.consts), "status": self.status, "why": self.why, **timed, **registers}


@dataclass
class TuneReport:
    """Result of a search.

    Attributes:
        best: The fastest candidate, or None.
        outcomes: All candidates.
        seconds: Duration.
        complete: True if the search did not stop at its time limit.
    """

    best: Outcome | None
    outcomes: list[Outcome]
    seconds: float = 0.0
    complete: bool = True

    def __repr__(self) -> str:
        best = f"{label(self.best.consts)} at {self.best.median:.4f} ms" if self.best is not None else "nothing timed"
        return f"TuneReport({best}; {len(self.outcomes)} candidates, {self.seconds:.0f} s)"

    def count(self, status: str) -> int:
        """Return the number of candidates with a status."""
        return sum(o.status == status for o in self.outcomes)


@dataclass
class Progress:
    """Progress of a search, reported after every step."""

    doing: str
    outcomes: list[Outcome]
    best: Outcome | None
    seconds: float
    share: float | None = None  # that is done: of the time limit, or of the candidates of a dry run


@dataclass(frozen=True)
class SearchTask:
    """A kernel to tune.

    Attributes:
        program: The program.
        kernel: Name of its kernel, if it has several.
        fixed: Consts that are not tuned (T, D).
        space: Candidates.
    """

    program: Program
    kernel: str | None
    fixed: Mapping[str, Const]
    space: Space


@dataclass(frozen=True)
class SearchOptions:
    """Limits and extent of a search.

    Attributes:
        limit: Seconds after which no further step begins.
        rounds: Rounds of timing, all survivors in turns.
        exhaustive: Tries all combinations.
        clock: Returns seconds.
    """

    limit: float = 600.0
    rounds: int = 3
    exhaustive: bool = False
    clock: Callable[[], float] = time.monotonic


def tune(
    task: SearchTask,
    device: Device | Bench | None,
    compile: Compile,
    options: SearchOptions = SearchOptions(),
    *,
    journal: Journal | None = None,
    tell: Callable[[Progress], None] | None = None,
    keep: Callable[[Outcome], None] | None = None,
) -> TuneReport:
    """Search a space for the fastest setting of a kernel's const parameters.

    Args:
        task: The kernel and the space.
        device: Where candidates run; None for a dry run, which only prunes and compiles nothing.
        compile: Compiles settings and yields (index, result).
        options: Limits and extent.
        journal: Results of earlier searches.
        tell: Called with the progress after every step.
        keep: Called with each new best candidate.
    """
    task.space.check_names(task.program, task.kernel)
    bench = device if device is None or isinstance(device, Bench) else InTurns(device)
    return _Search(task, bench, compile, options, journal or Journal(None), tell, keep).run()


class _Search:
    """A search in progress."""

    def __init__(
        self,
        task: SearchTask,
        device: Bench | None,
        compile: Compile,
        options: SearchOptions,
        journal: Journal,
        tell: Callable[[Progress], None] | None,
        keep: Callable[[Outcome], None] | None,
    ) -> None:
        self.program, self.kernel, self.fixed, self.space = task.program, task.kernel, dict(task.fixed), task.space.narrow(task.fixed)
        self.device, self.compile, self.options, self.journal, self.tell, self.keep = device, compile, options, journal, tell, keep
        self.outcomes: dict[str, Outcome] = {}
        self.best: Outcome | None = None
        self.clock = options.clock
        self.started, self.complete = self.clock(), True
        self.defaults = defaults(task.program, task.kernel)

    def run(self) -> TuneReport:
        """Run the search and return its report."""
        if self.options.exhaustive:
            self.process(self.space.enumerate_all())
        elif self.device is None:  # the first step of a search
            first = self.space.starts[0] if self.space.starts else {}
            self.process([*self.space.starts, *(c for axis in self.space.axes for c in self.space.vary(axis, first))])
        else:
            self.process(self.space.starts)
            if self.best is None:
                self.process(c for axis in self.space.axes[:1] for c in self.space.vary(axis, {}))
            self.descend()
        self.time_finalists()
        return TuneReport(self.best, list(self.outcomes.values()), self.clock() - self.started, self.complete)

    def descend(self) -> None:
        """Vary one axis after another around the best setting so far, until a whole pass brings no gain."""
        changed = True
        while changed and self.best is not None and self.is_in_time():
            changed = False
            for axis in self.space.axes:
                before = self.best
                self.process(self.space.vary(axis, self.best.consts))
                changed |= self.best is not before

    def is_in_time(self) -> bool:
        """Return whether the time limit is not reached."""
        self.complete &= self.clock() - self.started < self.options.limit
        return self.complete

    def report(self, doing: str, share: float | None = None) -> None:
        """Report the progress. share: of all work; else it is the share of the time limit that is spent."""
        if self.tell is not None:
            seconds = self.clock() - self.started
            share = min(1.0, seconds / self.options.limit) if share is None and self.options.limit > 0 else share
            self.tell(Progress(doing, list(self.outcomes.values()), self.best, seconds, share))

    # ---- steps of a candidate
    def process(self, candidates: Iterable[Mapping[str, Const]]) -> None:
        """Take new candidates through all steps."""
        fresh = []
        for consts in candidates:
            setting = {**self.defaults, **consts}
            tuned = {p: setting[p] for p in self.space.parameters if p in setting}
            name = label(tuned)
            if name not in self.outcomes:
                self.outcomes[name] = Outcome(tuned)
                fresh.append(self.outcomes[name])
        for outcome in fresh:
            self.restore(outcome)
        fitting = self.select_fitting([o for o in fresh if o.status == "waiting"])
        if self.device is None:
            return
        self.build(fitting)
        self.examine(self.select_clean([o for o in fresh if o.status == "compiled"]))
        self.measure([o for o in fresh if o.status == "right"])
        self.update_best([o for o in fresh if o.status == "timed"])

    def restore(self, outcome: Outcome) -> None:
        """Restore the result of an earlier search from the journal."""
        entry = self.journal.find({**self.fixed, **outcome.consts})
        if entry is None or entry["status"] == "flawed":  # whether flaws end a candidate depends on the others
            return
        recorded = Outcome.of(entry)
        outcome.status, outcome.why, outcome.milliseconds, outcome.recorded = recorded.status, recorded.why, recorded.milliseconds, True

    def set_status(self, outcome: Outcome, status: str, why: str = "") -> None:
        """Set the status of a candidate, and record a final one in the journal."""
        outcome.status, outcome.why = status, why
        if status in ("refused", "flawed", "wrong", "hangs", "fault", "timed"):
            entry = outcome.as_json()
            del entry["consts"]  # the journal has the fixed ones, too
            self.journal.write({**self.fixed, **outcome.consts}, entry)

    def select_fitting(self, outcomes: list[Outcome]) -> list[Outcome]:
        """Return the candidates that pass `check`."""
        shared_limit = find_current_limit(pick_kernel(self.program, self.kernel).arch)
        for number, outcome in enumerate(outcomes, 1):
            share = (number - 1) / len(outcomes) if self.device is None else None
            self.report(f"check {number} of {len(outcomes)}: {label(outcome.consts)}", share)
            diagnostic = find_violation(self.program, self.kernel, {**self.fixed, **outcome.consts}, shared_limit)
            if diagnostic is not None:
                self.set_status(outcome, "pruned", f"{diagnostic.code}: {diagnostic.message}")
            else:
                self.set_status(outcome, "fits")
        return [o for o in outcomes if o.status == "fits"]

    def build(self, outcomes: list[Outcome]) -> None:
        """Compile candidates."""
        if not outcomes or not self.is_in_time():
            return
        self.report(f"compile {len(outcomes)}")
        results = self.compile([{**self.fixed, **o.consts} for o in outcomes])
        for number, (index, build) in enumerate(results, 1):
            outcomes[index].built = build
            self.set_status(outcomes[index], "refused" if build.refused else "compiled", build.refused)
            self.report(f"compile {number} of {len(outcomes)}")
            if not self.is_in_time():
                break

    def select_clean(self, outcomes: list[Outcome]) -> list[Outcome]:
        """Return the candidates without spills and serialised products.

        If there are none and nothing was timed yet, return those with the fewest.
        """
        good = [o for o in outcomes if o.built is not None and o.built.clean]
        if not good and self.best is None:
            least = min((o.built.serialised, o.built.spills) for o in outcomes if o.built is not None) if outcomes else (0, 0)
            good = [o for o in outcomes if o.built is not None and (o.built.serialised, o.built.spills) == least]
        for o in outcomes:
            if all(o is not g for g in good) and o.built is not None:
                self.set_status(o, "flawed", o.built.describe_flaw())
        return good

    def examine(self, outcomes: list[Outcome]) -> None:
        """Compare candidates with float64."""
        assert self.device is not None
        checked = self.device.check([{**self.fixed, **o.consts} for o in outcomes])
        for number in range(1, len(outcomes) + 1):
            if not self.is_in_time():
                return
            named = f": {label(outcomes[number - 1].consts)}" if isinstance(self.device, InTurns) else ""
            self.report(f"run {number} of {len(outcomes)} against float64{named}")
            index, (status, why) = next(checked)
            self.set_status(outcomes[index], status, why)

    def measure(self, outcomes: list[Outcome]) -> None:
        """Time candidates and the best one so far."""
        if outcomes:
            self.time([*outcomes, self.best] if self.best is not None else outcomes, "time", limited=True)

    def time(self, outcomes: list[Outcome], doing: str, limited: bool) -> None:
        """Time candidates. limited: none counts as timed if the time limit comes before each was timed once."""
        assert self.device is not None
        times: list[list[float]] = [[] for _ in outcomes]
        timed = self.device.time([{**self.fixed, **o.consts} for o in outcomes], self.options.rounds)
        for turn in range(self.options.rounds * len(outcomes)):
            if limited and not self.is_in_time() and not all(times):
                return
            round_number, place = turn // len(outcomes) + 1, outcomes[turn % len(outcomes)]
            named = f": {label(place.consts)}" if isinstance(self.device, InTurns) else ""
            self.report(f"{doing}, round {round_number} of {self.options.rounds}{named}")
            index, milliseconds = next(timed, (None, 0.0))
            if index is None:  # some were lost
                break
            if milliseconds != milliseconds:
                self.set_status(outcomes[index], "hangs", "no answer while it was timed")
            else:
                times[index].append(milliseconds)
        for outcome, found in zip(outcomes, times, strict=True):
            if outcome.status in ("right", "timed") and found:
                outcome.milliseconds = found
                self.set_status(outcome, "timed")

    def update_best(self, outcomes: list[Outcome]) -> None:
        """Replace the best candidate if another one is clearly faster."""
        best = min(
            (o for o in [*outcomes, *([self.best] if self.best else [])] if o.status == "timed"), key=lambda o: o.median, default=None
        )
        if best is None or best is self.best:
            return
        if self.best is None or self.best.status != "timed" or best.median < GAIN_RATIO * self.best.median:
            self.best = best
            if self.keep is not None:
                self.keep(best)

    def time_finalists(self) -> None:
        """Time the fastest few once more, side by side.

        Their figures may have been taken minutes apart, or in an earlier run.
        """
        if self.device is None or self.best is None:
            return
        timed = sorted((o for o in self.outcomes.values() if o.status == "timed"), key=lambda o: o.median)[:FINALISTS]
        if len(timed) < 2 and not any(o.recorded for o in timed):
            return
        self.time(timed, f"the last {len(timed)}", limited=False)
        best = min((o for o in timed if o.status == "timed"), key=lambda o: o.median, default=None)
        if best is not None:
            self.best = best
            if self.keep is not None:
                self.keep(best)
        self.report("done")
