"""The player's data: the last steps, and the states of barriers before them, add up to the state of every step."""

from __future__ import annotations

import html
import json
import re

import pytest

from cuir.pages import schedule_player
from cuir.pages.schedule_player import render_player
from cuir.pages.schedule_steps import describe_steps
from tests.pages.ring_programs import HANG, TEXT, record


@pytest.mark.parametrize(("text", "most"), [(TEXT, 2000), (TEXT, 7), (HANG, 3)])
def test_states_add_up(monkeypatch: pytest.MonkeyPatch, text: str, most: int) -> None:
    monkeypatch.setattr(schedule_player, "_MOST", most)
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
    page = render_player([schedule_player.ShownStep("</script>", "<b>", 1, "t", 0.0, {}, ""), *steps])
    assert page.count("</script>") == 1 and "No" not in render_player([])
