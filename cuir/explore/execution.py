"""One execution of a skeleton, step by step: barriers, happens-before, and the faults that follow.

Sets of events are integers, a bit for each event. Two orders are kept. *Happened before* is that of docs/semantics.md:
races, fences and laps are judged by it (cuir/sync), so they are found whichever of the two comes first. *Dependence* is
happened before and, in addition, each arrival at a barrier after those of the phase before: executions that agree in
which arrival counts in which phase have the same dependence, and are indistinguishable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from ..sync import meetings, phases
from ..sync.accesses import Finding, describe_access, drop_replaced_reads, find_races
from ..sync.orders import Party, can_be_ordered
from ..text.phrases import count_noun
from ..text.source import Span
from .bit_orders import BitOrder, TensorBits, WorkerBits
from .skeleton import NOW, Bar, Fence, Landing, Retire, Skeleton, Step, Touch


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault and the steps that cause it.

    steps: a bit for each step without which it does not show.
    """

    code: str
    message: str
    span: Span
    notes: tuple[tuple[str, Span | None], ...]
    hint: str
    steps: int
    after: tuple[int, ...] = ()  # workers that must run after these steps to show the fault


@dataclass(slots=True)
class _Record:
    """An access; `completion` is the event at which it is over."""

    seen: ClassVar[bool] = False
    description: ClassVar[str] = ""

    touch: Touch
    mode: str
    proxy: str
    memory: str
    worker: int
    owner: str
    completion: int
    step: int

    @property
    def label(self) -> str:
        return self.owner if self.touch.engine == NOW else f"{self.touch.operation} of {self.owner}"

    @property
    def text(self) -> str:
        return self.touch.text

    @property
    def span(self) -> Span:
        return self.touch.span

    @property
    def awaited(self) -> str:
        return "" if self.touch.engine == NOW else self.touch.awaited


def _list_late_workers(*records: _Record) -> tuple[int, ...]:
    """Return the workers whose accesses follow their last step."""
    return tuple(dict.fromkeys(r.worker for r in records if not r.touch.point))


class _Wait(NamedTuple):
    """The last wait of a worker at a barrier; step: its number."""

    phase: int
    event: int
    span: Span
    step: int


class _Bar:
    """State of a barrier.

    `phase` counts completed phases (of a named barrier: generations).
    """

    __slots__ = (
        "arrivals",
        "before",
        "bytes",
        "complete",
        "count",
        "dependencies",
        "landed",
        "now",
        "order",
        "over",
        "pending",
        "phase",
        "phase_order",
        "span",
        "text",
        "used",
        "waits",
        "warps",
        "warps_here",
    )

    def __init__(self, about: Bar):
        self.text, self.count, self.warps, self.span = about.text, about.count, about.warps, about.span
        self.phase, self.pending, self.bytes, self.warps_here, self.landed = 0, about.count, 0, 0, 0
        self.order, self.phase_order = BitOrder(), BitOrder()
        self.complete: list[int] = []  # the event of each completed phase
        self.waits: dict[int, _Wait] = {}  # of each worker
        self.now: list[int] = []  # steps that arrived in this phase
        self.before: list[int] = []  # and in the one before
        self.arrivals: list[str] = []  # named: the workers that arrived in this phase
        self.dependencies = 0  # all steps that completed phases depend on
        self.used = -1  # the last phase that a copy landed in
        self.over: list[tuple[BitOrder, int]] = []  # named: what each generation knew, and its dependences


class Execution:
    """State of an execution.

    Workers come first among the agents, by number; then the landings of copies.
    """

    def __init__(self, skeleton: Skeleton):
        self.skeleton = skeleton
        n = len(skeleton.workers)
        self.workers = n
        self.position = [0] * n
        self.next_bit = n
        self.orders = [WorkerBits(1 << w) for w in range(n)]  # what each worker knows
        self.issue_orders: dict[int, BitOrder] = {}  # agents of copies -> what their workers knew at the issue
        self.engines: dict[tuple[int, int], int] = {}
        self.records: list[list[_Record]] = [[] for _ in skeleton.regions]
        self.bars = [_Bar(b) for b in skeleton.bars]
        # bytes of each array of a CTA whose last write was through it
        self.defined: dict[tuple[int | str, str], int] = {}
        self.commits: dict[int, tuple[Landing, int]] = {}  # of each worker: the last one that arrived, and its phase
        self.flying: dict[int, int] = {}  # agents of copies in flight -> what their landing depends on
        self.tickets = [0] * n
        self.units_taken = [0] * n
        self.takes: list[int] = []  # dependences of taking each unit
        self.counted: set[tuple[int, int, int, int]] = (
            set()
        )  # agent, its step, barrier, phase: identifies an execution up to the order of independent steps
        self.trace: list[int] = []  # the agent of each step
        self.past: list[int] = []  # the steps that each step depends on
        self.behind = [0] * n  # a worker's steps and what they depend on
        self.conflicts: list[tuple[int, int]] = []  # pairs of steps whose reversed order is another execution
        self.faults: list[Fault] = []
        self.stopped = False  # by a fault after which execution is undefined
        for w, worker in enumerate(skeleton.workers):
            for effect in worker.lead:
                self._apply_local(w, effect, -1)

    # ---- enabled steps
    def next_step(self, worker: int) -> Step | None:
        """Return the next step of a worker, or None at its end."""
        steps = self.skeleton.workers[worker].steps
        at = self.position[worker]
        return steps[at] if at < len(steps) else None

    def is_enabled(self, agent: int) -> bool:
        """Return whether an agent can execute its next step."""
        if agent >= self.workers:
            return agent in self.flying
        step = self.next_step(agent)
        if step is None:
            return False
        if step.kind == "wait":
            bar = self.bars[step.bars[0]]
            return bar.phase > phases.find_awaited_phase(self._find_last_known(agent, bar), step.value)
        if step.kind == "pass":
            return len(self.bars[step.bars[0]].over) > self.tickets[agent]
        if step.kind == "take":
            mine = self.units_taken[agent]
            return all(self.units_taken[w] >= mine for w, t in enumerate(self.skeleton.workers) if t.takes)
        return True

    def state(self) -> object:
        """Return a key that is equal for executions in the same state.

        It holds positions, copies in flight, and which arrival counted in which phase.
        """
        return tuple(self.position), frozenset(self.flying), frozenset(self.counted)

    def agents(self) -> list[int]:
        """List all enabled agents."""
        return [a for a in (*range(self.workers), *self.flying) if self.is_enabled(a)]

    def is_finished(self) -> bool:
        """Return whether all workers have ended and no copy is in flight."""
        return not self.flying and all(self.next_step(w) is None for w in range(self.workers))

    def commute(self, a: int, b: int) -> bool:
        """Return whether two enabled agents lead to the same state in either order.

        Not if one of them alone completes a phase that the other arrives in.
        """
        mine, second = self._list_arrivals(a), self._list_arrivals(b)
        return not any(bar in second and (self._would_complete(bar, mine[bar]) or self._would_complete(bar, second[bar])) for bar in mine)

    def _list_arrivals(self, agent: int) -> dict[int, tuple[int, int]]:
        """Return the barriers at which the agent's next step arrives, with arrivals and bytes."""
        if agent >= self.workers:
            landing = self.skeleton.landings[agent - self.workers]
            return {landing.bar: (landing.arrivals, -landing.nbytes)}
        step = self.next_step(agent)
        return dict.fromkeys(step.bars, (1, step.value)) if step is not None and step.kind in ("arrive", "join", "named arrive") else {}

    def _would_complete(self, number: int, by: tuple[int, int]) -> bool:
        bar = self.bars[number]
        if self.skeleton.bars[number].named:
            return len(bar.arrivals) + 1 == bar.count
        return bar.pending == by[0] and bar.bytes + by[1] == 0

    def _find_last_known(self, worker: int, bar: _Bar) -> int:
        """Return the last phase that a worker knows to have ended, or -1."""
        last_known, order = bar.phase - 1, self.orders[worker]
        while last_known >= 0 and not order.is_before(bar.complete[last_known]):
            last_known -= 1
        return last_known

    # ---- steps
    def step(self, agent: int) -> None:
        """Execute the next step of an enabled agent."""
        self.trace.append(agent)
        at = self.position[agent] if agent < self.workers else 0
        self.counted.update((agent, at, b, self.bars[b].phase) for b in self._list_arrivals(agent))
        if agent >= self.workers:
            landing = self.skeleton.landings[agent - self.workers]
            pre = self.flying.pop(agent)
            self._add_dependences(pre, landing.bar)
            self._land(landing, self.issue_orders[agent])
            return
        step, number = self.next_step(agent), len(self.past)
        assert step is not None
        self.position[agent] += 1
        pre = self.behind[agent]
        kind = step.kind
        if kind in ("arrive", "join", "named arrive"):
            past = self._add_dependences(pre, *step.bars)
            for bar in step.bars:
                if kind == "arrive":
                    self._arrive(agent, bar, step)
                else:
                    self._arrive_named(agent, bar, step)
            self._begin_event(agent)
        elif kind == "wait":
            past = self._wait(agent, step, pre)
        elif kind == "pass":
            order, depends = self.bars[step.bars[0]].over[self.tickets[agent]]
            self.orders[agent].join(order)
            past = self._add_dependences(pre | depends)
        elif kind == "take":
            unit = self.units_taken[agent]
            past = self._add_dependences(pre | (self.takes[unit - 1] if unit else 0))
            self.units_taken[agent] += 1
            if len(self.takes) <= unit:
                self.takes.append(0)
            self.takes[unit] |= past | 1 << number
        else:
            past = self._add_dependences(pre)
        self.behind[agent] = past | 1 << number
        for landing in step.landings:
            for engine in landing.engines:
                self._get_engine_event(agent, engine)
            self.flying[self.workers + landing.number] = self.behind[agent]
            order = self.orders[agent]
            self.issue_orders[self.workers + landing.number] = order.without_own() if landing.arrivals else order.copy()
        if step.landings:
            self._begin_event(agent)  # a wait behind the issue is not over when the copy lands
        for effect in step.locals:
            self._apply_local(agent, effect, number)

    def _add_dependences(self, past: int, *bars: int) -> int:
        """Record the dependences of a step.

        An arrival (at `bars`) depends on all of the phases before, and may go before those that it does not otherwise
        depend on.
        """
        number = len(self.past)
        before = past
        for b in bars:
            bar = self.bars[b]
            self.conflicts.extend((earlier, number) for earlier in bar.before if not before >> earlier & 1)
            past |= bar.dependencies
        self.past.append(past)
        return past

    def _land(self, landing: Landing, order: BitOrder) -> None:
        bar = self.bars[landing.bar]
        if landing.arrivals:
            self.commits[landing.worker] = landing, bar.phase
        else:
            bar.used = bar.phase
        bar.now.append(len(self.past) - 1)
        excess = phases.find_excess_arrival(bar, landing.name, landing.span, seen=False) if landing.arrivals else None
        if excess is None:
            over = 0
            for engine in landing.engines:
                over |= self.engines[landing.worker, engine]
            if landing.arrivals:
                phases.count_late_arrival(bar, order, over)
            else:
                phases.count_landing(bar, order, landing.nbytes)
                bar.landed |= over
            excess = phases.find_excess_bytes(bar, landing.span, landing.name)
        if excess is not None:
            self._stop(excess, self._compute_closure(*bar.now))
            return
        self._complete(bar)

    def _arrive(self, worker: int, number: int, step: Step) -> None:
        bar, label = self.bars[number], self.skeleton.workers[worker].label
        bar.now.append(len(self.past) - 1)
        excess = phases.find_excess_arrival(bar, label, step.span, seen=False)
        if excess is None:
            phases.count_arrival(bar, self.orders[worker], step.value)
            excess = phases.find_excess_bytes(bar, step.span)
        if excess is not None:
            self._stop(excess, self._compute_closure(*bar.now))
            return
        self._complete(bar)

    def _complete(self, bar: _Bar) -> None:
        if not phases.is_complete(bar):
            return
        event = self._make_event()
        bar.complete.append(event)
        phases.end_phase(bar, event | bar.landed)
        bar.landed = 0
        finished = self._begin_phase(bar)
        for worker, wait in phases.find_lapped(bar, bar.waits):
            self._report_lap(worker, bar, wait.phase, wait.span, self._compute_closure(wait.step, *finished))

    def _begin_phase(self, bar: _Bar) -> list[int]:
        for s in bar.now:
            bar.dependencies |= self.past[s] | 1 << s
        bar.before, bar.now = bar.now, []
        return bar.before

    def _arrive_named(self, worker: int, number: int, step: Step) -> None:
        """Arrive at a named barrier, or at the join of a CTA."""
        bar, trace = self.bars[number], self.skeleton.workers[worker]
        bar.now.append(len(self.past) - 1)
        bar.arrivals.append(trace.label)
        bar.warps_here += trace.warps
        if (wrong := meetings.find_wrong_warps(bar, step.span, seen=False)) is not None:
            self._stop(wrong, self._compute_closure(*bar.now))
            return
        bar.order.join(self.orders[worker])
        if step.kind == "join":
            self.tickets[worker] = bar.phase
        if meetings.is_full(bar):
            self._begin_phase(bar)
            bar.over.append((bar.order, bar.dependencies))
            bar.phase, bar.order, bar.arrivals, bar.warps_here = bar.phase + 1, BitOrder(), [], 0

    def _wait(self, worker: int, step: Step, pre: int) -> int:
        bar = self.bars[step.bars[0]]
        phase, ended = phases.try_wait(bar, self.orders[worker], self._find_last_known(worker, bar), step.value)
        past = self._add_dependences(pre | (bar.dependencies if phase >= 0 else 0))
        if ended >= phases.LAPPED:
            self.stopped = True
            self._report_lap(worker, bar, phase, step.span, self._compute_closure(len(self.past) - 1, *bar.before))
            return past
        bar.waits[worker] = _Wait(phase, self.orders[worker].event, step.span, len(self.past) - 1)
        return past

    def _report_lap(self, worker: int, bar: _Bar, phase: int, span: Span, steps: int) -> None:
        self._report(phases.make_lap_finding(bar, self.skeleton.workers[worker].label, phase, span), steps)

    # ---- local effects
    def _apply_local(self, worker: int, effect: Touch | Fence | Retire, step: int) -> None:
        if isinstance(effect, Touch):
            self._touch(worker, effect, step)
        elif isinstance(effect, Retire):
            for engine in effect.engines:
                self.orders[worker].retire(self.engines[worker, engine])
        else:
            self.orders[worker].fence(effect.tensors, self._make_event())

    def _touch(self, worker: int, new: Touch, step: int) -> None:
        order = self.orders[worker]
        memory = "shared" if isinstance(self.skeleton.regions[new.region].space, int) else "tensor"
        completion = order.event if new.engine == NOW else self._get_engine_event(worker, new.engine)
        owner = self.skeleton.workers[worker].label
        record = _Record(new, new.mode, new.proxy, memory, worker, owner, completion, step)
        known = order if memory == "shared" else TensorBits(order, self.orders)
        unorderable = None if memory == "shared" else lambda old: not self._can_be_ordered(record, old)
        for region, covered in self.skeleton.near[new.region]:
            for old, finding in find_races(record, self.records[region], known, unorderable):
                self._report(finding, self._compute_closure(old.step, step), _list_late_workers(old, record))
            if covered and new.mode == "write":
                self.records[region].clear()
        home = self.records[new.region]
        if new.mode == "read":
            home[:] = drop_replaced_reads(home, record, order)
        home.append(record)
        if new.array:
            self._check_defined(record)

    def _can_be_ordered(self, new: _Record, old: _Record) -> bool:
        """Return whether barriers can order two accesses to a tensor.

        Those of different CTAs only where the kernel accesses it in more than one way.
        """
        a, b = (Party(self.skeleton.cluster, self.skeleton.workers[r.worker].cta) for r in (new, old))
        exchanged = self.skeleton.regions[new.touch.region].space in self.skeleton.handed
        return can_be_ordered(a, b, "cluster" if exchanged else "cta")

    def _check_defined(self, record: _Record) -> None:
        """Require that bytes read were written, and not overwritten through another array since."""
        touch = record.touch
        cta, mask = self.skeleton.regions[touch.region].space, self.skeleton.bytes[touch.region]
        if touch.mode != "read":
            self.defined[cta, touch.array] = self.defined.get((cta, touch.array), 0) | mask
            for alias in self.skeleton.aliases[touch.array]:
                self.defined[cta, alias] = self.defined.get((cta, alias), 0) & ~mask
        elif mask & ~self.defined.get((cta, touch.array), 0):
            over = self.skeleton.aliases[touch.array]
            message = f"{describe_access(record)} reads what was never written" + (
                f", or was overwritten through {' or '.join(f'`{o}`' for o in over)}" if over else ""
            )
            self.faults.append(
                Fault(
                    "M401",
                    message,
                    touch.span,
                    (),
                    "write it before, on every path and in every tile",
                    self._compute_closure(record.step),
                    _list_late_workers(record),
                )
            )

    # ---- events
    def _make_event(self) -> int:
        self.next_bit += 1
        return 1 << self.next_bit - 1

    def _begin_event(self, worker: int) -> None:
        """Begin a new event of a worker, which no release has covered yet."""
        self.orders[worker].begin_event(self._make_event())

    def _get_engine_event(self, worker: int, engine: int) -> int:
        """Return the event at which an engine completes."""
        if (worker, engine) not in self.engines:
            self.engines[worker, engine] = self._make_event()
        return self.engines[worker, engine]

    def _report(self, finding: Finding, steps: int, after: tuple[int, ...] = ()) -> None:
        self.faults.append(Fault(finding.code, finding.message, finding.span, finding.notes, finding.hint, steps, after))

    def _stop(self, finding: Finding, steps: int) -> None:
        self._report(finding, steps)
        self.stopped = True

    def _compute_closure(self, *steps: int) -> int:
        """Return the given steps and all steps that happen before them, as a bit set.

        Of the current step, the dependences found so far count.
        """
        closure = 0
        for s in steps:
            if s >= 0:
                closure |= (self.past[s] if s < len(self.past) else 0) | 1 << s
        return closure

    # ---- the end
    def end(self) -> None:
        """Report faults of a state without enabled agents: an unawaited copy, or a deadlock."""
        all_steps = (1 << len(self.trace)) - 1
        if not self.is_finished():
            for w in range(self.workers):
                step = self.next_step(w)
                if step is not None:
                    self.faults.append(
                        Fault(
                            "D401",
                            f"deadlock: {self.skeleton.workers[w].label} {self._describe_block(step)}",
                            step.span,
                            (),
                            "every wait needs its arrivals (and bytes) on every path, for empty tiles too",
                            all_steps,
                        )
                    )
            return
        for bar, about in zip(self.bars, self.skeleton.bars):
            if bar.used < 0:
                continue
            end = bar.complete[bar.used] if bar.used < len(bar.complete) else None
            landing = next(x for x in reversed(self.skeleton.landings) if self.skeleton.bars[x.bar] is about and not x.arrivals)
            unawaited = phases.find_unawaited_copy(bar, bar.used, end, self.orders, landing.span)
            if unawaited is not None:
                self._report(unawaited, all_steps)

        for landing, phase in self.commits.values():
            bar, event = self.bars[landing.bar], self.engines[landing.worker, landing.engines[-1]]
            unawaited = phases.find_unawaited_copy(bar, phase, event, self.orders, landing.span, landing.name)
            if unawaited is not None:
                self._report(unawaited, all_steps)

    def _describe_block(self, step: Step) -> str:
        if step.kind == "take":
            return "waits for its next unit of work, which is handed out when all workers have taken the one before"
        bar, about = self.bars[step.bars[0]], self.skeleton.bars[step.bars[0]]
        if about.named:
            return f"waits at `{about.text}`, where {len(bar.arrivals)} of {about.count} have arrived"
        missing = f"{about.count - bar.pending} of {count_noun(about.count, 'arrival')}" + (
            f", {bar.bytes} bytes missing" if bar.bytes > 0 else ""
        )
        return f"waits for parity {step.value} of `{about.text}`, which is in phase {bar.phase} with {missing}"
