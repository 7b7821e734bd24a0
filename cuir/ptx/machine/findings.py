"""Findings: broken rules of a run, told with places in the sources, the two parties, and how to replay."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Protocol

import numpy as np

from ...sync.accesses import find_races
from ...text.diagnostics import CuirError, Diagnostic, Note
from ...text.source import Source, Span
from .knowledge import Event, Knowledge
from .memories import IN_FLIGHT, Meeting
from .program import Program

MOST = 50  # findings of a launch
TOOLKIT = re.compile(r"/usr/(include|lib)/|.*/cuda[^/]*/(.*/)?include/|.*/nvidia/cu\w+/include/")


class Grid(Protocol):
    @property
    def grid(self) -> tuple[int, int, int]: ...
    def find_cta(self, number: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]: ...


class Running(Protocol):
    """What findings need to know of a machine."""

    @property
    def program(self) -> Program: ...
    @property
    def knowledge(self) -> Knowledge: ...
    @property
    def places(self) -> list[int]: ...
    @property
    def launch(self) -> Grid: ...
    @property
    def width(self) -> int: ...
    @property
    def ptx_source(self) -> Source: ...
    @property
    def findings(self) -> Findings: ...
    @property
    def tick(self) -> int: ...
    @property
    def earlier(self) -> Sequence[EarlierStore]: ...
    def find_issuer(self, tick: int | None) -> int: ...
    def find_place(self, tick: int | None) -> int: ...
    def is_fenced(self, slot: int, event: Event, memory: str) -> bool: ...


@dataclass(frozen=True)
class EarlierStore:
    """A store of the launch before, which may go on while this one begins. Its place counts down from -1.

    Attributes:
        fenced: Whether engines see it: its threads executed a proxy fence behind it, or an engine did it.
    """

    span: Span
    fenced: bool


@dataclass(frozen=True)
class AccessRecord:
    """An access as the rules of `sync` see it."""

    mode: str
    proxy: str
    completion: Event | None
    memory: str
    worker: int
    label: str
    owner: str
    description: str
    text: str
    span: Span
    awaited: str = ""
    seen: bool = True


@dataclass(frozen=True)
class ThreadOrder:
    """The order that one thread knows; the race rules ask it."""

    machine: Running
    slot: int
    memory: str = "shared"

    def is_before(self, event: Event) -> bool:
        known = self.machine.knowledge
        return event[1] < IN_FLIGHT and (event[0] == self.slot + known.first or known.is_known(self.slot, event))

    def is_fenced(self, event: Event) -> bool:
        return self.is_before(event) and self.machine.is_fenced(self.slot, event, self.memory)

    def is_over(self, event: Event) -> bool:
        return self.is_before(event)


@cache
def read_source(path: str) -> Source | None:
    """Return the text of a source file, None if it cannot be read."""
    try:
        return Source(Path(path).name, Path(path).read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None


@dataclass
class Findings:
    """The findings of a launch; one for each pair of places.

    Attributes:
        replay: How the run is repeated.
        doubtful: Those that count only if what the kernel writes depends on them.
        warnings: What the manual asks for and no card that we know of needs.
    """

    replay: str = ""
    diagnostics: list[Diagnostic] = field(default_factory=list)
    warnings: list[Diagnostic] = field(default_factory=list)
    doubtful: list[Diagnostic] = field(default_factory=list)
    seen: set[tuple[object, ...]] = field(default_factory=set)

    def add(self, code: str, message: str, span: Span | None, hint: str = "", notes: Sequence[tuple[str, Span | None]] = ()) -> None:
        """Enter a finding, unless one with this code and these places is there."""
        key = (code, span and (span.source.name, span.line, span.column), tuple(n[1] and (n[1].line, n[1].column) for n in notes))
        if key in self.seen or len(self.diagnostics) >= MOST:
            return
        self.seen.add(key)
        told = (*(Note(*n) for n in notes), Note(f"replay: {self.replay}"))
        self.diagnostics.append(Diagnostic(code, message, span, told, hint or None))

    def warn(self, code: str, message: str, span: Span, hint: str) -> None:
        """Enter a warning, unless one with this code and place is there."""
        if all((d.code, d.span) != (code, span) for d in self.warnings):
            note = Note(f"replay: {self.replay}")
            self.warnings.append(Diagnostic(code, message, span, (note,), hint, severity="warning"))

    def add_unwritten(self, who: str, memory: str, span: Span | None) -> None:
        """Enter a read of memory that nothing has written; one of shared memory is doubtful."""
        count = len(self.diagnostics)
        self.add("M401", f"{who} reads {memory} memory that nothing has written", span, "write it first, or wait for the copy that does")
        if memory == "shared":
            self.doubtful += self.diagnostics[count:]

    def drop_doubtful(self) -> None:
        """Drop findings on which nothing depends."""
        self.diagnostics[:] = [d for d in self.diagnostics if not any(d is other for other in self.doubtful)]

    def stop(self, code: str, message: str, span: Span | None, hint: str = "") -> CuirError:
        """Enter a finding after which the run cannot go on; return the error to raise, with all findings."""
        self.seen.clear()  # it is told, whatever else was found there
        self.add(code, message, span, hint)
        return CuirError(self.diagnostics)


def is_of_toolkit(path: str) -> bool:
    """Return whether a source is a header of CUDA's toolkit or of the system."""
    return TOOLKIT.match(path) is not None


def make_span(machine: Running, place: int) -> Span:
    """Return the place of an instruction: in the source, with the calls that it was inlined through, else in the PTX.

    Lines within the toolkit's headers are left out: the call of them is the user's.
    """
    if place < 0:
        return machine.earlier[-place - 1].span
    spans = machine.program.spans
    if place not in spans:
        spans[place] = locate(machine.program, place, machine.ptx_source)
    return spans[place]


def locate(program: Program, place: int, ptx_source: Source) -> Span:
    """Return the place of an instruction of a program, as `make_span` does."""
    instruction, _ = program.instructions[place]
    span: Span | None = None
    for frame in reversed(instruction.chain):
        source = read_source(frame.path)
        if source is None or (span is not None and is_of_toolkit(frame.path)):
            continue
        inner = Span(source, frame.line, frame.column, frame.line, max(frame.column + 1, len(source.line(frame.line)) + 1), span)
        span = inner
    if span is not None:
        return span
    source = ptx_source
    text = source.line(instruction.line)
    column = len(text) - len(text.lstrip()) + 1
    return Span(source, instruction.line, column, instruction.line, len(text) + 1)


def describe_cta(machine: Running, cta: int) -> str:
    """Describe a CTA by its place in the grid."""
    x, y, z = (int(n) for n in machine.launch.find_cta(np.array(cta)))
    return f"CTA ({x}, {y}, {z})" if machine.launch.grid[1:] != (1, 1) else f"CTA {x}"


def describe_thread(machine: Running, thread: int) -> str:
    """Describe a thread by its CTA, warp and lane."""
    cta, local = divmod(thread, machine.width)
    return f"{describe_cta(machine, cta)}, warp {local >> 5}, lane {local & 31}"


def describe_engine(machine: Running, place: int) -> tuple[str, str, str]:
    """Return what an instruction starts, the wait after which that is over, and the proxy of its accesses."""
    if place < 0:
        return "", "griddepcontrol.wait", "async" if machine.earlier[-place - 1].fenced else "generic"
    return describe_asynchronous(machine.program.instructions[place][0].op)


@cache
def describe_asynchronous(op: str) -> tuple[str, str, str]:
    """Return the same of an opcode."""
    name = op.split(".sync")[0] if op.startswith("wgmma") else ".".join(op.split(".")[: 4 if "tensor" in op else 3])
    if op.startswith("wgmma"):
        return f"the product ({name})", "wgmma.wait_group", "async"
    if op.startswith(("cp.async.bulk", "cp.reduce.async.bulk")):
        waited = "cp.async.bulk.wait_group" if "bulk_group" in op else "the wait for the phase of its mbarrier"
        return f"the copy ({name.split('.shared')[0].split('.global')[0]})", waited, "async"
    if op.startswith("cp.async"):
        return "the copy (cp.async)", "the wait for its cp.async group", "generic"
    if op.startswith("st.async"):
        return "the store (st.async)", "the wait for the phase of its mbarrier", "generic"
    return "", "", "generic"


def make_record(machine: Running, event: tuple[int, int | None, str], memory: str, old_place: int | None = None) -> AccessRecord:
    """Make the record of an earlier access: by whom, when (None: an engine has it in flight), and whether it was a read."""
    thread, tick, mode = event
    flying = tick is None or tick >= IN_FLIGHT
    if old_place is None:
        assert tick is not None
        old_place = machine.places[tick - IN_FLIGHT if flying else tick]
    what, awaited, proxy = describe_engine(machine, old_place)
    issuer = thread if thread < machine.knowledge.total else machine.find_issuer(tick)
    owner = describe_thread(machine, issuer) if old_place >= 0 else "the launch before"
    label = f"{what} of {owner}" if what else owner
    completion = None if flying or tick is None else (thread, tick)
    span = make_span(machine, old_place)
    if mode == "write" and old_place >= 0 and machine.program.instructions[old_place][0].op.startswith("cp.reduce"):
        mode = "add"
    return AccessRecord(mode, proxy, completion, memory, issuer, label, owner, "accessed", "", span, awaited)


def report_engine_meeting(
    machine: Running, slot: int, place: int, mode: str, old: tuple[int, int | None, str], memory: str, old_place: int | None = None
) -> None:
    """Judge an access where it or the earlier one is an engine's, and enter what the race rules find.

    old_place: the instruction of an earlier read by an engine.
    """
    memory_name = "shared" if memory == "shared" else "tensor"
    earlier = make_record(machine, old if old_place is None else (old[0], None, old[2]), memory_name, old_place)
    thread = slot + machine.knowledge.first
    what, _, proxy = describe_engine(machine, place)
    who = describe_thread(machine, thread)
    label = f"{what} of {who}" if what else who
    new = AccessRecord(mode, proxy, (thread, machine.tick), memory_name, thread, label, who, "", "", make_span(machine, place))
    for _, finding in find_races(new, [earlier], ThreadOrder(machine, slot, memory)):
        hint = "fence.proxy.async by the thread that wrote, before the barrier" if finding.code == "R403" else finding.hint
        machine.findings.add(finding.code, finding.message, finding.span, hint, finding.notes)


def report_meeting(machine: Running, meeting: Meeting, slot: int, place: int, mode: str, strong: bool, memory: str, text: str) -> None:
    """Judge two accesses by the race rules, and enter what they find."""
    thread = slot + machine.knowledge.first
    flying = meeting.tick >= IN_FLIGHT
    if (not flying and meeting.thread >= machine.knowledge.total) or describe_engine(machine, machine.find_place(meeting.tick))[
        2
    ] == "async":
        report_engine_meeting(machine, slot, place, mode, (meeting.thread, meeting.tick, meeting.mode), memory)
        return
    old_place = machine.places[meeting.tick - IN_FLIGHT if flying else meeting.tick]
    if flying and meeting.thread == thread and mode == "write" and meeting.mode == "read":
        return
    new_span, old_span = make_span(machine, place), make_span(machine, old_place)
    who, other = describe_thread(machine, thread), describe_thread(machine, meeting.thread)
    memory_name = "shared" if memory == "shared" else "tensor"
    is_atomic = strong and meeting.strong
    new = AccessRecord(
        "atomic" if is_atomic else mode, "generic", (thread, machine.tick), memory_name, thread, who, who, "", text, new_span
    )
    completion = None if flying else (meeting.thread, meeting.tick)
    what, awaited, _ = describe_engine(machine, old_place) if flying else ("", "", "")
    old_mode = "atomic" if is_atomic else meeting.mode
    label = f"{what} of {other}" if flying else other
    old = AccessRecord(old_mode, "generic", completion, memory_name, meeting.thread, label, other, "accessed", text, old_span, awaited)
    for _, finding in find_races(new, [old], ThreadOrder(machine, slot)):
        hint = finding.hint if flying else advise(machine, thread, meeting.thread, finding.hint)
        machine.findings.add(finding.code, finding.message, finding.span, hint, finding.notes)


def advise(machine: Running, thread: int, other: int, hint: str) -> str:
    """Say what would order two threads."""
    if thread // machine.width != other // machine.width:
        return "only a fence and a flag orders two CTAs: a release by one, an acquire by the other that sees it"
    if thread >> 5 == other >> 5:
        return "__syncwarp(), or a barrier, must lie between the two"
    return f"{hint}: __syncthreads(), or an mbarrier that both use"
