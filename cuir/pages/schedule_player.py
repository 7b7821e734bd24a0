"""Player of a schedule: one step after the other, with the state of the barriers.

It stands beside the timeline and the program.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from .schedule_steps import ShownStep, sort_key

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
