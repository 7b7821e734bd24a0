"""Steps in words: barriers end in the state of the machine, in any schedule, and a fault is the last step.

The player's data: the last steps, and the states of barriers before them, add up to the state of every step.
"""

from __future__ import annotations

import html
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuir.interp import Schedule
from cuir.interp.event_trace import SyncStep
from cuir.pages import schedule_steps
from cuir.pages.schedule_steps import BarrierState, describe_steps, render_player
from tests.pages.ring_programs import HANG, RACE, TEXT, record


@given(st.integers(1, 50), st.integers(1, 6))
def test_every_schedule_ends_in_the_same_phases(seed: int, tiles: int) -> None:
    _, trace, fault = record(TEXT, Schedule.random(seed), 64 * tiles)
    assert fault is None
    last = describe_steps(trace.sync_steps)[-1].states
    for stage in (0, 1):
        uses = (tiles + 1 - stage) // 2
        if uses:
            assert last[f"full[{stage}]"] == last[f"empty[{stage}]"] == f"phase {uses}: 0 of 1 arrival"


def test_bytes_and_arrivals_complete_a_phase() -> None:
    def step(kind: str, value: int = 0) -> SyncStep:
        return SyncStep("w", kind, "b", 1, 0.0, 0, 2, value)

    state = BarrierState().after(step("arrive", 64)).after(step("land", 16))
    assert str(state) == "phase 0: 1 of 2 arrivals, 48 bytes missing"
    assert str(state.after(step("land", 64))) == "phase 0: 1 of 2 arrivals, 16 bytes too many"
    assert str(state.after(step("arrive"))) == "phase 0: 2 of 2 arrivals, 48 bytes missing"
    assert str(state.after(step("arrive")).after(step("land", 48))) == "phase 1: 0 of 2 arrivals"
    assert state.after(step("wait")) == state


def test_a_deadlock_ends_with_what_is_missing() -> None:
    _, trace, fault = record(HANG)
    steps = describe_steps(trace.sync_steps, fault)
    assert fault is not None and steps[-1].actor == "D401" and steps[-1].states["empty[0]"] == "phase 0: 1 of 2 arrivals"
    assert {s.text.partition(":")[0] for s in steps[-3:-1]} == {"is blocked"} and steps[-1].track == "load[0]"
    assert any(s.text == "arrives on phase 0 of full[1] and expects 8,192 bytes" for s in steps)


@pytest.mark.parametrize("schedule", ["in_order", "random:3"])
def test_a_race_ends_at_its_access(schedule: str) -> None:
    _, trace, fault = record(RACE, Schedule.parse(schedule))
    last = describe_steps(trace.sync_steps, fault)[-1]
    assert fault is not None and fault.span is not None and (last.actor, last.line) == (fault.code, fault.span.line)
    assert last.track == "compute[0]"


@pytest.mark.parametrize(("text", "most"), [(TEXT, 2000), (TEXT, 7), (HANG, 3)])
def test_states_add_up(monkeypatch: pytest.MonkeyPatch, text: str, most: int) -> None:
    monkeypatch.setattr(schedule_steps, "_MOST", most)
    _, trace, fault = record(text)
    steps = describe_steps(trace.sync_steps, fault)
    page = render_player(steps, at_end=True)
    data = json.loads(html.unescape(re.findall(r"<script[^>]*>(.*?)</script>", page)[0]))
    states, last_steps = data["base"], steps[-most:]
    assert data["first"] == len(steps) - len(last_steps) and f'value="{len(last_steps) - 1}"' in page
    for packed, step in zip(data["steps"], last_steps, strict=True):
        states = {**states, **({packed["changed"]: packed["state"]} if packed["state"] else {})}
        assert states == step.states and packed["text"] == step.text


def test_text_cannot_end_the_script() -> None:
    _, trace, _ = record(TEXT)
    steps = describe_steps(trace.sync_steps)
    page = render_player([schedule_steps.ShownStep("</script>", "<b>", 1, "t", 0.0, {}, ""), *steps])
    assert page.count("</script>") == 1 and "No" not in render_player([])
