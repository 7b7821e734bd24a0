"""Steps of a run in words, each with the state of all barriers behind it.

Player of a schedule: one step after the other, with the state of the barriers.

It stands beside the timeline and the program.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from ..interp.event_trace import SyncStep, find_completions
from ..text.diagnostics import Diagnostic
from ..text.phrases import count_noun


@dataclass(frozen=True)
class BarrierState:
    """State of an mbarrier: arrivals and bytes of the phase that is under way."""

    phase: int = 0
    arrivals: int = 0
    count: int = 0
    expected: int = 0
    landed: int = 0

    def __str__(self) -> str:
        missing = self.expected - self.landed
        bytes_text = f", {missing:,} bytes missing" if missing > 0 else f", {-missing:,} bytes too many" if missing < 0 else ""
        return f"phase {self.phase}: {self.arrivals} of {count_noun(self.count, 'arrival')}{bytes_text}"

    def after(self, step: SyncStep) -> BarrierState:
        """Return the state after an event of this barrier."""
        now = replace(self, count=step.count)
        if step.kind == "arrive":
            now = replace(now, arrivals=now.arrivals + 1, expected=now.expected + step.value)
        elif step.kind == "land":
            now = replace(now, landed=now.landed + step.value)
        else:
            return now
        return BarrierState(now.phase + 1, 0, now.count) if now.arrivals == now.count and now.expected == now.landed else now


@dataclass(frozen=True)
class ShownStep:
    """Step for a reader.

    Attributes:
        actor: Worker or copy.
        text: What it does.
        line: Of the program, 0 if there is none.
        track: Row of the timeline.
        cycle: Place on it.
        states: Barriers that have been used, in words.
        changed: The barrier that this step concerns.
    """

    actor: str
    text: str
    line: int
    track: str
    cycle: float
    states: dict[str, str] = field(default_factory=dict)
    changed: str = ""


def describe_steps(steps: Sequence[SyncStep], fault: Diagnostic | None = None) -> list[ShownStep]:
    """Describe steps in their order; the fault that ends the run is the last one."""
    states: dict[str, BarrierState] = {}
    descriptions = []
    for step in steps:
        if step.count:
            states[step.target] = states.get(step.target, BarrierState()).after(step)
        texts = {name: str(state) for name, state in sorted(states.items(), key=lambda pair: sort_key(pair[0]))}
        descriptions.append(ShownStep(step.actor, _describe(step), step.line, _find_track(step), step.cycle, texts, step.target))
    if fault is not None:
        last = descriptions[-1] if descriptions else ShownStep("", "", 0, "", 0.0)
        track, cycle = _find_actor(fault, descriptions) or (last.track, last.cycle)
        line = fault.span.line if fault.span is not None else 0
        pending = list_pending(steps)
        still = f". Not waited for yet: {', '.join(f'{name} (line {line})' for name, line in pending)}" if pending else ""
        descriptions.append(ShownStep(fault.code, fault.message + still, line, track, cycle, last.states))
    return descriptions


def list_pending(steps: Sequence[SyncStep]) -> list[tuple[str, int]]:
    """Return copies, stores and products that no worker has waited for, with the lines of their issue."""
    over = find_completions(steps)
    issued = [(step.engine or step.actor, step.line) for step in steps if step.kind in ("issue", "copy", "product", "store")]
    return [(name, line) for name, line in issued if name and name not in over]


def _describe(step: SyncStep) -> str:
    """Return what an actor does, without its name."""
    phase = f"phase {step.phase} of {step.target}"
    if step.kind == "arrive":
        return f"arrives on {phase}" + (f" and expects {step.value:,} bytes" if step.value else "")
    if step.kind == "issue":
        return f"is issued: {step.value:,} bytes for {step.target}"
    if step.kind == "land":
        return f"lands: {step.value:,} bytes for {phase}"
    if step.kind == "wait":
        return f"goes on, since {phase} is complete" if step.phase >= 0 else f"goes on: the first wait for {step.target} holds at once"
    if step.kind == "blocked":
        return f"is blocked: it waits for {phase}" if step.phase >= 0 else f"is blocked at {step.target}"
    until = f": {step.engine} {step.access} until a wait for it" if step.access else ""
    if step.kind == "product":
        return f"issues a product{until}"
    if step.kind == "store":
        return f"issues a store of {step.target}{until}"
    if step.kind == "complete":
        return f"is over: {step.target} has waited for it"
    return f"goes on behind {step.target}"


def _find_track(step: SyncStep) -> str:
    if step.kind == "complete":
        return "tensor core" if step.actor.startswith("product") else "copy engine"
    return "copy engine" if step.kind in ("issue", "land") else step.actor


def _find_actor(fault: Diagnostic, descriptions: Iterable[ShownStep]) -> tuple[str, float] | None:
    """Return track and time of the worker that the fault names, at its last step."""
    for step in reversed(list(descriptions)):
        if step.track == step.actor and step.actor in fault.message:
            return step.track, step.cycle
    return None


def sort_key(name: str) -> tuple[str, int]:
    """Return the key by which names of barriers are sorted: the ring, then the stage."""
    digits = re.search(r"\[(\d+)\]", name)
    return name.partition("[")[0], int(digits[1]) if digits else 0


_MOST = 2000  # steps that are kept: the last ones, which lead to a fault


def render_player(steps: Sequence[ShownStep], at_end: bool = False) -> str:
    """Render buttons, the text of a step, and a table of barriers; "" without steps.

    at_end: begin with the last step.
    """
    if not steps:
        return ""
    last_steps = steps[-_MOST:]
    first = len(steps) - len(last_steps)
    base = steps[first - 1].states if first else {}  # behind the step before those that are kept
    data = json.dumps({"first": first, "base": base, "steps": [_pack(s) for s in last_steps]}, separators=(",", ":")).replace(
        "<", "\\u003c"
    )
    names = sorted({name for s in last_steps for name in s.states}, key=sort_key)
    return (
        '<div class="player" tabindex="0"><p><button type="button" data-step="first" title="first step">&#124;&lt;</button> '
        '<button type="button" data-step="previous">previous</button> <button type="button" data-step="next">next</button> '
        '<button type="button" data-step="last" title="last step">&gt;&#124;</button> '
        f'<input type="range" min="0" max="{len(last_steps) - 1}" value="{(len(last_steps) - 1) * at_end}" aria-label="step"> <span class="counter"></span></p>'
        '<p class="now" aria-live="polite"></p>'
        f'<table class="barriers">{"".join(f"<tr><th>{_escape(n)}</th><td></td></tr>" for n in names)}</table>'
        f'<script type="application/json" class="steps">{data}</script></div>'
    )


def _pack(step: ShownStep) -> dict[str, object]:
    """Return a step as data, with the state of the barrier that it changes: the script adds them up."""
    return {
        "actor": step.actor,
        "text": step.text,
        "line": step.line,
        "track": step.track,
        "cycle": step.cycle,
        "changed": step.changed,
        "state": step.states.get(step.changed, ""),
    }


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")
