"""Why a fault of synchronisation happened: which wait, arrival, count or number of bytes is the wrong one, from what the barriers remember.

Runs once a fault is found, on the state as it is then. Each question goes back along the chain that should have ordered two things: the barrier that the
earlier party arrives on (or that its copy lands on), the wait of the later party there, the phase that this wait meant, and what ended that phase.
Owns the words of causes; what is a fault at all is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from ..nodes import Call, For, If, Stmt
from ..source import Span
from ..views import root_name
from ..walk import walk
from .faults import fault

if TYPE_CHECKING:
    from ..checked import Checked
    from .barriers import Event, Mbarrier, NamedBarrier
    from .machine import Machine, Worker
    from .memory import SharedRef
    from .races import Actor, Record

Said = tuple[str, Span | None]

RING = "the i-th use of a ring of n stages is its stage's phase i // n: a reader waits for parity i // n % 2, who fills it again for i // n % 2 ^ 1"


@dataclass
class Cause:
    """notes: the faulty statement first. sure: how certain the cause is, 0 if it is only what was seen."""

    notes: list[Said] = field(default_factory=list)
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
    cluster: bool = False


class Text:
    """What the text of a kernel does with its barriers and shared arrays, by the table of primitives."""

    def __init__(self, checked: Checked):
        self.checked = checked

    @cached_property
    def uses(self) -> list[Use]:
        found = []
        for role in self.checked.roles:
            for node in (n for stmt in role.body for n in walk(stmt)):
                bound = self.checked.calls.get(id(node)) if isinstance(node, Call) else None
                if bound is None:
                    continue
                e, args = bound.op.effects, bound.args
                everywhere = bool(getattr(args.get("cluster"), "value", False))
                for kind, arg in (("arrives", e.arrives), ("waits", e.waits), ("lands", e.completes)):
                    name = root_name(args[arg]) if arg is not None and arg in args else None
                    if name is not None:
                        array = next((root_name(args[a.arg]) or "" for a in e.accesses if a.mode == "write" and a.arg in args), "")
                        found.append(Use(kind, name, role.name, node.span, array, everywhere))
        return found

    @cached_property
    def guards(self) -> dict[tuple[str, Span], Use]:
        """For each call in a role: the wait before it in its block, or around it up to a loop. Inside of one turn nothing else can hold it back."""
        waits = {(u.role, u.span): u for u in self.of("waits")}
        found: dict[tuple[str, Span], Use] = {}

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
                            found[role, node.span] = guard
                        if isinstance(node, Call):
                            guard = waits.get((role, node.span), guard)

        for role in self.checked.roles:
            block(role.name, role.body, None)
        return found

    @cached_property
    def pairs(self) -> dict[str, str]:
        """Rings by which buffers are given back -> those by which they are filled: a copy that lands on the one lies behind a wait on the other."""
        copies = ((u, self.guards.get((u.role, u.span))) for u in self.of("lands"))
        return {guard.name: u.name for u, guard in copies if guard is not None and guard.name != u.name}

    def of(self, kind: str, name: str | None = None, role: str | None = None, array: str | None = None) -> list[Use]:
        return [u for u in self.uses if u.kind == kind and name in (None, u.name) and role in (None, u.role) and array in (None, u.array)]

    def arriving(self, name: str) -> int:
        """How many workers can arrive on a barrier: those of the roles that do, of all CTAs if one does so for the cluster."""
        roles = {u.role for u in self.of("arrives", name)}
        wide = any(u.cluster for u in self.of("arrives", name))
        return sum(r.workers for r in self.checked.roles if r.name in roles) * (self.checked.cluster if wide else 1)


def text_of(checked: Checked) -> Text:
    found = checked.made.get(Text)
    if found is None:
        found = checked.made[Text] = Text(checked)
    return found


# ---- what the machine remembers
def mbarriers(m: Machine) -> list[Mbarrier]:
    return [bar for (name, _), ring in m.barriers.items() if m.launch.checked.barriers[name].kind == "mbarrier" for bar in ring]  # type: ignore[misc]


def _name(m: Machine, bar: Mbarrier | NamedBarrier) -> tuple[str, int, int]:
    """The ring of a barrier, its stage and its CTA."""
    return next((name, ring.index(bar), cta) for (name, cta), ring in m.barriers.items() if any(b is bar for b in ring))


def _waits(bar: Mbarrier, worker: int) -> list[Event]:
    return [e for e in bar.events() if e.kind == "wait" and e.worker == worker]


def _arrivals(bar: Mbarrier, phase: int | None = None, worker: int | None = None) -> list[Event]:
    """The last first."""
    return [e for e in bar.events() if e.kind == "arrive" and phase in (None, e.phase) and worker in (None, e.worker)]


def _all_waits(m: Machine, worker: int) -> list[tuple[Event, Mbarrier]]:
    """Those of a worker at any mbarrier, the last first."""
    return sorted(((e, bar) for bar in mbarriers(m) for e in _waits(bar, worker)), key=lambda x: -x[0].tick)


# ---- words
def _labels(events: Iterable[Event]) -> str:
    return ", ".join(dict.fromkeys(e.label for e in events)) or "nobody"


def _n(n: int, what: str) -> str:
    return f"{n:,} {what}{'s' if n != 1 else ''}"


def _already(bar: Mbarrier, wait: Event) -> str:
    """A wait that returned at once, and why."""
    over = (
        "which is over before the first arrival" if wait.phase < 0 else f"which {wait.label} knew to be over: it had waited for it before"
    )
    return f"this wait({wait.value}) on `{bar.text}` returned at once: it means phase {wait.phase}, {over}"


def _parity(m: Machine, bar: Mbarrier, phase: int) -> str:
    ring = f"; {RING}" if len(m.barriers[_name(m, bar)[0], _name(m, bar)[2]]) > 1 else ""
    return f"phase {phase} has parity {phase % 2}: wait({phase % 2}) for it here{ring}"


# ---- faults of one barrier
def wrong_count(m: Machine, bar: Mbarrier | NamedBarrier) -> Cause | None:
    """More workers arrive than a phase takes."""
    text, name = text_of(m.launch.checked), _name(m, bar)[0]
    came = [m.workers[n].label for n in bar.came]
    able = max(len(came), text.arriving(name) if m.launch.checked.barriers[name].kind == "mbarrier" else 0)
    if able <= bar.count:
        return None
    who = ", ".join(came) if len(came) == able else f"the workers of role `{'`, `'.join(sorted({u.role for u in text.of('arrives', name)}))}`"
    return Cause([(f"the count of `{bar.text}` is {bar.count}, and {able} workers arrive on it: {who}; a phase ends after {_n(bar.count, 'arrival')}, before the others have come", bar.span)],
                 f"the count is the number of workers that arrive in a phase, here {able}", 2)  # fmt: skip


def _came_twice(bar: Mbarrier, phase: int) -> Cause | None:
    """A worker that arrived twice in a phase which takes more than one."""
    seen: dict[int, Event] = {}
    for e in reversed(_arrivals(bar, phase)):
        if e.worker in seen:
            first = seen[e.worker].span
            return Cause([(f"{e.label} arrives on `{bar.text}` a second time in phase {phase} here, so that it ended without another worker's arrival", e.span),
                          *([] if first == e.span else [(f"{e.label} arrived for this phase here", first)])],
                         "each worker arrives once a phase", 2)  # fmt: skip
        seen[e.worker] = e
    return None


def _announced(events: list[Event], issue: Event) -> Event | None:
    """The expect (or other arrival) that an issued copy belongs to: the last one of its issuer before it, or the next one where the text has the copy first. `events`: the last first."""
    mine = [e for e in events if e.kind == "arrive" and e.worker == issue.worker]
    before = next((e for e in mine if e.tick < issue.tick), None)
    if before is not None and (before.span.line, before.span.column) < (issue.span.line, issue.span.column):
        return before
    return next((e for e in reversed(mine) if e.tick > issue.tick), None)


def _bytes_of(bar: Mbarrier, phase: int) -> tuple[list[Event], list[Event]]:
    """The expects that count in a phase, and the copies that were issued for it."""
    events = bar.events()
    expects = [e for e in reversed(events) if e.kind == "arrive" and e.value and e.phase == phase]
    meant = [(e, _announced(events, e)) for e in reversed(events) if e.kind == "issue"]
    return expects, [e for e, by in meant if (by.phase if by is not None else e.phase) == phase]


def _torn(m: Machine, name: str, cta: int) -> Cause | None:
    """A copy whose bytes were announced at another stage of the ring than the one that it lands on."""
    ring: list[Mbarrier] = m.barriers[name, cta]  # type: ignore[assignment]
    if len(ring) < 2:
        return None
    events = sorted((e for bar in ring for e in bar.events()), key=lambda e: -e.tick)
    home = {e.tick: bar for bar in ring for e in bar.events()}
    for e in reversed(events):
        by = _announced(events, e) if e.kind == "issue" else None
        if by is not None and by.value and home[by.tick] is not home[e.tick]:
            return Cause([(f"this copy lands on `{home[e.tick].text}`, and the expect that goes with it announces its bytes on `{home[by.tick].text}`", e.span),
                          (f"the bytes are expected on `{home[by.tick].text}` here", by.span)], "the expect, the copy's barrier and its view have the same stage", 3)  # fmt: skip
    return None


def wrong_bytes(bar: Mbarrier, phase: int) -> Cause | None:
    """Bytes expected in a phase, and those that its copies bring."""
    expects, copies = _bytes_of(bar, phase)
    expected, brought = sum(e.value for e in expects), sum(e.value for e in copies)
    if expected == brought or not (expects or copies):
        return None
    places = list(dict.fromkeys(c.span for c in copies))
    each = f" by {_n(len(copies), 'copy') if len(copies) == 1 else f'{len(copies)} copies'}"
    if expects:
        said = f"{_n(expected, 'byte')} are expected here for phase {phase} of `{bar.text}`, and {brought:,} are copied{each if copies else ''}"
        notes: list[Said] = [(said, expects[0].span), *((f"copied on `{bar.text}` here", s) for s in places[:1])]
    else:
        arrived = _arrivals(bar, phase)
        said = f"phase {phase} of `{bar.text}` expects no bytes, and {brought:,} are copied{each}"
        notes = [(said, arrived[-1].span if arrived else places[0]), *((f"copied on `{bar.text}` here", s) for s in places[: len(arrived)][:1])]
    return Cause(notes, "expect(nbytes(view)), summed over the views that are copied on the barrier in one phase", 2)


def _astray(m: Machine, bar: Mbarrier) -> Cause | None:
    """A copy, or an arrival, at another stage of the ring, that may be the one which is missing here."""
    name, stage, cta = _name(m, bar)
    torn = _torn(m, name, cta)
    if torn is not None:
        return torn
    ring: list[Mbarrier] = m.barriers[name, cta]  # type: ignore[assignment]
    for other in ring:
        if other is not bar and other.bytes < 0 and other.user is not None:
            return Cause([(f"this copy lands on `{other.text}`, where nobody expects its bytes, and not on `{bar.text}`", other.user.span)],
                         "the copy, the expect and the array's view have the same stage", 3)  # fmt: skip
    most = max(ring, key=lambda b: sum(b.came.values()))
    here = sum(bar.came.values())
    if most is not bar and most.last is not None and sum(most.came.values()) > here + most.count and (not here or stage < ring.index(most)):
        return Cause([(f"{most.last.label} arrives on `{most.text}` here, which has had {_n(sum(most.came.values()), 'arrival')} so far, while `{bar.text}` has had {here or 'none'}", most.last.span)],
                     "arrive on the stage that was used: the i-th use is of stage i % n", 2)  # fmt: skip
    return None


# ---- a wait that let somebody pass too early
def _idle(m: Machine, worker: int, since: int, until: int) -> Cause | None:
    """A wait of a worker, between two moments, that returned at once though a right one would not: it meant a phase that the worker knew, or none at all where data land."""
    text = text_of(m.launch.checked)
    filled = {u.name for u in text.of("lands")}
    for e, bar in _all_waits(m, worker):
        if since < e.tick < until and e.at_once and (e.phase >= 0 or _name(m, bar)[0] in filled or any(o.tick < e.tick for o in _waits(bar, worker))):
            return Cause([(_already(bar, e), e.span)], _parity(m, bar, e.phase + 1), 2)
    return None


def _short(m: Machine, worker: int, since: int, until: int, without: int | None = None) -> Cause | None:
    """A wait of a worker, between two moments, for a phase that ended too early: by its count, a second arrival, or bytes."""
    for e, bar in _all_waits(m, worker):
        if since < e.tick < until and e.phase >= 0:
            found = wrong_count(m, bar) or _came_twice(bar, e.phase)
            if found is not None:
                return found
    return None


def _unwaited(m: Machine, worker: int, given: str, cta: int) -> Cause | None:
    """An arrival of a worker that gives back a stage which it has not waited for since it gave it back before: of the wrong stage, once too often, or without its wait."""
    filled = text_of(m.launch.checked).pairs.get(given)
    back, full = m.barriers[given, cta], m.barriers.get((filled or "", cta), [])
    if len(back) != len(full) or not full:
        return None
    found = []
    for r, p in zip(back, full):
        last = -1 if len(r.marks) <= 4 else None  # type: ignore[union-attr]
        waits = [e.tick for e in _waits(p, worker)]  # type: ignore[arg-type]
        for a in reversed(_arrivals(r, worker=worker)):  # type: ignore[arg-type]
            if last is not None and not any(last < t < a.tick for t in waits):
                found.append((a, r, p))
                break
            last = a.tick
    if not found:
        return None
    a, r, p = min(found, key=lambda x: x[0].tick)
    before = max((e for b in full for e in _waits(b, worker) if e.tick < a.tick), key=lambda e: e.tick, default=None)  # type: ignore[arg-type]
    earlier = next((e for e in _arrivals(r, worker=worker) if e.tick < a.tick), None)  # type: ignore[arg-type]
    fresh = before is not None and before.tick > max((e.tick for b in back for e in _arrivals(b, worker=worker) if e.tick < a.tick), default=-1)  # type: ignore[arg-type]
    since = f" since it arrived on `{r.text}` before" if earlier is not None else ""
    said: list[Said] = [(f"{a.label} arrives on `{r.text}` here, and no wait of its own on `{p.text}` lies before{since}", a.span)]
    other = [(f"what it waited for is another stage, `{next(b.text for b in full if before in _waits(b, worker))}`", before.span)] if fresh and before is not None else []  # type: ignore[arg-type]
    return Cause([*said, *other], f"for each use of a stage one wait on `{filled}` and then one arrival on `{given}`, of that stage", 2)


def _overtaken(m: Machine, copy: Record, reader: Worker, wait: Event) -> Cause | None:
    """A reader waited for a phase, and what landed then has been written over: why whoever filled it again did not wait for the reader."""
    bar, text = copy.bar, text_of(m.launch.checked)
    assert bar is not None
    filler = m.workers[copy.worker]
    name, stage, _ = _name(m, bar)
    guard = text.guards.get((filler.program.name, copy.span))
    rings = [guard.name] if guard is not None else []
    rings = [n for n in rings if reader.program.name in {u.role for u in text.of("arrives", n)}]
    issued = next((e for e in bar.events() if e.kind == "issue" and e.span == copy.span and e.tick > wait.tick), None)
    until = issued.tick if issued is not None else 1 << 60
    if not rings:
        back = [n for n in {u.name for u in text.of("arrives", role=reader.program.name)} if text.of("waits", n, filler.program.name)]
        said = f"`{back[0]}`" if len(back) == 1 else "a barrier that the reader arrives on"
        same = [n for n in back if len(m.barriers[n, filler.cta]) == len(m.barriers[name, bar_cta(m, bar)])]
        said = f"`{same[0]}`" if len(same) == 1 and len(back) > 1 else said
        return Cause([("this copy writes over what is still read", copy.span)], f"no wait by {filler.label} on {said} lies before this copy, which writes over what {reader.label} is still to read", 1)  # fmt: skip
    ring: list[Mbarrier] = m.barriers[rings[0], filler.cta]  # type: ignore[assignment]
    passed = max(((e, b) for b in ring for e in _waits(b, filler.number) if e.tick < until), key=lambda x: x[0].tick, default=None)
    if passed is None:
        return None
    e, b = passed
    if e.at_once and (e.phase >= 0 or any(o.tick < e.tick for o in _waits(b, filler.number))):
        return Cause([(_already(b, e), e.span)], _parity(m, b, e.phase + 1), 2)
    twice = _came_twice(b, e.phase)
    if twice is not None:
        return twice
    count = wrong_count(m, b)
    if count is not None:
        return count
    for x in {a.worker for a in _arrivals(b, e.phase)} | {reader.number}:
        found = _unwaited(m, x, rings[0], filler.cta)
        if found is not None:
            return found
    if len(ring) > 1 and ring.index(b) != stage and len(ring) == len(m.barriers[name, bar_cta(m, bar)]):
        return Cause([(f"{filler.label} waits on `{b.text}` here, and its copy lands on `{bar.text}`: another stage", e.span)], "the wait, the copy and the array's view have the same stage", 1)
    inside = _arrivals(b, e.phase, reader.number)
    if inside:
        return Cause([(f"{reader.label} arrives on `{b.text}` here, before its read: that lets {filler.label} write over it", inside[0].span)], f"{reader.label} arrives on `{b.text}` after its last read", 2)
    return None


def bar_cta(m: Machine, bar: Mbarrier) -> int:
    return _name(m, bar)[2]


def of_conflict(m: Machine, new: Record, old: Record, former: int) -> Cause:
    """Why an access is not ordered after an earlier one. former: the tick of the last access of the same kind that the new party made to these bytes, or -1."""
    if new.worker == old.worker and old.bar is None:
        after = f": {old.label} is over after {old.awaited}" if old.awaited else ""
        return Cause([], f"{m.workers[new.worker].label} must wait for its own earlier access{after}")
    found = _of_copy(m, new, old, former) if old.bar is not None else _of_release(m, new, old, former)
    return found


def _of_copy(m: Machine, new: Record, old: Record, former: int) -> Cause:
    """The earlier access is a copy, which is over when its phase of a barrier is."""
    bar, w = old.bar, m.workers[new.worker]
    assert bar is not None
    issued = next((e for e in bar.events() if e.kind == "issue" and e.span == old.span and e.tick >= old.tick), None)
    if issued is None:
        issued = next((e for e in bar.events() if e.kind == "issue" and e.span == old.span), None)
    lands = old.done[1] if old.done is not None else None
    by = _announced(bar.events(), issued) if issued is not None else None
    meant = by.phase if by is not None else issued.phase if issued is not None else lands if lands is not None else bar.phase
    torn = _torn(m, *_name(m, bar)[::2])
    if torn is not None:
        return torn
    waits = _waits(bar, new.worker)
    wait = waits[0] if waits else None
    sibling = _sibling(m, bar, new.worker, max(former, wait.tick if wait else -1))
    what = f"the copy lands in phase {meant if lands is None else lands}"
    if wait is not None and wait.at_once and wait.phase < (meant if lands is None else lands) and wait.tick > former:
        return Cause([(f"{_already(bar, wait)}; {what}", wait.span)], _parity(m, bar, meant if lands is None else lands), 2)
    if wait is not None and wait.phase >= meant:
        early = wrong_bytes(bar, wait.phase) or wrong_bytes(bar, meant)
        if early is not None:
            text, at = early.notes[0]
            return Cause([(f"{text}: the phase ended before this copy had landed", at)], early.hint, 2)
        twice = _extra_arrival(bar, wait.phase)
        if twice is not None:
            return twice
        return Cause([(f"this wait returned when phase {wait.phase} of `{bar.text}` was over, which ended before the copy landed", wait.span)], "the phase must expect the bytes of this copy: expect(nbytes(view))")  # fmt: skip
    back = next((n for n, p in text_of(m.launch.checked).pairs.items() if p == _name(m, bar)[0]), None)
    ring = m.barriers.get((back or "", w.cta), [])
    if wait is not None and len(ring) == len(m.barriers[_name(m, bar)[0], _name(m, bar)[2]]):  # given back since: the wait was for the turn before
        given = _arrivals(ring[_name(m, bar)[1]], worker=new.worker)  # type: ignore[arg-type]
        former = max([former, *(e.tick for e in given if e.tick > wait.tick)])
        sibling = _sibling(m, bar, new.worker, max(former, wait.tick))
    if wait is not None and wait.tick > former and new.mode == "read":
        past = _overtaken(m, old, w, wait)
        if past is not None:
            return past
    if sibling is not None:
        return Cause([(f"{w.label} waits on `{sibling[1].text}` here, and the copy lands on `{bar.text}`: no wait on that one lies before this {new.mode}", sibling[0].span)],
                     "wait on the barrier of the stage that is used: the i-th use is of stage i % n", 1)  # fmt: skip
    last = [(f"{w.label} waited on `{bar.text}` here for phase {wait.phase}; {what}", wait.span)] if wait is not None else []
    return Cause(last, f"no wait by {w.label} on `{bar.text}` lies before this {new.mode}: the copy, and what it wrote, is over after a wait for phase {meant if lands is None else lands} of `{bar.text}`, parity {(meant if lands is None else lands) % 2}", 1)  # fmt: skip


def _extra_arrival(bar: Mbarrier, phase: int) -> Cause | None:
    """Of a phase that no copy landed in: the arrival that ended it."""
    if any(e.kind == "land" and e.phase == phase for e in bar.events()):
        return None
    arrived = _arrivals(bar, phase)
    if not arrived:
        return None
    return Cause([(f"phase {phase} of `{bar.text}` ended with the arrival of {arrived[0].label} here, before any copy had landed in it", arrived[0].span)],
                 "one arrival for each use of the barrier, by expect(nbytes(view)), before the copies that it announces", 2)  # fmt: skip


def _sibling(m: Machine, bar: Mbarrier, worker: int, since: int) -> tuple[Event, Mbarrier] | None:
    """A later wait of a worker at another stage of the same ring."""
    name, _, cta = _name(m, bar)
    ring: list[Mbarrier] = m.barriers[name, cta]  # type: ignore[assignment]
    found = [(e, b) for b in ring if b is not bar for e in _waits(b, worker) if e.tick > since]
    return max(found, key=lambda x: x[0].tick, default=None)


def _of_release(m: Machine, new: Record, old: Record, former: int) -> Cause:
    """The earlier access is a worker's, or an engine's that the worker waits for: the worker arrives on a barrier after it."""
    text, w, owner = text_of(m.launch.checked), m.workers[new.worker], m.workers[old.worker]
    over = old.done[1] if old.done is not None and old.done[0] == old.worker else None
    arrived = sorted(((e, bar) for bar in mbarriers(m) for e in _arrivals(bar, worker=old.worker)), key=lambda x: x[0].tick)
    waited = {u.name for u in text.of("waits", role=w.program.name)}
    shared = [(e, bar) for e, bar in arrived if _name(m, bar)[0] in waited]
    after = [(e, bar) for e, bar in shared if over is not None and e.epoch >= over and e.tick > old.tick]
    done = f"its {old.mode} is over" if not old.awaited else f"its {old.mode} is over ({old.awaited})"
    if not shared and not after:
        return _no_barrier(m, new, old)
    guard = text.guards.get((w.program.name, new.span))
    guarded = guard.name if guard is not None and guard.name in {_name(m, b)[0] for _, b in shared} else None
    same = [(e, bar) for e, bar in after if _name(m, bar)[0] == guarded]
    passed = [(e, b) for b in mbarriers(m) if _name(m, b)[0] == guarded for e in _waits(b, new.worker) if e.tick > former]
    if same and passed and (newest := max(passed, key=lambda x: x[0].tick))[1] is not same[0][1]:
        stray = _unwaited(m, old.worker, str(guarded), w.cta)
        return stray or Cause([(f"{w.label} waits on `{newest[1].text}` here, and {owner.label} gives these bytes back by arriving on `{same[0][1].text}`", newest[0].span),
                               (f"{owner.label} arrives here", same[0][0].span)], "wait and arrive on the barrier of the stage that is used: the i-th use is of stage i % n", 1)  # fmt: skip
    if same or (after and guarded is None):
        arrival, bar = _closest(m, same or after, new.worker)
        needed = arrival.phase
    else:
        after = []
        near = [(e, bar) for e, bar in shared if guarded in (None, _name(m, bar)[0])]
        arrival, bar = max(near, key=lambda x: max((e.tick for e in _waits(x[1], new.worker)), default=-1))
        arrival = next(e for e in _arrivals(bar, worker=old.worker))
        needed = arrival.phase + 1
    waits = _waits(bar, new.worker)
    wait = waits[0] if waits else None
    count = wrong_count(m, bar)
    if wait is not None and wait.tick > former and wait.phase >= 0 and count is not None:
        return count
    if wait is not None and wait.tick > former and wait.at_once and wait.phase < needed and (wait.phase >= 0 or any(o.tick < wait.tick for o in waits) or not _waits_first(m, bar, new)):
        return Cause([(f"{_already(bar, wait)}; {owner.label} arrives for phase {needed} after {done}", wait.span)], _parity(m, bar, needed), 2)
    if wait is None or wait.tick < former:
        sibling = _sibling(m, bar, new.worker, former)
        if sibling is not None and sibling[0].tick > max(former, 0):
            return Cause([(f"{w.label} waits on `{sibling[1].text}` here, and {owner.label} gives these bytes back by arriving on `{bar.text}`", sibling[0].span)],
                         "wait on the barrier of the stage that is used: the i-th use is of stage i % n", 1)  # fmt: skip
        lead = [(f"{owner.label} arrives on `{bar.text}` here after {done}", arrival.span)] if after else []
        return Cause(lead, f"no wait by {w.label} on `{bar.text}` lies before this {new.mode}: wait there for phase {needed}, parity {needed % 2}", 1)  # fmt: skip
    twice = _came_twice(bar, wait.phase)
    if twice is not None:
        return twice
    inside = _arrivals(bar, wait.phase, old.worker)
    if inside:
        unread = _idle(m, old.worker, inside[0].tick, old.tick) or next((f for x in {e.worker for e in _arrivals(bar, wait.phase)} if (f := _unwaited(m, x, _name(m, bar)[0], w.cta))), None)
        if unread is not None and new.mode != "read":
            return unread
        return Cause([(f"{owner.label} arrives on `{bar.text}` here, which is what the {new.mode} waited for, and not after {done}", inside[0].span)],
                     f"{owner.label} arrives on `{bar.text}` when its last access to these bytes is over{f': after {old.awaited}' if old.awaited else ''}", 2)  # fmt: skip
    ended = _arrivals(bar, wait.phase)
    return Cause([(f"this wait was for phase {wait.phase} of `{bar.text}`, which ended with the arrivals of {_labels(ended)}, without {owner.label}", wait.span)],
                 f"{owner.label} arrives on `{bar.text}` after {done}, once a phase, and the count takes its arrival in")  # fmt: skip


def _waits_first(m: Machine, bar: Mbarrier, new: Record) -> bool:
    """Whether a first wait for phase -1 is how the worker finds the buffer free: it is the one behind which a copy lands."""
    return _name(m, bar)[0] in text_of(m.launch.checked).pairs and new.mode != "read"


def _closest(m: Machine, after: list[tuple[Event, Mbarrier]], worker: int) -> tuple[Event, Mbarrier]:
    """Of the arrivals behind an access: the first one at a barrier that the other party waits on, or the first at all."""
    return next(((e, bar) for e, bar in after if _waits(bar, worker)), after[0])


def _no_barrier(m: Machine, new: Record, old: Record) -> Cause:
    """The earlier party never arrived where the later one waits."""
    text, w, owner = text_of(m.launch.checked), m.workers[new.worker], m.workers[old.worker]
    named = [b for (name, _), ring in m.barriers.items() if m.launch.checked.barriers[name].kind == "named_barrier" for b in ring]
    for bar in named:
        found = wrong_count(m, bar) if old.worker in bar.came or new.worker in bar.came else None
        if found is not None:
            return found
    idle = _idle(m, new.worker, -1, 1 << 60) or _short(m, new.worker, -1, 1 << 60)
    if idle is not None:
        return idle
    both = [u.name for u in text.of("arrives", role=owner.program.name) if text.of("waits", u.name, w.program.name)]
    waits = _all_waits(m, new.worker)
    if both:
        name = both[0]
        lead = [(f"{w.label} waited on `{b.text}` here for phase {e.phase}, the last time on `{name}`", e.span) for e, b in waits if _name(m, b)[0] == name][:1]
        return Cause(lead, f"no wait by {w.label} on `{name}`, for a phase in which {owner.label} arrives after its {old.mode}, lies before this {new.mode}")  # fmt: skip
    over = f" ({old.awaited})" if old.awaited else ""
    return Cause([], f"a barrier must lie between: {owner.label} arrives on it after its {old.mode} is over{over}, and {w.label} waits for that phase before this {new.mode}")  # fmt: skip


def of_unwritten(m: Machine, actor: Actor, ref: SharedRef) -> Cause:
    """Why a read finds nothing written: what should have been waited for."""
    text, w = text_of(m.launch.checked), m.workers[actor.worker]
    rings = list(dict.fromkeys(u.name for u in text.of("lands", array=ref.alloc.name)))
    copies = text.of("lands", array=ref.alloc.name)
    waits = [(e, bar) for e, bar in _all_waits(m, actor.worker) if _name(m, bar)[0] in rings]
    if waits:
        wait, bar = waits[0]
        if wait.at_once:
            return Cause([(f"{_already(bar, wait)}; the copy lands in phase {wait.phase + 1}", wait.span)], _parity(m, bar, wait.phase + 1), 2)
        found = wrong_bytes(bar, wait.phase) or _extra_arrival(bar, wait.phase)
        if found is not None:
            return found
        landed = [e for e in bar.events() if e.kind == "land" and e.phase == wait.phase]
        if landed:
            return Cause([(f"phase {wait.phase} of `{bar.text}`, which {w.label} waited for, ended with this copy: it wrote other bytes", landed[0].span)],
                         "the copy's view, its barrier and the view that is read have the same stage: the i-th use is of stage i % n", 1)  # fmt: skip
    if copies:
        return Cause([(f"this copy fills `{ref.alloc.name}`, and lands on `{copies[0].name}`", copies[0].span)],
                     f"no wait by {w.label} on `{copies[0].name}` lies before this read: wait there for the phase in which the copy lands", 1)  # fmt: skip
    found = _idle(m, actor.worker, -1, 1 << 60) or _short(m, actor.worker, -1, 1 << 60)
    return found or Cause([], "write it before, on every path and in every tile, and let a barrier lie between if another worker writes it")


# ---- faults of the protocol
def too_many(m: Machine, bar: Mbarrier, w: Worker, span: Span) -> Exception:
    """S402: an arrival for a phase that has all of its arrivals, and not its bytes."""
    arrived = _arrivals(bar, bar.phase)
    message = f"`{bar.text}` takes {_n(bar.count, 'arrival')} a phase; one more came from {w.label} while phase {bar.phase} still misses {_n(bar.bytes, 'byte')}"
    mine = next((e for e in arrived if e.worker == w.number), None)
    cause = _came_twice(bar, bar.phase)
    if cause is None and (mine is None or len({e.worker for e in arrived} | {w.number}) > bar.count):
        cause = wrong_count(m, bar)
    if cause is None and mine is not None:
        landed = sum(e.value for e in bar.events() if e.kind == "land" and e.phase == bar.phase)
        issued = sum(e.value for e in bar.events() if e.kind == "issue" and e.phase == bar.phase and e.tick > mine.tick)
        if issued <= landed:
            cause = _astray(m, bar) or wrong_bytes(bar, bar.phase)
        cause = cause or _idle(m, w.number, mine.tick, 1 << 60) or _short(m, w.number, mine.tick, 1 << 60)
        if cause is None and not any(e.tick > mine.tick for e, _ in _all_waits(m, w.number)):
            cause = Cause([(f"{w.label} arrived for this phase here, and no wait of its own lies between the two", mine.span)],
                          "arrive for the next phase only after a wait that knows this one over", 1)  # fmt: skip
    if cause is None:
        cause = Cause([(f"{e.label} arrived here", e.span) for e in reversed(arrived)][:2],
                      "arrive for the next phase only after a wait that knows this one over; the count is the number of workers that arrive in a phase")  # fmt: skip
    return fault(m, "S402", message, span, cause.hint, cause.notes)


def too_many_bytes(m: Machine, bar: Mbarrier, label: str, span: Span) -> Exception:
    """S403: a copy lands in a phase that has all of its arrivals, and expects less."""
    message = f"phase {bar.phase} of `{bar.text}` expected {_n(bar.expected, 'byte')}, and {bar.landed:,} landed with {label}"
    expects = [e for e in reversed(_arrivals(bar, bar.phase))]
    others = list(dict.fromkeys(e.span for e in bar.events() if e.kind == "land" and e.phase == bar.phase and e.span != span))
    said = (
        "this announces the bytes of the phase: {}"
        if expects and expects[0].value
        else "this arrival announces no bytes of the phase: {}"
    ).format(f"{bar.expected:,}")
    notes = [(f"{said}, and {bar.landed:,} have landed", expects[0].span)] if expects else []
    if bar.phase and expects and bar.expected and bar.landed > bar.expected:
        before = wrong_bytes(bar, bar.phase - 1)
        if before is not None:
            notes = before.notes
    notes += [("this copy landed in the same phase", s) for s in others[:1]]
    return fault(m, "S403", message, span, "expect(nbytes(view)), summed over the views that are copied on the barrier in one phase", notes)


def lapped(m: Machine, bar: Mbarrier, w: Worker, phase: int, span: Span, wait: Event | None) -> Exception:
    """S401: `w` waits for a phase (`wait`, if it has returned) while the next one can be over."""
    message = (
        f"{w.label} waits for phase {phase} of `{bar.text}`, and phase {phase + 1} can be over by then: a parity tells only two phases apart"
    )
    cause = _of_lap(m, bar, w, phase, wait)
    return fault(m, "S401", message, span, cause.hint, [*cause.notes, (f"`{bar.text}` is declared here", bar.span)][:3])


def _of_lap(m: Machine, bar: Mbarrier, w: Worker, phase: int, wait: Event | None) -> Cause:
    count = wrong_count(m, bar)
    if count is not None:
        return count
    twice = _came_twice(bar, phase + 1) or _came_twice(bar, max(phase, 0))
    if twice is not None:
        return twice
    text = text_of(m.launch.checked)
    filled = {u.name for u in text.of("lands")}
    arrived = list(reversed(_arrivals(bar, phase + 1)))
    ring, cta = _name(m, bar)[0], _name(m, bar)[2]
    for given, who in ((n, [w.number]) if p == ring else (n, [a.worker for a in arrived]) for n, p in text.pairs.items() if ring in (n, p)):
        for x in who:
            found = _unwaited(m, x, given, m.workers[x].cta if m.launch.checked.cluster > 1 else cta)
            if found is not None:
                return found
    if phase < 0 and _name(m, bar)[0] not in filled and arrived:
        a = arrived[0]
        return Cause([(f"{a.label} arrives on `{bar.text}` here, before {w.label} has used it for the first time", a.span)],
                     "arrive on the stage that was used, after its use", 2)  # fmt: skip
    if phase < 0 and _name(m, bar)[0] in filled or wait is not None and wait.at_once and phase >= 0:
        value = wait.value if wait is not None else phase % 2
        why = "which is over before the first arrival" if phase < 0 else f"which {w.label} has waited for already"
        return Cause([(f"wait({value}) means phase {phase} here, {why}", wait.span if wait is not None else None)], _parity(m, bar, phase + 1), 2)
    for a in arrived:
        before = next((e for e in _arrivals(bar, worker=a.worker) if e.tick < a.tick), None)
        since = before.tick if before is not None else -1
        between = [(e, b) for e, b in _all_waits(m, a.worker) if since < e.tick < a.tick]
        said = f"{a.label} arrives here for phase {phase + 1} of `{bar.text}`"
        if not between:
            earlier = [(f"and here for phase {before.phase}", before.span)] if before is not None and before.span != a.span else []
            return Cause([(f"{said}, with no wait of its own since it arrived for the phase before", a.span), *earlier],
                         f"{a.label} first waits for something that {w.label} does after its wait for phase {phase}", 1)  # fmt: skip
        idle = _idle(m, a.worker, since, a.tick)
        if idle is not None:
            return Cause([*idle.notes, (f"so {said}, too early", a.span)], idle.hint, 2)
        for e, other in between:
            inside = _arrivals(other, e.phase, w.number)
            short = wrong_count(m, other) or (_came_twice(other, e.phase) if e.phase >= 0 else None)
            if short is not None:
                return Cause([*short.notes, (f"so {said}, too early", a.span)][:2], short.hint, 2)
            (ring, stage, _), (its, used, _) = _name(m, bar), _name(m, other)
            if inside and stage != used and len(m.barriers[ring, w.cta]) == len(m.barriers[its, w.cta]):
                return Cause([(f"{said}, and what it waited for before is another stage, `{other.text}`", a.span), (f"{a.label} waited on `{other.text}` here", e.span)],
                             "arrive on the stage that was used", 1)  # fmt: skip
            if inside:
                return Cause([(f"{w.label} arrives on `{other.text}` here, before it waits for phase {phase} of `{bar.text}`: that lets {a.label} go on", inside[0].span), (said, a.span)],
                             f"{w.label} arrives on `{other.text}` after the wait", 2)  # fmt: skip
    notes: list[Said] = [(f"{a.label} arrives here for phase {phase + 1}, without waiting for {w.label}", a.span) for a in arrived[:1]]
    return Cause(notes, f"whoever lets the barrier advance must first wait for something that {w.label} does after this wait")


def of_block(m: Machine, w: Worker) -> Cause:
    """Why a worker that waits at a barrier will wait for ever."""
    assert w.block is not None
    bar, phase = w.block.barrier, w.block.phase
    if all(bar is not b for b in mbarriers(m)):
        return _of_meeting(m, bar)  # type: ignore[arg-type]
    return _of_wait(m, w, bar, phase)  # type: ignore[arg-type]


def _of_wait(m: Machine, w: Worker, bar: Mbarrier, phase: int) -> Cause:
    text, (name, stage, cta) = text_of(m.launch.checked), _name(m, bar)
    roles = {u.role for u in text.of("arrives", name)}
    if not roles:
        return Cause([(f"no statement arrives on `{name}`", bar.span)], "every wait needs an arrival: arrive(), or expect(nbytes(view)) for copies", 4)
    if bar.pending == 0 and bar.bytes > 0:
        found = _astray(m, bar) or wrong_bytes(bar, bar.phase)
        if found is not None:
            return Cause(found.notes, found.hint, 4)
    if bar.bytes < 0 and bar.user is not None:
        return Cause([(f"this copy landed on `{bar.text}`, and no arrival by expect() announces its bytes in phase {bar.phase}", bar.user.span)],
                     "expect(nbytes(view)) once for each phase that copies land in", 4)  # fmt: skip
    able, arrived = text.arriving(name), _arrivals(bar, bar.phase)
    who = f"role{'s' if len(roles) > 1 else ''} `{'`, `'.join(sorted(roles))}`"
    if able < bar.count:
        return Cause([(f"the count of `{bar.text}` is {bar.count}, and only {_n(able, 'worker')} of {who} can arrive on it, once a phase each", bar.span)],
                     f"the count is the number of workers that arrive in a phase, here {able}", 4)  # fmt: skip
    early = _came_twice(bar, bar.phase)
    if name in text.pairs:
        for x in m.workers:
            found = _unwaited(m, x.number, name, cta) if x.program.name in roles and (x.cta == cta or able > 1) else None
            if found is not None:
                return Cause(found.notes, found.hint, 3)
    missed = _missed(m, w, bar, phase)
    if missed is not None:
        return missed
    astray = _astray(m, bar)
    if astray is not None:
        return Cause(astray.notes, astray.hint, 3)
    lacking = [x for x in m.workers if x.program.name in roles and all(e.worker != x.number for e in arrived) and (x.cta == cta or able > 1)]
    ended = [x for x in lacking if x.finished]
    if ended:
        x = ended[0]
        came = sum(b.came.get(x.number, 0) for b in m.barriers[name, cta])
        waits = 1 + sum(1 for b in m.barriers[name, cta] for e in _waits(b, w.number))  # type: ignore[arg-type]
        last = next(iter(_arrivals(bar, worker=x.number)), None) or max(
            (e for b in m.barriers[name, cta] for e in _arrivals(b, worker=x.number)), key=lambda e: e.tick, default=None  # type: ignore[arg-type]
        )
        at = last.span if last is not None else next(u.span for u in text.of("arrives", name))
        return Cause([(f"{x.label} has arrived {_n(came, 'time')} on `{name}`, {'the last time ' if last else ''}here, and is at its end: nobody can arrive for phase {phase} any more", at)],
                     f"{w.label} waits on `{name}` more often than {x.label} arrives there: both make the same number of turns" + (f", this is wait {waits} at least" if waits > came else ""), 3)  # fmt: skip
    if early is not None:
        return early
    partner = text.pairs.get(name)
    for x in lacking:
        before = next(iter(_arrivals(bar, worker=x.number)), None)
        since = before.tick if before is not None else -1
        given = {partner} if partner else {u.name for u in text.of("lands", role=w.program.name)}
        passed = [(e, b) for e, b in _all_waits(m, x.number) if e.tick > since and _name(m, b)[0] in given and (_name(m, b)[1] == stage or len(m.barriers[name, cta]) == 1)]
        if passed:
            e, b = passed[-1]
            return Cause([(f"{x.label} passed `{b.text}` here, and no arrival of its own on `{bar.text}` has followed", e.span)],
                         f"on every path, {x.label} arrives on `{name}` once for each use", 2)  # fmt: skip
    if bar.last is None and phase == 0:
        circle = any(x.block is not None and x.block.barrier is not bar for x in lacking)
        hint = "nobody has arrived yet: wait(0) waits for the first arrivals, while a first wait(1) returns at once (how a producer finds an empty ring free)"
        back = [(f"{x.label}, which arrives on it, waits here", x.block.span) for x in lacking if x.block is not None][:1]
        giver = any(u.role == w.program.name for x in lacking if x.block is not None for u in text.of("arrives", _block_name(m, x)))
        return Cause([(f"`{bar.text}` has had no arrival when {w.label} waits here for the first time, for phase 0", w.block.span if w.block else None), *back] if giver else back, hint, 2 if circle and giver else 1)  # fmt: skip
    notes: list[Said] = [(f"{bar.last.label} arrived last, here", bar.last.span)] if bar.last is not None else [("nobody ever arrived", bar.span)]
    return Cause(notes, "every wait needs its arrivals (and bytes) on every path, for empty tiles too")


def _missed(m: Machine, w: Worker, bar: Mbarrier, phase: int) -> Cause | None:
    """Another stage of the ring has a phase that is over and that the worker never waited for: it waits at the wrong stage."""
    name, stage, _ = _name(m, bar)
    ring: list[Mbarrier] = m.barriers[name, w.cta]  # type: ignore[assignment]
    for other in ring:
        done = max((e.phase for e in _waits(other, w.number)), default=-1)
        if other is not bar and other.phase - 1 > done and done < phase and text_of(m.launch.checked).of("lands", name):
            return Cause([(f"phase {done + 1} of `{other.text}` is over, which {w.label} has not waited for: it waits on `{bar.text}` here, another stage", w.block.span if w.block else None)],
                         "wait on the stages in the order in which they are filled: the i-th use is of stage i % n", 3)  # fmt: skip
    return None


def _block_name(m: Machine, x: Worker) -> str | None:
    assert x.block is not None
    bar = x.block.barrier
    return next((name for (name, _), ring in m.barriers.items() if any(b is bar for b in ring)), "")


def _of_meeting(m: Machine, bar: NamedBarrier) -> Cause:
    """A named barrier, or the join of a CTA, that does not fill."""
    came = [m.workers[n] for n in bar.came]
    if bar.span is not None:
        text, name = text_of(m.launch.checked), _name(m, bar)[0]
        able = text.arriving(name)
        if len(came) < bar.count:
            who = f"{', '.join(x.label for x in came)} ever came" if able >= bar.count else f"{_n(able, 'worker')} can come to it"
            return Cause([(f"the count of `{bar.text}` is {bar.count}, and only {who}", bar.span)],
                         "the count of a named barrier is the number of workers that come to it, those that only arrive() too", 4 if able < bar.count else 0)  # fmt: skip
    here = {a.label for a in bar.arrivals}
    absent = [x for x in came if x.label not in here]
    if absent:
        x = absent[0]
        where = "is at its end" if x.finished else f"waits at `{x.block.barrier.text}`" if x.block is not None else "has not come"
        return Cause([(f"no arrival of {x.label} on `{bar.text}` has come for this turn: it has come {_n(bar.came[x.number], 'time')}, and {where}", x.block.span if x.block is not None else None)],
                     f"the workers of `{bar.text}` come to it equally often, on every path", 1 + x.finished)  # fmt: skip
    return Cause([(f"{bar.last.label} arrived last, here", bar.last.span)] if bar.last is not None else [], "the workers of a named barrier come to it equally often, on every path")  # fmt: skip


def causes(m: Machine, blocked: Iterable[Worker]) -> Iterator[tuple[Worker, Cause]]:
    """Each blocked worker with its cause, the surest first; those that are equally sure in the order given."""
    yield from sorted(((w, of_block(m, w)) for w in blocked), key=lambda x: -x[1].sure)
