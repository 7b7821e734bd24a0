"""Whole programs against each other: a changed schedule of a kernel enters, and takes the place of the best so far if it is right and faster.

It decides what must stay as it is and what counts as faster. Verification on the CPU comes before it.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from ..checking.checked import Const
from ..checking.checker import check, pick_kernel
from ..syntax.nodes import ConstType, Param, Program
from ..syntax.nodes import Literal as Number
from ..syntax.printer import show
from ..syntax.rewrite import with_children
from ..syntax.types import DType
from ..text.diagnostics import CuirError, Diagnostic
from .compiling import Built
from .search import BETTER
from .space import plain

Status = Literal["refused", "wrong", "hangs", "fault", "slower", "faster", "unconfirmed", "unranked"]
Compile = Callable[[str, str, Mapping[str, Const]], Built]


class TextDevice(Protocol):
    """What runs programs that are given as text, with all their consts (see `Device`)."""

    def check(self, consts: Mapping[str, Const], text: str) -> tuple[str, str]: ...

    def time(self, consts: Mapping[str, Const], text: str) -> float: ...


@dataclass(frozen=True)
class Contender:
    """A program in canonical text, its kernel, every const parameter's value, the shared memory of a CTA; what compiling it came to."""

    text: str
    kernel: str
    consts: Mapping[str, Const]
    shared_bytes: int
    built: Built | None = None

    @staticmethod
    def of(program: Program, kernel: str | None, fixed: Mapping[str, Const]) -> Contender:
        """A program as it stands: `fixed` and the defaults of its signature. Raises CuirError: what `check` finds."""
        checked = check(program, kernel, fixed)
        return Contender(show(program), checked.name, dict(checked.consts), checked.shared_bytes)


@dataclass(frozen=True)
class Entry:
    """What came of a contender. milliseconds: its own times and those of the best so far, taken in turns; empty if it was not timed."""

    status: Status
    why: str
    contender: Contender
    milliseconds: tuple[float, ...] = ()
    best: tuple[float, ...] = ()

    @property
    def speedup(self) -> float | None:
        """The best's time over its own."""
        return statistics.median(self.best) / statistics.median(self.milliseconds) if self.milliseconds and self.best else None

    def as_json(self) -> dict[str, Any]:
        built = self.contender.built
        return {
            "status": self.status,
            "why": self.why,
            "consts": plain(self.contender.consts),
            "milliseconds": [round(t, 5) for t in self.milliseconds],
            "best": [round(t, 5) for t in self.best],
            "registers": built.registers if built else None,
            "spills": built.spills if built else None,
            "shared_bytes": self.contender.shared_bytes,
        }


@dataclass
class Contest:
    """The best so far, and those who entered. One at a time is compiled and timed, whatever the threads that propose.

    device: None if nothing can be timed here: entries are then `unranked`, since neither registers nor a trace of the interpreter tell which of two right
    kernels is faster, and none takes the best's place. compile: None without nvcc. rounds: of timing, in turns; those who win are timed as often again.
    """

    best: Contender
    device: TextDevice | None
    compile: Compile | None
    rounds: int = 3
    entries: list[Entry] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def open(self) -> Entry:
        """The start: compiled, and on a device checked and timed. Raises CuirError if it cannot serve: U505 and the like, V401, V403."""
        with self.lock:
            entry = self._examined(self.best)
            if entry.status in ("refused", "wrong", "hangs", "fault"):
                code = "V403" if entry.status in ("hangs", "fault") else "V401" if entry.status == "wrong" else "L010"
                raise CuirError.of(code, f"the program to tune is no start: {entry.why}", hint="cuir verify ... --gpu says more")
            self.best = entry.contender
            if self.device is None:
                return entry
            return replace(entry, milliseconds=tuple(self._time(self.best) for _ in range(self.rounds)))

    def enter(self, contender: Contender, confirmed: Callable[[], str] = lambda: "") -> Entry:
        """Compiles, checks and times a verified program; it is the best from now on if it is faster.

        confirmed: asked of one that is faster, for verifications that are too long for all: why it is not to be kept after all, empty if it is.
        """
        with self.lock:
            entry = self._examined(contender)
            if entry.status == "slower":  # until it is shown to be faster
                entry = self._timed(entry)
            if entry.status == "faster" and (why := confirmed()):
                entry = replace(entry, status="unconfirmed", why=why)
            if entry.status == "faster":
                self.best = entry.contender
            self.entries.append(entry)
            return entry

    def _examined(self, contender: Contender) -> Entry:
        if self.compile is not None:
            contender = replace(contender, built=self.compile(contender.text, contender.kernel, contender.consts))
            if contender.built is not None and contender.built.refused:
                return Entry("refused", contender.built.refused, contender)
        if self.device is None:
            return Entry("unranked", "there is no GPU to time it on", contender)
        status, why = self.device.check(contender.consts, contender.text)
        if status == "right":
            return Entry("slower", "", contender)
        known: dict[str, Status] = {"wrong": "wrong", "hangs": "hangs", "fault": "fault"}
        return Entry(known.get(status, "refused"), why, contender)

    def _timed(self, entry: Entry) -> Entry:
        mine: list[float] = []
        best: list[float] = []
        for again in (False, True):
            for turn in range(self.rounds):
                for one, times in ((entry.contender, mine), (self.best, best))[:: -1 if turn % 2 else 1]:
                    times.append(self._time(one))
            if any(t != t for t in (*mine, *best)):
                return replace(entry, status="hangs", why="no answer while it was timed")
            faster = statistics.median(mine) < BETTER * statistics.median(best)
            if not faster or again:
                break
        return replace(entry, status="faster" if faster else "slower", milliseconds=tuple(mine), best=tuple(best))

    def _time(self, one: Contender) -> float:
        assert self.device is not None
        return self.device.time(one.consts, one.text)


def with_defaults(program: Program, kernel: str | None, consts: Mapping[str, Const]) -> Program:
    """The program with these values as the defaults of its const parameters, so that its text alone says the whole setting. Dtypes and dims stay open."""
    picked = pick_kernel(program, kernel)

    def settled(p: Param) -> Param:
        value = consts.get(p.name)
        if p.default is None or not isinstance(p.type, ConstType) or value is None or isinstance(value, DType):
            return p
        return replace(p, default=Number(value, span=p.span))

    changed = replace(picked, params=tuple(map(settled, picked.params)))
    return with_children(program, lambda item: changed if item is picked else item)


def same_interface(origin: Program, program: Program, kernel: str) -> tuple[Diagnostic, ...]:
    """What keeps a changed program from being launched as the origin is: empty if nothing. New const parameters with a default are allowed."""
    before = pick_kernel(origin, kernel)
    hint = "change the schedule, not the interface: name, tensors and scalars as they were, in their order, and no const without a default"
    after = program.kernels().get(kernel)
    if after is None:
        names = ", ".join(f"`{name}`" for name in program.kernels()) or "none"
        return (Diagnostic("V501", f"the kernel is called `{kernel}`, found {names}", None, (), hint),)
    wrong = []
    given, kept = ([p for p in k.params if not isinstance(p.type, ConstType)] for k in (before, after))
    if given != kept:
        wrong.append(f"`{kernel}` takes {', '.join(map(show, given))}; found {', '.join(map(show, kept)) or 'nothing'}")
    open_before = {p.name for p in before.params if isinstance(p.type, ConstType) and p.default is None}
    open_after = {p.name for p in after.params if isinstance(p.type, ConstType) and p.default is None}
    for name in sorted(open_before - {p.name for p in after.params}):
        wrong.append(f"the const parameter `{name}` is given by the caller, and is missing")
    for name in sorted(open_after - open_before):
        wrong.append(f"the const parameter `{name}` has no default, and no caller gives it a value")
    if after.arch != before.arch:
        wrong.append(f"`{kernel}` is for {before.arch}, found {after.arch}")
    return tuple(Diagnostic("V501", text, after.span, (), hint) for text in wrong)
