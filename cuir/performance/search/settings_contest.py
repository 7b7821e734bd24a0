"""Contests of whole programs, in which a correct and faster schedule replaces the best one so far.

The interface of a program stays as it is. Verification on the CPU precedes the contest.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from ...checking.checked import Const
from ...checking.checker import check, pick_kernel
from ...syntax.nodes import ConstType, Param, Program
from ...syntax.nodes import Literal as Number
from ...syntax.printer import show
from ...syntax.types import DType
from ...syntax.walk import with_children
from ...text.diagnostics import CuirError, Diagnostic
from .compiling import BuildResult
from .search import GAIN_RATIO
from .space import plain

Status = Literal["refused", "wrong", "hangs", "fault", "slower", "faster", "unconfirmed", "unranked"]
Compile = Callable[[str, str, Mapping[str, Const]], BuildResult]


class TextDevice(Protocol):
    """A device that runs programs given as text, with all their consts (see `Device`)."""

    def check(self, consts: Mapping[str, Const], text: str) -> tuple[str, str]:
        """Return ("right" | "wrong" | "hangs" | "fault", why)."""
        ...

    def time(self, consts: Mapping[str, Const], text: str) -> float:
        """Return milliseconds; NaN if there is no figure."""
        ...


@dataclass(frozen=True)
class Contender:
    """A program in canonical text, its kernel, all consts, shared memory of a CTA, compilation result."""

    text: str
    kernel: str
    consts: Mapping[str, Const]
    shared_bytes: int
    built: BuildResult | None = None

    @staticmethod
    def of(program: Program, kernel: str | None, fixed: Mapping[str, Const]) -> Contender:
        """Return a program with `fixed` and the defaults of its signature.

        Raises: CuirError with the findings of `check`.
        """
        checked = check(program, kernel, fixed)
        return Contender(show(program), checked.name, dict(checked.consts), checked.shared_bytes)


@dataclass(frozen=True)
class Entry:
    """Result of a contender.

    Attributes:
        status: Outcome of the contest for it.
        why: Reason of the status.
        contender: The contender.
        milliseconds: Its times, empty if it was not timed.
        best: Times of the best contender so far, taken in turns with its own.
    """

    status: Status
    why: str
    contender: Contender
    milliseconds: tuple[float, ...] = ()
    best: tuple[float, ...] = ()

    @property
    def speedup(self) -> float | None:
        """The best contender's time over this one's, or None if it was not timed."""
        return statistics.median(self.best) / statistics.median(self.milliseconds) if self.milliseconds and self.best else None

    def as_json(self) -> dict[str, object]:
        """Return the entry as JSON data."""
        build = self.contender.built
        return {
            "status": self.status,
            "why": self.why,
            "consts": plain(self.contender.consts),
            "milliseconds": [round(t, 5) for t in self.milliseconds],
            "best": [round(t, 5) for t in self.best],
            "registers": build.registers if build else None,
            "spills": build.spills if build else None,
            "shared_bytes": self.contender.shared_bytes,
        }


@dataclass
class Contest:
    """The best contender so far, and all entries.

    One contender at a time is compiled and timed, however many threads propose.

    Attributes:
        best: The best contender so far.
        device: None if nothing can be timed here. Entries are then `unranked`, since neither registers nor a trace of the
            interpreter tell which of two correct kernels is faster, and none replaces the best.
        compile: None without nvcc.
        rounds: Rounds of timing, in turns; a winner is timed as often again.
        entries: Results in the order of their entry.
    """

    best: Contender
    device: TextDevice | None
    compile: Compile | None
    rounds: int = 3
    entries: list[Entry] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def open(self) -> Entry:
        """Compile the start, and on a device check and time it.

        Raises: CuirError if it cannot serve as a start: U505 and the like, V401, V403.
        """
        with self.lock:
            entry = self._examine(self.best)
            if entry.status in ("refused", "wrong", "hangs", "fault"):
                code = "V403" if entry.status in ("hangs", "fault") else "V401" if entry.status == "wrong" else "L010"
                raise CuirError.of(code, f"the program to tune is no start: {entry.why}", hint="cuir verify ... --gpu says more")
            self.best = entry.contender
            if self.device is None:
                return entry
            return replace(entry, milliseconds=tuple(self._time(self.best) for _ in range(self.rounds)))

    def enter(self, contender: Contender, confirm: Callable[[], str] = lambda: "") -> Entry:
        """Compile, check and time a verified program; if it is faster, it becomes the best.

        `confirm` runs the verifications that are too long for all candidates on a faster one. It returns why the candidate is
        rejected, empty if it is not.
        """
        with self.lock:
            entry = self._examine(contender)
            if entry.status == "slower":  # the default until it is timed
                entry = self._time_in_turns(entry)
            if entry.status == "faster" and (why := confirm()):
                entry = replace(entry, status="unconfirmed", why=why)
            if entry.status == "faster":
                self.best = entry.contender
            self.entries.append(entry)
            return entry

    def _examine(self, contender: Contender) -> Entry:
        if self.compile is not None:
            contender = replace(contender, built=self.compile(contender.text, contender.kernel, contender.consts))
            if contender.built is not None and contender.built.refused:
                return Entry("refused", contender.built.refused, contender)
        if self.device is None:
            return Entry("unranked", "there is no GPU to time it on", contender)
        status, why = self.device.check(contender.consts, contender.text)
        if status == "right":
            return Entry("slower", "", contender)
        statuses: dict[str, Status] = {"wrong": "wrong", "hangs": "hangs", "fault": "fault"}
        return Entry(statuses.get(status, "refused"), why, contender)

    def _time_in_turns(self, entry: Entry) -> Entry:
        times_of_entry: list[float] = []
        times_of_best: list[float] = []
        for is_repetition in (False, True):
            for turn in range(self.rounds):
                for contender, times in ((entry.contender, times_of_entry), (self.best, times_of_best))[:: -1 if turn % 2 else 1]:
                    times.append(self._time(contender))
            if any(t != t for t in (*times_of_entry, *times_of_best)):
                return replace(entry, status="hangs", why="no answer while it was timed")
            faster = statistics.median(times_of_entry) < GAIN_RATIO * statistics.median(times_of_best)
            if not faster or is_repetition:
                break
        return replace(entry, status="faster" if faster else "slower", milliseconds=tuple(times_of_entry), best=tuple(times_of_best))

    def _time(self, contender: Contender) -> float:
        assert self.device is not None
        return self.device.time(contender.consts, contender.text)


def with_defaults(program: Program, kernel: str | None, consts: Mapping[str, Const]) -> Program:
    """Return the program with these values as the defaults of its const parameters.

    Its text alone is then the whole setting. Dtypes and dims stay open.
    """
    picked = pick_kernel(program, kernel)

    def set_default(p: Param) -> Param:
        value = consts.get(p.name)
        if p.default is None or not isinstance(p.type, ConstType) or value is None or isinstance(value, DType):
            return p
        return replace(p, default=Number(value, span=p.span))

    changed = replace(picked, params=tuple(map(set_default, picked.params)))
    return with_children(program, lambda item: changed if item is picked else item)


def compare_interfaces(origin: Program, program: Program, kernel: str) -> tuple[Diagnostic, ...]:
    """Return why a changed program cannot be launched like the origin; empty if it can.

    New const parameters with a default are allowed.
    """
    before = pick_kernel(origin, kernel)
    hint = "change the schedule, not the interface: name, tensors and scalars as they were, in their order, and no const without a default"
    after = program.kernels().get(kernel)
    if after is None:
        names = ", ".join(f"`{name}`" for name in program.kernels()) or "none"
        return (Diagnostic("V501", f"the kernel is called `{kernel}`, found {names}", None, (), hint),)
    differences = []
    params_before, params_after = ([p for p in k.params if not isinstance(p.type, ConstType)] for k in (before, after))
    if params_before != params_after:
        differences.append(
            f"`{kernel}` takes {', '.join(map(show, params_before))}; found {', '.join(map(show, params_after)) or 'nothing'}"
        )
    open_before = {p.name for p in before.params if isinstance(p.type, ConstType) and p.default is None}
    open_after = {p.name for p in after.params if isinstance(p.type, ConstType) and p.default is None}
    for name in sorted(open_before - {p.name for p in after.params}):
        differences.append(f"the const parameter `{name}` is given by the caller, and is missing")
    for name in sorted(open_after - open_before):
        differences.append(f"the const parameter `{name}` has no default, and no caller gives it a value")
    if after.arch != before.arch:
        differences.append(f"`{kernel}` is for {before.arch}, found {after.arch}")
    return tuple(Diagnostic("V501", text, after.span, (), hint) for text in differences)
