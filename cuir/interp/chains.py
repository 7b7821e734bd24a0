"""What a fault of synchronisation is traced by: what the text does with each barrier, what the barriers remember, and the faults of one barrier.

Runs once a fault is found, on the state as it is then. Owns what is read off a barrier's log and off the text; which of it explains a fault is causes.py's
and deadlocks.py's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import cast

from ..checking.checked import Checked
from ..checking.views import root_name
from ..syntax.nodes import Call, For, If, Stmt
from ..syntax.walk import walk
from ..text.plurals import count_noun
from ..text.source import Span
from .barriers import KEPT, Event, Mbarrier, NamedBarrier
from .machine import Machine

Said = tuple[str, Span | None]
RING = "the i-th use of a ring of n stages is its stage's phase i // n: a reader waits for parity i // n % 2, who fills it again for i // n % 2 ^ 1"


@dataclass
class Cause:
    """notes: the faulty statement first. sure: how certain the cause is, 0 if it is only what was seen."""

    notes: Sequence[Said] = field(default_factory=list)
    hint: str = ""
    sure: int = 0


@dataclass(frozen=True)
class Use:
    """A call of the text that uses a barrier (`name`): "arrives" (with its bytes, if it is an expect), "waits", or "lands" a copy of `array` on it."""

    kind: str
    name: str
    role: str
    span: Span
    array: str = ""
    along: bool | str = False  # which CTAs' barriers of this name, as `Checked.ctas` has it


class Text:
    """What the text of a kernel does with its barriers and shared arrays, by the table of primitives."""

    def __init__(self, checked: Checked):
        self.checked = checked

    @cached_property
    def uses(self) -> list[Use]:
        uses = []
        for role in self.checked.roles:
            for node in (n for stmt in role.body for n in walk(stmt)):
                bound = self.checked.find_call(node) if isinstance(node, Call) else None
                if bound is None:
                    continue
                e, args = bound.op.effects, bound.args
                along = getattr(args.get("cluster"), "value", False)
                for kind, arg in (("arrives", e.arrives), ("waits", e.waits), ("lands", e.completes)):
                    name = root_name(args[arg]) if arg is not None and arg in args else None
                    if name is not None:
                        array = next((root_name(args[a.arg]) or "" for a in e.accesses if a.mode == "write" and a.arg in args), "")
                        uses.append(Use(kind, name, role.name, node.span, array, along))
        return uses

    @cached_property
    def guards(self) -> dict[tuple[str, Span], Use]:
        """For each call in a role: the wait before it in its block, or around it up to a loop. Inside of one turn nothing else can hold it back."""
        waits = {(u.role, u.span): u for u in self.of("waits")}
        guards: dict[tuple[str, Span], Use] = {}

        def block(role: str, stmts: Sequence[Stmt], guard: Use | None) -> None:
            for stmt in stmts:
                if isinstance(stmt, For):
                    block(role, stmt.body, None)
                elif isinstance(stmt, If):
                    block(role, stmt.body, guard)
                    block(role, stmt.orelse, guard)
                else:
                    for node in walk(stmt):
                        if isinstance(node, Call) and guard is not None:
                            guards[role, node.span] = guard
                        if isinstance(node, Call):
                            guard = waits.get((role, node.span), guard)

        for role in self.checked.roles:
            block(role.name, role.body, None)
        return guards

    @cached_property
    def pairs(self) -> dict[str, str]:
        """Rings by which buffers are given back -> those by which they are filled: a copy that lands on the one lies behind a wait on the other."""
        copies = ((u, self.guards.get((u.role, u.span))) for u in self.of("lands"))
        return {guard.name: u.name for u, guard in copies if guard is not None and guard.name != u.name}

    def of(self, kind: str, name: str | None = None, role: str | None = None, array: str | None = None) -> list[Use]:
        return [u for u in self.uses if u.kind == kind and name in (None, u.name) and role in (None, u.role) and array in (None, u.array)]

    def arriving(self, name: str) -> int:
        """How many workers can arrive at the barrier of one CTA: those of its own, or of the CTAs in line, for each line that a role's arrivals go along."""
        roles = {r.name: r.workers for r in self.checked.roles}
        lines: dict[str, set[bool | str]] = {}
        for u in self.of("arrives", name):
            lines.setdefault(u.role, set()).add(u.along)
        return sum(roles[role] * (self.checked.cluster if True in of else sum(len(self.checked.ctas(0, line)) for line in of))
                   for role, of in lines.items())  # fmt: skip

    def sure_arrivals(self, name: str) -> int:
        """Count the workers that certainly come to a named barrier that is no ring: of roles that use it outside of branches."""
        if self.checked.barriers[name].stages is not None:
            return 0
        spans = {(u.role, u.span) for u in self.of("arrives", name)}
        return sum(role.workers for role in self.checked.roles if any((role.name, s) in spans for s in _unconditional_calls(role.body)))


def _unconditional_calls(stmts: Sequence[Stmt]) -> Iterator[Span]:
    """The places of all calls outside of branches."""
    for stmt in stmts:
        if isinstance(stmt, For):
            yield from _unconditional_calls(stmt.body)
        elif not isinstance(stmt, If):
            yield from (node.span for node in walk(stmt) if isinstance(node, Call))


def text_of(checked: Checked) -> Text:
    text = checked.made.get(Text)
    if text is None:
        text = checked.made[Text] = Text(checked)
    return text


# ---- what the machine remembers
def mbarriers(m: Machine) -> list[Mbarrier]:
    return [bar for (name, _), ring in m.barriers.items() if not m.launch.checked.barriers[name].hardware for bar in ring]  # type: ignore[misc]


def ring_of(m: Machine, name: str, cta: int) -> list[Mbarrier]:
    """The mbarriers of a ring, by stage; none if there is no such ring."""
    return cast("list[Mbarrier]", m.barriers.get((name, cta), []))


def place_of(m: Machine, bar: Mbarrier | NamedBarrier) -> tuple[str, int, int]:
    """The ring of a barrier, its stage and its CTA."""
    return next((name, ring.index(bar), cta) for (name, cta), ring in m.barriers.items() if any(b is bar for b in ring))


def waits_of(bar: Mbarrier, worker: int) -> list[Event]:
    return [e for e in bar.events() if e.kind == "wait" and e.worker == worker]


def arrivals_of(bar: Mbarrier, phase: int | None = None, worker: int | None = None) -> list[Event]:
    """The last first."""
    return [e for e in bar.events() if e.kind == "arrive" and phase in (None, e.phase) and worker in (None, e.worker)]


def all_waits(m: Machine, worker: int) -> list[tuple[Event, Mbarrier]]:
    """Those of a worker at any mbarrier, the last first."""
    return sorted(((e, bar) for bar in mbarriers(m) for e in waits_of(bar, worker)), key=lambda x: -x[0].tick)


# ---- words
def labels(events: Iterable[Event]) -> str:
    return ", ".join(dict.fromkeys(e.label for e in events)) or "nobody"


def already(bar: Mbarrier, wait: Event) -> str:
    """A wait that returned at once, and why."""
    over = (
        "which is over before the first arrival" if wait.phase < 0 else f"which {wait.label} knew to be over: it had waited for it before"
    )
    return f"this wait({wait.value}) on `{bar.text}` returned at once: it means phase {wait.phase}, {over}"


def parity_for(m: Machine, bar: Mbarrier, phase: int) -> str:
    ring = f"; {RING}" if len(m.barriers[place_of(m, bar)[0], place_of(m, bar)[2]]) > 1 else ""
    return f"phase {phase} has parity {phase % 2}: wait({phase % 2}) for it here{ring}"


# ---- faults of one barrier
def wrong_count(m: Machine, bar: Mbarrier | NamedBarrier) -> Cause | None:
    """More workers arrive than a phase takes."""
    text, name = text_of(m.launch.checked), place_of(m, bar)[0]
    came = [m.workers[n].label for n in bar.came]
    hardware = m.launch.checked.barriers[name].hardware
    able = max(len(came), text.sure_arrivals(name) if hardware else text.arriving(name))
    if able <= bar.count:
        return None
    who = (
        ", ".join(came) if len(came) == able else f"the workers of role `{'`, `'.join(sorted({u.role for u in text.of('arrives', name)}))}`"
    )
    groups, left = divmod(able, bar.count)
    if hardware and bar.count > 1 and not left:
        said = f"{groups} groups of {bar.count} workers share `{bar.text}`: {who}; the hardware knows nobody by name, so a phase ends after any {count_noun(bar.count, 'arrival')}, of whichever group"
        return Cause([(said, bar.span)], f"a named barrier for each group: a ring of them, named_barrier({bar.count}, stages={groups}), or one under a name of its own", 2)  # fmt: skip
    return Cause([(f"the count of `{bar.text}` is {bar.count}, and {able} workers arrive on it: {who}; a phase ends after {count_noun(bar.count, 'arrival')}, before the others have come", bar.span)],
                 f"the count is the number of workers that arrive in a phase, here {able}", 2)  # fmt: skip


def find_crowded_barrier(m: Machine, *workers: int) -> Cause | None:
    """A named barrier that more workers than it counts come to, one of these among them."""
    for (name, _), ring in m.barriers.items():
        if m.launch.checked.barriers[name].hardware:
            for bar in ring:
                cause = wrong_count(m, bar) if any(n in bar.came for n in workers) else None
                if cause is not None:
                    return cause
    return None


def came_twice(bar: Mbarrier, phase: int) -> Cause | None:
    """A worker that arrived twice in a phase which takes more than one."""
    seen: dict[int, Event] = {}
    for e in reversed(arrivals_of(bar, phase)):
        if e.worker in seen:
            first = seen[e.worker].span
            return Cause([(f"{e.label} arrives on `{bar.text}` a second time in phase {phase} here, so that it ended without another worker's arrival", e.span),
                          *([] if first == e.span else [(f"{e.label} arrived for this phase here", first)])],
                         "each worker arrives once a phase", 2)  # fmt: skip
        seen[e.worker] = e
    return None


def announced(events: list[Event], issue: Event) -> Event | None:
    """The expect (or other arrival) that an issued copy belongs to: the last one of its issuer before it, or the next one where the text has the copy first. `events`: the last first."""
    mine = [e for e in events if e.kind == "arrive" and e.worker == issue.worker]
    before = next((e for e in mine if e.tick < issue.tick), None)
    if before is not None and (before.span.line, before.span.column) < (issue.span.line, issue.span.column):
        return before
    return next((e for e in reversed(mine) if e.tick > issue.tick), None)


def bytes_of(bar: Mbarrier, phase: int) -> tuple[list[Event], list[Event]]:
    """The expects that count in a phase, and the copies that were issued for it."""
    events = bar.events()
    expects = [e for e in reversed(events) if e.kind == "arrive" and e.value and e.phase == phase]
    meant = [(e, announced(events, e)) for e in reversed(events) if e.kind == "issue"]
    return expects, [e for e, by in meant if (by.phase if by is not None else e.phase) == phase]


def torn(m: Machine, name: str, cta: int) -> Cause | None:
    """A copy whose bytes were announced at another stage of the ring than the one that it lands on."""
    ring = ring_of(m, name, cta)
    if len(ring) < 2:
        return None
    events = sorted((e for bar in ring for e in bar.events()), key=lambda e: -e.tick)
    home = {e.tick: bar for bar in ring for e in bar.events()}
    for e in reversed(events):
        by = announced(events, e) if e.kind == "issue" else None
        if by is not None and by.value and home[by.tick] is not home[e.tick]:
            return Cause([(f"this copy lands on `{home[e.tick].text}`, and the expect that goes with it announces its bytes on `{home[by.tick].text}`", e.span),
                          (f"the bytes are expected on `{home[by.tick].text}` here", by.span)], "the expect, the copy's barrier and its view have the same stage", 3)  # fmt: skip
    return None


def wrong_bytes(bar: Mbarrier, phase: int) -> Cause | None:
    """Bytes expected in a phase, and those that its copies bring."""
    expects, copies = bytes_of(bar, phase)
    expected, brought = sum(e.value for e in expects), sum(e.value for e in copies)
    if expected == brought or not (expects or copies):
        return None
    places = list(dict.fromkeys(c.span for c in copies))
    each = f" by {count_noun(len(copies), 'copy')}"
    if expects:
        said = f"{count_noun(expected, 'byte')} are expected here for phase {phase} of `{bar.text}`, and {brought:,} are copied{each if copies else ''}"
        notes: list[Said] = [(said, expects[0].span), *((f"copied on `{bar.text}` here", s) for s in places[:1])]
    else:
        arrived = arrivals_of(bar, phase)
        said = f"phase {phase} of `{bar.text}` expects no bytes, and {brought:,} are copied{each}"
        notes = [
            (said, arrived[-1].span if arrived else places[0]),
            *((f"copied on `{bar.text}` here", s) for s in places[: len(arrived)][:1]),
        ]
    return Cause(notes, "expect(nbytes(view)), summed over the views that are copied on the barrier in one phase", 2)


def astray(m: Machine, bar: Mbarrier) -> Cause | None:
    """A copy, or an arrival, at another stage of the ring, that may be the one which is missing here."""
    name, stage, cta = place_of(m, bar)
    apart = torn(m, name, cta)
    if apart is not None:
        return apart
    ring = ring_of(m, name, cta)
    for other in ring:
        if other is not bar and other.bytes < 0 and other.user is not None:
            return Cause([(f"this copy lands on `{other.text}`, where nobody expects its bytes, and not on `{bar.text}`", other.user.span)],
                         "the copy, the expect and the array's view have the same stage", 3)  # fmt: skip
    most = max(ring, key=lambda b: sum(b.came.values()))
    here = sum(bar.came.values())
    if most is not bar and most.last is not None and sum(most.came.values()) > here + most.count and (not here or stage < ring.index(most)):
        return Cause([(f"{most.last.label} arrives on `{most.text}` here, which has had {count_noun(sum(most.came.values()), 'arrival')} so far, while `{bar.text}` has had {here or 'none'}", most.last.span)],
                     "arrive on the stage that was used: the i-th use is of stage i % n", 2)  # fmt: skip
    return None


# ---- a wait that let somebody pass too early
def idle_wait(m: Machine, worker: int, since: int, until: int) -> Cause | None:
    """A wait of a worker, between two moments, that returned at once though a right one would not: it meant a phase that the worker knew, or none at all where data land."""
    text = text_of(m.launch.checked)
    filled = {u.name for u in text.of("lands")}
    for e, bar in all_waits(m, worker):
        if (
            since < e.tick < until
            and e.at_once
            and (e.phase >= 0 or place_of(m, bar)[0] in filled or any(o.tick < e.tick for o in waits_of(bar, worker)))
        ):
            return Cause([(already(bar, e), e.span)], parity_for(m, bar, e.phase + 1), 2)
    return None


def short_phase(m: Machine, worker: int, since: int, until: int, without: int | None = None) -> Cause | None:
    """A wait of a worker, between two moments, for a phase that ended too early: by its count, a second arrival, or bytes."""
    for e, bar in all_waits(m, worker):
        if since < e.tick < until and e.phase >= 0:
            cause = wrong_count(m, bar) or came_twice(bar, e.phase)
            if cause is not None:
                return cause
    return None


def unwaited(m: Machine, worker: int, given: str, cta: int) -> Cause | None:
    """An arrival of a worker that gives back a stage which it has not waited for since it gave it back before: of the wrong stage, once too often, or without its wait."""
    filled = text_of(m.launch.checked).pairs.get(given)
    back, full = ring_of(m, given, cta), ring_of(m, filled or "", cta)
    if len(back) != len(full) or not full:
        return None
    arrivals = []
    for r, p in zip(back, full):
        last = -1 if len(r.marks) < KEPT else None
        waits = [e.tick for e in waits_of(p, worker)]
        for a in reversed(arrivals_of(r, worker=worker)):
            if last is not None and not any(last < t < a.tick for t in waits):
                arrivals.append((a, r, p))
                break
            last = a.tick
    if not arrivals:
        return None
    a, r, p = min(arrivals, key=lambda x: x[0].tick)
    before = max((e for b in full for e in waits_of(b, worker) if e.tick < a.tick), key=lambda e: e.tick, default=None)
    earlier = next((e for e in arrivals_of(r, worker=worker) if e.tick < a.tick), None)
    fresh = before is not None and before.tick > max(
        (e.tick for b in back for e in arrivals_of(b, worker=worker) if e.tick < a.tick), default=-1
    )
    since = f" since it arrived on `{r.text}` before" if earlier is not None else ""
    said: list[Said] = [(f"{a.label} arrives on `{r.text}` here, and no wait of its own on `{p.text}` lies before{since}", a.span)]
    other = (
        [(f"what it waited for is another stage, `{next(b.text for b in full if before in waits_of(b, worker))}`", before.span)]
        if fresh and before is not None
        else []
    )
    return Cause([*said, *other], f"for each use of a stage one wait on `{filled}` and then one arrival on `{given}`, of that stage", 2)


def extra_arrival(bar: Mbarrier, phase: int) -> Cause | None:
    """Of a phase that no copy landed in: the arrival that ended it."""
    if any(e.kind == "land" and e.phase == phase for e in bar.events()):
        return None
    arrived = arrivals_of(bar, phase)
    if not arrived:
        return None
    return Cause([(f"phase {phase} of `{bar.text}` ended with the arrival of {arrived[0].label} here, before any copy had landed in it", arrived[0].span)],
                 "one arrival for each use of the barrier, by expect(nbytes(view)), before the copies that it announces", 2)  # fmt: skip


def sibling_wait(m: Machine, bar: Mbarrier, worker: int, since: int) -> tuple[Event, Mbarrier] | None:
    """A later wait of a worker at another stage of the same ring."""
    name, _, cta = place_of(m, bar)
    ring = ring_of(m, name, cta)
    waits = [(e, b) for b in ring if b is not bar for e in waits_of(b, worker) if e.tick > since]
    return max(waits, key=lambda x: x[0].tick, default=None)
