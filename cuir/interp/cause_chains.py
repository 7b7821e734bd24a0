"""Evidence about a fault of synchronisation: uses in the text, barrier logs, faults of one barrier.

Runs once a fault is found, on the state as it is then. causes.py and deadlocks.py choose what explains a fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, cast

from ..checking.checked import Checked
from ..checking.kernel_results import keep_with_kernel
from ..checking.views import root_name
from ..syntax.nodes import Call, For, If, Stmt
from ..syntax.walk import walk
from ..text.phrases import count_noun
from ..text.source import Span
from .barrier_state import LOG_LENGTH, Event, Mbarrier, NamedBarrier
from .machine import Machine

CauseNote = tuple[str, Span | None]
RING = "the i-th use of a ring of n stages is its stage's phase i // n: a reader waits for parity i // n % 2, who fills it again for i // n % 2 ^ 1"


@dataclass
class Cause:
    """A cause of a fault, with its notes and hint.

    notes: the faulty statement first. sure: how certain the cause is, 0 if it is only an observation.
    """

    notes: Sequence[CauseNote] = field(default_factory=list)
    hint: str = ""
    sure: int = 0


@dataclass(frozen=True)
class Use:
    """A call in the text that uses a barrier (`name`).

    kind: "arrives" (with its bytes, if it is an expect), "waits", or "lands" a copy of `array` on it.
    """

    kind: str
    name: str
    role: str
    span: Span
    array: str = ""
    along: bool | str = False  # selects CTAs whose barriers of this name are used, see `Checked.ctas`


class BarrierUses:
    """The uses of barriers and shared arrays in the text of a kernel, by the table of primitives."""

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
        """For each call in a role, the wait before it in its block, or around it up to a loop.

        Within one turn of a loop no other wait can hold the call back.
        """
        waits = {(u.role, u.span): u for u in self.find("waits")}
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
        """Map from each ring that signals free buffers to the ring that signals filled ones.

        A copy that lands on the second lies behind a wait on the first.
        """
        copies = ((u, self.guards.get((u.role, u.span))) for u in self.find("lands"))
        return {guard.name: u.name for u, guard in copies if guard is not None and guard.name != u.name}

    def find(self, kind: str, name: str | None = None, role: str | None = None, array: str | None = None) -> list[Use]:
        return [u for u in self.uses if u.kind == kind and name in (None, u.name) and role in (None, u.role) and array in (None, u.array)]

    def count_arriving(self, name: str) -> int:
        """Count the workers that can arrive at the barrier of one CTA.

        Those of the CTA itself, or of the CTAs in line, for each line that a role's arrivals go along.
        """
        roles = {r.name: r.workers for r in self.checked.roles}
        lines: dict[str, set[bool | str]] = {}
        for u in self.find("arrives", name):
            lines.setdefault(u.role, set()).add(u.along)
        return sum(
            roles[role] * (self.checked.cluster if True in of else sum(len(self.checked.ctas(0, line)) for line in of))
            for role, of in lines.items()
        )

    def count_sure_arrivals(self, name: str) -> int:
        """Count the workers that certainly come to a named barrier that is no ring.

        These are the workers of roles that use it outside of branches.
        """
        if self.checked.barriers[name].stages is not None:
            return 0
        spans = {(u.role, u.span) for u in self.find("arrives", name)}
        return sum(
            role.workers for role in self.checked.roles if any((role.name, s) in spans for s in _walk_unconditional_calls(role.body))
        )


def _walk_unconditional_calls(stmts: Sequence[Stmt]) -> Iterator[Span]:
    """Yield the spans of all calls outside of branches."""
    for stmt in stmts:
        if isinstance(stmt, For):
            yield from _walk_unconditional_calls(stmt.body)
        elif not isinstance(stmt, If):
            yield from (node.span for node in walk(stmt) if isinstance(node, Call))


@keep_with_kernel
def get_barrier_uses(checked: Checked) -> BarrierUses:
    return BarrierUses(checked)


# ---- logs of barriers
def list_mbarriers(m: Machine) -> list[Mbarrier]:
    return [bar for (name, _), ring in m.barriers.items() if not m.launch.checked.barriers[name].hardware for bar in ring]  # type: ignore[misc]


def get_ring(m: Machine, name: str, cta: int) -> list[Mbarrier]:
    """Return the mbarriers of a ring, by stage; none if there is no such ring."""
    return cast("list[Mbarrier]", m.barriers.get((name, cta), []))


class BarrierPlace(NamedTuple):
    """Place of a barrier: its ring, its stage there, and its CTA."""

    ring: str
    stage: int
    cta: int


def find_place(m: Machine, bar: Mbarrier | NamedBarrier) -> BarrierPlace:
    """Return the place of a barrier."""
    return next(BarrierPlace(name, ring.index(bar), cta) for (name, cta), ring in m.barriers.items() if any(b is bar for b in ring))


def list_waits(bar: Mbarrier, worker: int) -> list[Event]:
    return [e for e in bar.events() if e.kind == "wait" and e.worker == worker]


def list_arrivals(bar: Mbarrier, phase: int | None = None, worker: int | None = None) -> list[Event]:
    """Return the arrivals at a barrier, the last first."""
    return [e for e in bar.events() if e.kind == "arrive" and phase in (None, e.phase) and worker in (None, e.worker)]


def list_all_waits(m: Machine, worker: int) -> list[tuple[Event, Mbarrier]]:
    """Return the waits of a worker at any mbarrier, the last first."""
    return sorted(((e, bar) for bar in list_mbarriers(m) for e in list_waits(bar, worker)), key=lambda x: -x[0].tick)


# ---- words
def format_labels(events: Iterable[Event]) -> str:
    return ", ".join(dict.fromkeys(e.label for e in events)) or "nobody"


def describe_immediate_wait(bar: Mbarrier, wait: Event) -> str:
    """Describe a wait that returned at once, and why."""
    reason = (
        "which is over before the first arrival" if wait.phase < 0 else f"which {wait.label} knew to be over: it had waited for it before"
    )
    return f"this wait({wait.value}) on `{bar.text}` returned at once: it means phase {wait.phase}, {reason}"


def hint_parity(m: Machine, bar: Mbarrier, phase: int) -> str:
    ring = f"; {RING}" if len(m.barriers[find_place(m, bar).ring, find_place(m, bar).cta]) > 1 else ""
    return f"phase {phase} has parity {phase % 2}: wait({phase % 2}) for it here{ring}"


# ---- faults of one barrier
def find_second_arrival(bar: Mbarrier, phase: int) -> Cause | None:
    """Return the cause if a worker arrived twice in a phase that takes more than one arrival."""
    first_arrivals: dict[int, Event] = {}
    for e in reversed(list_arrivals(bar, phase)):
        if e.worker in first_arrivals:
            first = first_arrivals[e.worker].span
            return Cause(
                [
                    (
                        f"{e.label} arrives on `{bar.text}` a second time in phase {phase} here, so that it ended without another worker's arrival",
                        e.span,
                    ),
                    *([] if first == e.span else [(f"{e.label} arrived for this phase here", first)]),
                ],
                "each worker arrives once a phase",
                2,
            )
        first_arrivals[e.worker] = e
    return None


def find_announcement(events: list[Event], issue: Event) -> Event | None:
    """Return the expect (or other arrival) that an issued copy belongs to; `events`: the last first.

    It is the last arrival of its issuer before it, or the next one where the text has the copy first.
    """
    issuer_arrivals = [e for e in events if e.kind == "arrive" and e.worker == issue.worker]
    previous = next((e for e in issuer_arrivals if e.tick < issue.tick), None)
    if previous is not None and (previous.span.line, previous.span.column) < (issue.span.line, issue.span.column):
        return previous
    return next((e for e in reversed(issuer_arrivals) if e.tick > issue.tick), None)


def collect_bytes(bar: Mbarrier, phase: int) -> tuple[list[Event], list[Event]]:
    """Return the expects that count in a phase, and the copies that were issued for it."""
    events = bar.events()
    expects = [e for e in reversed(events) if e.kind == "arrive" and e.value and e.phase == phase]
    announcements = [(e, find_announcement(events, e)) for e in reversed(events) if e.kind == "issue"]
    return expects, [e for e, by in announcements if (by.phase if by is not None else e.phase) == phase]


def find_torn_copy(m: Machine, name: str, cta: int) -> Cause | None:
    """Find a copy that lands on another stage of the ring than the one where its bytes were announced."""
    ring = get_ring(m, name, cta)
    if len(ring) < 2:
        return None
    events = sorted((e for bar in ring for e in bar.events()), key=lambda e: -e.tick)
    bar_of_tick = {e.tick: bar for bar in ring for e in bar.events()}
    for e in reversed(events):
        announcement = find_announcement(events, e) if e.kind == "issue" else None
        if announcement is not None and announcement.value and bar_of_tick[announcement.tick] is not bar_of_tick[e.tick]:
            return Cause(
                [
                    (
                        f"this copy lands on `{bar_of_tick[e.tick].text}`, and the expect that goes with it announces its bytes on `{bar_of_tick[announcement.tick].text}`",
                        e.span,
                    ),
                    (f"the bytes are expected on `{bar_of_tick[announcement.tick].text}` here", announcement.span),
                ],
                "the expect, the copy's barrier and its view have the same stage",
                3,
            )
    return None


def find_wrong_bytes(bar: Mbarrier, phase: int) -> Cause | None:
    """Return a cause if a barrier's expected bytes in a phase differ from the bytes that copies bring."""
    expects, copies = collect_bytes(bar, phase)
    expected, copied_bytes = sum(e.value for e in expects), sum(e.value for e in copies)
    if expected == copied_bytes or not (expects or copies):
        return None
    places = list(dict.fromkeys(c.span for c in copies))
    copies_text = f" by {count_noun(len(copies), 'copy')}"
    if expects:
        explanation = f"{count_noun(expected, 'byte')} are expected here for phase {phase} of `{bar.text}`, and {copied_bytes:,} are copied{copies_text if copies else ''}"
        notes: list[CauseNote] = [(explanation, expects[0].span), *((f"copied on `{bar.text}` here", s) for s in places[:1])]
    else:
        arrivals = list_arrivals(bar, phase)
        explanation = f"phase {phase} of `{bar.text}` expects no bytes, and {copied_bytes:,} are copied{copies_text}"
        notes = [
            (explanation, arrivals[-1].span if arrivals else places[0]),
            *((f"copied on `{bar.text}` here", s) for s in places[: len(arrivals)][:1]),
        ]
    return Cause(notes, "expect(nbytes(view)), summed over the views that are copied on the barrier in one phase", 2)


def find_stray_event(m: Machine, bar: Mbarrier) -> Cause | None:
    """Find an arrival or copy that went to another stage of the ring, and so is missing at `bar`."""
    name, stage, cta = find_place(m, bar)
    torn_cause = find_torn_copy(m, name, cta)
    if torn_cause is not None:
        return torn_cause
    ring = get_ring(m, name, cta)
    for sibling in ring:
        if sibling is not bar and sibling.bytes < 0 and sibling.user is not None:
            return Cause(
                [(f"this copy lands on `{sibling.text}`, where nobody expects its bytes, and not on `{bar.text}`", sibling.user.span)],
                "the copy, the expect and the array's view have the same stage",
                3,
            )
    most = max(ring, key=lambda b: sum(b.came.values()))
    arrived = sum(bar.came.values())
    if (
        most is not bar
        and most.last is not None
        and sum(most.came.values()) > arrived + most.count
        and (not arrived or stage < ring.index(most))
    ):
        return Cause(
            [
                (
                    f"{most.last.label} arrives on `{most.text}` here, which has had {count_noun(sum(most.came.values()), 'arrival')} so far, while `{bar.text}` has had {arrived or 'none'}",
                    most.last.span,
                )
            ],
            "arrive on the stage that was used: the i-th use is of stage i % n",
            2,
        )
    return None


# ---- waits that returned too early
def find_idle_wait(m: Machine, worker: int, since: int, until: int) -> Cause | None:
    """Find a wait of a worker, between two ticks, that returned at once though a right one would not.

    It was for a phase that the worker knew, or for none at all where data land.
    """
    text = get_barrier_uses(m.launch.checked)
    filled_names = {u.name for u in text.find("lands")}
    for e, bar in list_all_waits(m, worker):
        if (
            since < e.tick < until
            and e.at_once
            and (e.phase >= 0 or find_place(m, bar).ring in filled_names or any(o.tick < e.tick for o in list_waits(bar, worker)))
        ):
            return Cause([(describe_immediate_wait(bar, e), e.span)], hint_parity(m, bar, e.phase + 1), 2)
    return None


def find_unwaited_release(m: Machine, worker: int, release_ring: str, cta: int) -> Cause | None:
    """Find an arrival that releases a stage without a wait for it since the worker's previous release.

    The stage is wrong, or it is released once too often, or its wait is missing.
    """
    filled_name = get_barrier_uses(m.launch.checked).pairs.get(release_ring)
    released_ring, filled_ring = get_ring(m, release_ring, cta), get_ring(m, filled_name or "", cta)
    if len(released_ring) != len(filled_ring) or not filled_ring:
        return None
    arrivals = []
    for r, p in zip(released_ring, filled_ring):
        last = -1 if len(r.marks) < LOG_LENGTH else None
        waits = [e.tick for e in list_waits(p, worker)]
        for a in reversed(list_arrivals(r, worker=worker)):
            if last is not None and not any(last < t < a.tick for t in waits):
                arrivals.append((a, r, p))
                break
            last = a.tick
    if not arrivals:
        return None
    a, r, p = min(arrivals, key=lambda x: x[0].tick)
    last_wait = max((e for b in filled_ring for e in list_waits(b, worker) if e.tick < a.tick), key=lambda e: e.tick, default=None)
    earlier_arrival = next((e for e in list_arrivals(r, worker=worker) if e.tick < a.tick), None)
    is_fresh = last_wait is not None and last_wait.tick > max(
        (e.tick for b in released_ring for e in list_arrivals(b, worker=worker) if e.tick < a.tick), default=-1
    )
    since_text = f" since it arrived on `{r.text}` before" if earlier_arrival is not None else ""
    notes: list[CauseNote] = [
        (f"{a.label} arrives on `{r.text}` here, and no wait of its own on `{p.text}` lies before{since_text}", a.span)
    ]
    sibling_notes = (
        [
            (
                f"what it waited for is another stage, `{next(b.text for b in filled_ring if last_wait in list_waits(b, worker))}`",
                last_wait.span,
            )
        ]
        if is_fresh and last_wait is not None
        else []
    )
    return Cause(
        [*notes, *sibling_notes],
        f"for each use of a stage one wait on `{filled_name}` and then one arrival on `{release_ring}`, of that stage",
        2,
    )


def find_extra_arrival(bar: Mbarrier, phase: int) -> Cause | None:
    """Return the arrival that ended a phase in which no copy landed."""
    if any(e.kind == "land" and e.phase == phase for e in bar.events()):
        return None
    arrivals = list_arrivals(bar, phase)
    if not arrivals:
        return None
    return Cause(
        [
            (
                f"phase {phase} of `{bar.text}` ended with the arrival of {arrivals[0].label} here, before any copy had landed in it",
                arrivals[0].span,
            )
        ],
        "one arrival for each use of the barrier, by expect(nbytes(view)), before the copies that it announces",
        2,
    )


def find_sibling_wait(m: Machine, bar: Mbarrier, worker: int, since: int) -> tuple[Event, Mbarrier] | None:
    """Return a later wait of a worker at another stage of the same ring."""
    name, _, cta = find_place(m, bar)
    ring = get_ring(m, name, cta)
    waits = [(e, b) for b in ring if b is not bar for e in list_waits(b, worker) if e.tick > since]
    return max(waits, key=lambda x: x[0].tick, default=None)
