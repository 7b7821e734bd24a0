"""Explanations of laps: a worker waits for a phase of a barrier while the next one can be over."""

from __future__ import annotations

from ..sync.phases import make_lap_finding
from ..text.source import Span
from .arrival_counts import find_skipped_phase, find_wrong_count
from .barrier_state import Event, Mbarrier
from .cause_chains import (
    Cause,
    CauseNote,
    find_idle_wait,
    find_place,
    find_second_arrival,
    find_unwaited_release,
    get_barrier_uses,
    hint_parity,
    list_all_waits,
    list_arrivals,
)
from .faults import make_finding_fault
from .machine import Machine, Worker


def make_lap_fault(m: Machine, bar: Mbarrier, w: Worker, phase: int, span: Span, wait: Event | None) -> Exception:
    """Make S401: `w` waits for a phase (`wait`, if it has returned) while the next one can be complete."""
    finding = make_lap_finding(bar, w.label, phase, span)
    cause = _explain_lap(m, bar, w, phase, wait)
    return make_finding_fault(m, finding, cause.hint, [*cause.notes, *finding.notes][:3])


def _explain_lap(m: Machine, bar: Mbarrier, w: Worker, phase: int, wait: Event | None) -> Cause:
    count = find_wrong_count(m, bar)
    if count is not None:
        return count
    second_arrival = find_second_arrival(bar, phase + 1) or find_second_arrival(bar, max(phase, 0))
    if second_arrival is not None:
        return second_arrival
    uses = get_barrier_uses(m.launch.checked)
    filled_names = {u.name for u in uses.find("lands")}
    arrivals = list(reversed(list_arrivals(bar, phase + 1)))
    ring, cta = find_place(m, bar).ring, find_place(m, bar).cta
    for release_ring, workers in (
        (n, [w.number]) if p == ring else (n, [a.worker for a in arrivals]) for n, p in uses.pairs.items() if ring in (n, p)
    ):
        for x in workers:
            cause = find_unwaited_release(m, x, release_ring, m.workers[x].cta if m.launch.checked.cluster > 1 else cta)
            if cause is not None:
                return cause
    if phase < 0 and find_place(m, bar).ring not in filled_names and arrivals:
        a = arrivals[0]
        return Cause(
            [(f"{a.label} arrives on `{bar.text}` here, before {w.label} has used it for the first time", a.span)],
            "arrive on the stage that was used, after its use",
            2,
        )
    skipped_phase = find_skipped_phase(m, bar, w, phase + 1)
    if skipped_phase is not None:
        return skipped_phase
    if (phase < 0 and find_place(m, bar).ring in filled_names) or (wait is not None and wait.at_once and phase >= 0):
        value = wait.value if wait is not None else phase % 2
        reason = "which is over before the first arrival" if phase < 0 else f"which {w.label} has waited for already"
        return Cause(
            [(f"wait({value}) means phase {phase} here, {reason}", wait.span if wait is not None else None)],
            hint_parity(m, bar, phase + 1),
            2,
        )
    for a in arrivals:
        previous = next((e for e in list_arrivals(bar, worker=a.worker) if e.tick < a.tick), None)
        previous_tick = previous.tick if previous is not None else -1
        waits_between = [(e, b) for e, b in list_all_waits(m, a.worker) if previous_tick < e.tick < a.tick]
        arrival_text = f"{a.label} arrives here for phase {phase + 1} of `{bar.text}`"
        if not waits_between:
            earlier_notes = (
                [(f"and here for phase {previous.phase}", previous.span)] if previous is not None and previous.span != a.span else []
            )
            return Cause(
                [(f"{arrival_text}, with no wait of its own since it arrived for the phase before", a.span), *earlier_notes],
                f"{a.label} first waits for something that {w.label} does after its wait for phase {phase}",
                1,
            )
        idle_cause = find_idle_wait(m, a.worker, previous_tick, a.tick)
        if idle_cause is not None:
            return Cause([*idle_cause.notes, (f"so {arrival_text}, too early", a.span)], idle_cause.hint, 2)
        for e, other_bar in waits_between:
            phase_arrivals = list_arrivals(other_bar, e.phase, w.number)
            short_cause = find_wrong_count(m, other_bar) or (find_second_arrival(other_bar, e.phase) if e.phase >= 0 else None)
            if short_cause is not None:
                return Cause([*short_cause.notes, (f"so {arrival_text}, too early", a.span)][:2], short_cause.hint, 2)
            (ring, stage, _), (other_ring, other_stage, _) = find_place(m, bar), find_place(m, other_bar)
            if phase_arrivals and stage != other_stage and len(m.barriers[ring, w.cta]) == len(m.barriers[other_ring, w.cta]):
                return Cause(
                    [
                        (f"{arrival_text}, and what it waited for before is another stage, `{other_bar.text}`", a.span),
                        (f"{a.label} waited on `{other_bar.text}` here", e.span),
                    ],
                    "arrive on the stage that was used",
                    1,
                )
            if phase_arrivals:
                return Cause(
                    [
                        (
                            f"{w.label} arrives on `{other_bar.text}` here, before it waits for phase {phase} of `{bar.text}`: that lets {a.label} go on",
                            phase_arrivals[0].span,
                        ),
                        (arrival_text, a.span),
                    ],
                    f"{w.label} arrives on `{other_bar.text}` after the wait",
                    2,
                )
    notes: list[CauseNote] = [
        (f"{a.label} arrives here for phase {phase + 1}, without waiting for {w.label}", a.span) for a in arrivals[:1]
    ]
    return Cause(notes, f"whoever lets the barrier advance must first wait for something that {w.label} does after this wait")
