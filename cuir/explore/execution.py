"""One execution of a skeleton, step by step: barriers, happens-before, and the faults that follow.

Sets of events are integers, a bit for each event. Two orders are kept. *Happened before* is that of docs/semantics.md:
races, fences and laps are judged by it, so they are found whichever of the two comes first. *Dependence* is happened
before and, in addition, each arrival at a barrier after those of the phase before: executions that agree in which
arrival counts in which phase have the same dependence, and are indistinguishable.
Laps use one more fact, which orders no access: a copy that lands was issued, so what its worker had done by then is
over.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..text.plurals import count_noun
from ..text.source import Span
from .skeleton import NOW, Fence, Landing, Retire, Skeleton, Step, Touch


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
    touch: Touch
    worker: int
    bit: int
    step: int


def _list_late_workers(*records: _Record) -> tuple[int, ...]:
    """Return the workers whose accesses follow their last step."""
    return tuple(dict.fromkeys(r.worker for r in records if not r.touch.point))


class _Bar:
    """State of a barrier.

    `phase` counts completed phases (of a named barrier: generations).
    """

    __slots__ = (
        "before",
        "bytes",
        "clock",
        "complete",
        "dependencies",
        "fenced",
        "landed",
        "now",
        "over",
        "pending",
        "phase",
        "phase_clock",
        "progress",
        "seen_fenced",
        "seen_progress",
        "used",
        "waits",
        "warps",
    )

    def __init__(self, count: int):
        self.phase, self.pending, self.bytes, self.warps = 0, count, 0, 0
        self.clock = self.fenced = self.progress = self.phase_clock = self.seen_fenced = self.seen_progress = self.landed = 0
        self.complete: list[int] = []  # the event of each completed phase
        self.waits: dict[int, tuple[int, int, Span, int]] = {}  # worker -> phase, event, place, step of its last wait
        self.now: list[int] = []  # steps that arrived in this phase
        self.before: list[int] = []  # and in the one before
        self.dependencies = 0  # all steps that completed phases depend on
        self.used = -1  # the last phase that a copy landed in
        # named: clock, fenced, progress and dependences of each generation
        self.over: list[tuple[int, int, int, int]] = []


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
        self.event = [1 << w for w in range(n)]  # the current event of each worker
        self.local_events = list(self.event)
        self.happened_before = list(self.event)  # what happened before, for each worker
        self.fenced = [0] * n
        self.progress = [0] * n  # completed events of other workers, without those that happened before
        self.issue_progress: dict[int, int] = {}  # agents of copies -> events completed when they were issued
        self.tensor_fences: list[list[tuple[int, int]]] = [
            [] for _ in range(n)
        ]  # the event behind each fence for tensors, and what it covers
        self.engines: dict[tuple[int, int], int] = {}
        self.records: list[list[_Record]] = [[] for _ in skeleton.regions]
        self.bars = [_Bar(b.count) for b in skeleton.bars]
        # bytes of each array of a CTA whose last write was through it
        self.defined: dict[tuple[int | str, str], int] = {}
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
            return bar.phase > self._find_awaited_phase(agent, bar, step.value)
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
            return {landing.bar: (0, -landing.nbytes)}
        step = self.next_step(agent)
        return dict.fromkeys(step.bars, (1, step.value)) if step is not None and step.kind in ("arrive", "join", "named arrive") else {}

    def _would_complete(self, number: int, by: tuple[int, int]) -> bool:
        bar = self.bars[number]
        if self.skeleton.bars[number].named:
            return len(bar.now) + 1 == self.skeleton.bars[number].count
        return bar.pending == by[0] and bar.bytes + by[1] == 0

    def _find_awaited_phase(self, worker: int, bar: _Bar, parity: int) -> int:
        """Return the phase that a wait for `parity` is for: the first from the worker's last complete one on."""
        phase = bar.phase - 1
        while phase >= 0 and not bar.complete[phase] & self.happened_before[worker]:
            phase -= 1
        return phase if phase % 2 == parity else phase + 1

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
            self._land(landing, self.issue_progress[agent])
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
            happened, fenced, progress, depends = self.bars[step.bars[0]].over[self.tickets[agent]]
            self.happened_before[agent] |= happened
            self.progress[agent] |= progress
            self.fenced[agent] |= fenced
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
            self._get_engine_event(agent, landing.engine)
            self.flying[self.workers + landing.number] = self.behind[agent]
            self.issue_progress[self.workers + landing.number] = self.happened_before[agent] | self.progress[agent]
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

    def _land(self, landing: Landing, progress: int) -> None:
        bar, about = self.bars[landing.bar], self.skeleton.bars[landing.bar]
        bar.used = bar.phase
        bar.progress |= progress
        bar.bytes -= landing.nbytes
        bar.landed |= self.engines[landing.worker, landing.engine]
        bar.now.append(len(self.past) - 1)
        if bar.pending == 0 and bar.bytes < 0:
            self._stop(
                Fault(
                    "S403",
                    f"phase {bar.phase} of `{about.text}` gets {-bar.bytes} bytes more than it expects with {landing.name}",
                    landing.span,
                    (),
                    "expect(nbytes(view)) for each view that is copied on this barrier",
                    self._compute_closure(*bar.now),
                )
            )
            return
        self._complete(landing.bar)

    def _arrive(self, worker: int, number: int, step: Step) -> None:
        bar, about, label = self.bars[number], self.skeleton.bars[number], self.skeleton.workers[worker].label
        bar.now.append(len(self.past) - 1)
        if bar.pending == 0:
            self._stop(
                Fault(
                    "S402",
                    f"`{about.text}` takes {count_noun(about.count, 'arrival')} a phase; one more can come from {label} while phase {bar.phase} still misses {bar.bytes} bytes",
                    step.span,
                    (),
                    "arrive for the next phase only after a wait that knows this one over; or the count is too small",
                    self._compute_closure(*bar.now),
                )
            )
            return
        bar.clock |= self.happened_before[worker]
        bar.fenced |= self.fenced[worker]
        bar.progress |= self.progress[worker]
        bar.pending -= 1
        bar.bytes += step.value
        if bar.pending == 0 and bar.bytes < 0:
            self._stop(
                Fault(
                    "S403",
                    f"phase {bar.phase} of `{about.text}` got {-bar.bytes} bytes more than it expects",
                    step.span,
                    (),
                    "expect(nbytes(view)) for each view that is copied on this barrier",
                    self._compute_closure(*bar.now),
                )
            )
            return
        self._complete(number)

    def _complete(self, number: int) -> None:
        bar = self.bars[number]
        if bar.pending or bar.bytes:
            return
        over, event = bar.phase, self._make_event()
        bar.complete.append(event)
        bar.clock |= event | bar.landed
        bar.phase_clock, bar.seen_fenced, bar.seen_progress, bar.landed = bar.clock, bar.fenced, bar.progress, 0
        bar.phase, bar.pending = over + 1, self.skeleton.bars[number].count
        finished = self._begin_phase(bar)
        for worker, (phase, waited, span, step) in bar.waits.items():
            if phase == over - 1 and not (bar.phase_clock | bar.seen_progress) & waited:
                self._report_lap(worker, number, phase, span, self._compute_closure(step, *finished))

    def _begin_phase(self, bar: _Bar) -> list[int]:
        for s in bar.now:
            bar.dependencies |= self.past[s] | 1 << s
        bar.before, bar.now = bar.now, []
        return bar.before

    def _arrive_named(self, worker: int, number: int, step: Step) -> None:
        """Arrive at a named barrier, or at the join of a CTA."""
        bar, about, trace = self.bars[number], self.skeleton.bars[number], self.skeleton.workers[worker]
        bar.now.append(len(self.past) - 1)
        bar.warps += trace.warps
        if (bar.warps < about.warps) != (len(bar.now) < about.count) or bar.warps > about.warps:
            self._stop(
                Fault(
                    "S406",
                    f"`{about.text}` opens at {count_noun(about.count, 'arrival')} of {count_noun(about.warps, 'warp')} in all; here {len(bar.now)} of {count_noun(bar.warps, 'warp')} can come, the last from {trace.label}",
                    step.span,
                    (),
                    "each worker comes once a phase; warps= is the sum over those that come, four for a warpgroup",
                    self._compute_closure(*bar.now),
                )
            )
            return
        bar.clock |= self.happened_before[worker]
        bar.fenced |= self.fenced[worker]
        bar.progress |= self.progress[worker]
        if step.kind == "join":
            self.tickets[worker] = bar.phase
        if len(bar.now) == self.skeleton.bars[number].count:
            self._begin_phase(bar)
            bar.over.append((bar.clock, bar.fenced, bar.progress, bar.dependencies))
            bar.phase, bar.clock, bar.fenced, bar.progress, bar.warps = bar.phase + 1, 0, 0, 0, 0

    def _wait(self, worker: int, step: Step, pre: int) -> int:
        bar = self.bars[step.bars[0]]
        phase = self._find_awaited_phase(worker, bar, step.value)
        past = self._add_dependences(pre | (bar.dependencies if phase >= 0 else 0))
        if bar.phase > phase + 1:
            self.stopped = True
            self._report_lap(worker, step.bars[0], phase, step.span, self._compute_closure(len(self.past) - 1, *bar.before))
            return past
        if phase >= 0:
            self.happened_before[worker] |= bar.phase_clock
            self.fenced[worker] |= bar.seen_fenced
            self.progress[worker] |= bar.seen_progress
        bar.waits[worker] = (phase, self.event[worker], step.span, len(self.past) - 1)
        return past

    def _report_lap(self, worker: int, number: int, phase: int, span: Span, steps: int) -> None:
        about, label = self.skeleton.bars[number], self.skeleton.workers[worker].label
        self.faults.append(
            Fault(
                "S401",
                f"{label} waits for phase {phase} of `{about.text}`, and phase {phase + 1} can be over by then: a parity tells only two phases apart",
                span,
                ((f"`{about.text}` is declared here", about.span),),
                "whoever lets the barrier advance must first wait for something that the waiter does after this wait",
                steps,
            )
        )

    # ---- local effects
    def _apply_local(self, worker: int, effect: Touch | Fence | Retire, step: int) -> None:
        if isinstance(effect, Touch):
            self._touch(worker, effect, step)
        elif isinstance(effect, Retire):
            for engine in effect.engines:
                bit = self.engines[worker, engine]
                self.happened_before[worker] |= bit
                self.local_events[worker] |= bit
        else:
            covers = self.local_events[worker]
            self.fenced[worker] |= covers
            self._begin_event(worker)
            if effect.tensors:
                self.tensor_fences[worker].append((self.event[worker], covers))

    def _touch(self, worker: int, new: Touch, step: int) -> None:
        happened, fenced = self.happened_before[worker], self.fenced[worker]
        record = _Record(new, worker, self.event[worker] if new.engine == NOW else self._get_engine_event(worker, new.engine), step)
        for region, covered in self.skeleton.near[new.region]:
            for old in self.records[region]:
                earlier = old.touch
                if new.mode == earlier.mode and new.mode != "write":
                    continue
                if not (old.bit & happened and (new.array or self._can_be_ordered(record, old))):
                    self._report_race(record, old)
                elif new.proxy == "async" and earlier.proxy == "generic" and earlier.mode != "read":
                    is_visible = any(event & happened and covers & old.bit for event, covers in self.tensor_fences[old.worker])
                    if not (old.bit & fenced if new.array else is_visible):
                        self._report_missing_fence(record, old)
            if covered and new.mode == "write":
                self.records[region].clear()
        home = self.records[new.region]
        if new.mode == "read":  # a later read of the same worker stands for those before it
            home[:] = [r for r in home if not (r.touch.mode == "read" and r.worker == worker and r.bit & happened)]
        home.append(record)
        if new.array:
            self._check_defined(record)

    def _can_be_ordered(self, new: _Record, old: _Record) -> bool:
        """Return whether barriers can order two accesses to a tensor.

        Those of different CTAs only where the kernel accesses it in more than one way.
        """
        workers = self.skeleton.workers
        return workers[new.worker].cta == workers[old.worker].cta or self.skeleton.regions[new.touch.region].space in self.skeleton.handed

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
            message = f"{self._describe_access(record)} reads what was never written" + (
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

    def _describe_access(self, r: _Record) -> str:
        label = self.skeleton.workers[r.worker].label
        return (
            f"the {r.touch.mode} of `{r.touch.text}` by {r.touch.operation} of {label}"
            if r.touch.engine != NOW
            else f"the {r.touch.mode} of `{r.touch.text}` by {label}"
        )

    def _report_race(self, new: _Record, old: _Record) -> None:
        shared = isinstance(self.skeleton.regions[new.touch.region].space, int)
        hint = f"it is over after {old.touch.awaited}" if old.touch.engine != NOW else "a barrier must lie between the two"
        self.faults.append(
            Fault(
                "R401" if shared else "R402",
                f"{self._describe_access(new)} is not ordered after {self._describe_access(old)}",
                new.touch.span,
                ((f"this must be over before the {new.touch.mode} in line {new.touch.span.line}", old.touch.span),),
                hint,
                self._compute_closure(old.step, new.step),
                _list_late_workers(old, new),
            )
        )

    def _report_missing_fence(self, new: _Record, old: _Record) -> None:
        self.faults.append(
            Fault(
                "R403",
                f"{self._describe_access(new)} may miss {self._describe_access(old)}: an ordinary write reaches the async proxy after a fence",
                new.touch.span,
                (("written here", old.touch.span),),
                f"{self.skeleton.workers[old.worker].label} calls fence_async({'' if new.touch.array else 'tensors=True'}) after its {old.touch.mode}, before the barrier that orders the two",
                self._compute_closure(old.step, new.step),
                _list_late_workers(old, new),
            )
        )

    # ---- events
    def _make_event(self) -> int:
        self.next_bit += 1
        return 1 << self.next_bit - 1

    def _begin_event(self, worker: int) -> None:
        """Begin a new event of a worker, which no release has covered yet."""
        event = self._make_event()
        self.event[worker] = event
        self.local_events[worker] |= event
        self.happened_before[worker] |= event

    def _get_engine_event(self, worker: int, engine: int) -> int:
        """Return the event at which an engine completes."""
        if (worker, engine) not in self.engines:
            self.engines[worker, engine] = self._make_event()
        return self.engines[worker, engine]

    def _stop(self, fault: Fault) -> None:
        self.faults.append(fault)
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
            if bar.used >= 0 and (bar.used >= len(bar.complete) or not any(bar.complete[bar.used] & k for k in self.happened_before)):
                landing = next(x for x in reversed(self.skeleton.landings) if self.skeleton.bars[x.bar] is about)
                self.faults.append(
                    Fault(
                        "M403",
                        f"nobody waits for the copy that lands in phase {bar.used} of `{about.text}`: it may be in flight when the kernel ends",
                        landing.span,
                        (),
                        "every copy is waited for before the end",
                        all_steps,
                    )
                )

    def _describe_block(self, step: Step) -> str:
        if step.kind == "take":
            return "waits for its next unit of work, which is handed out when all workers have taken the one before"
        bar, about = self.bars[step.bars[0]], self.skeleton.bars[step.bars[0]]
        if about.named:
            return f"waits at `{about.text}`, where {len(bar.now)} of {about.count} have arrived"
        missing = f"{about.count - bar.pending} of {count_noun(about.count, 'arrival')}" + (
            f", {bar.bytes} bytes missing" if bar.bytes > 0 else ""
        )
        return f"waits for parity {step.value} of `{about.text}`, which is in phase {bar.phase} with {missing}"
