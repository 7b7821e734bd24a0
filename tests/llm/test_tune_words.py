"""Descriptions for a model of settings that a search has tried: true, and in few words."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from cuir.performance.search.search import Outcome
from cuir.syntax.types import F16
from llm.passes.tune_words import FASTEST, REASON, REASONS, describe_search

START = {"T": F16, "D": 64, "BM": 64, "STAGES": 2}
settings = st.fixed_dictionaries(
    {"T": st.just(F16), "D": st.just(64), "BM": st.integers(1, 9).map(lambda n: 64 * n), "STAGES": st.integers(1, 9)}
)
timed = st.builds(lambda consts, ms: Outcome(consts, "timed", "", [ms]), settings, st.floats(0.01, 99.0))
failed = st.builds(
    Outcome,
    settings,
    st.sampled_from(["flawed", "wrong", "refused"]),
    st.sampled_from(["", "8 bytes of spills", "L010:\n nvcc " + "x" * 999]),
)


@given(st.lists(st.one_of(timed, failed), unique_by=lambda o: tuple(o.consts.values())))
def test_what_is_told_of_a_search_adds_up(outcomes: list[Outcome]) -> None:
    text = describe_search(outcomes, START)
    assert (text == "") == (not outcomes)
    if not outcomes:
        return
    head, *lines = text.splitlines()
    times = sorted(o.milliseconds[0] for o in outcomes if o.status == "timed")
    assert f"has timed {len(times)} settings" in head and "T " not in head and "D 64" not in head
    description = [line for line in lines if line.endswith(" ms")]
    assert [line.rsplit(": ", 1)[1] for line in description[:FASTEST]] == [f"{t:.4f} ms" for t in times[:FASTEST]]
    rest = len(times) - FASTEST
    assert description[FASTEST:] == ([f"* the other {rest}: {times[FASTEST]:.4f} to {times[-1]:.4f} ms"] if rest > 0 else [])
    lines = lines[len(description) :]
    assert len(lines) <= REASONS + 1 and all(len(line) < REASON + 80 for line in lines)
    counted = [re.search(r"^\* (\d+) more failed|and (\d+) more: not timed", line) for line in lines]
    of_them = sum(int(m[1] or 0) + int(m[2] or 0) + (m[1] is None) if m else 1 for m in counted)
    assert of_them == len(outcomes) - len(times)


def test_settings_are_named_by_what_differs_from_the_first_program() -> None:
    text = describe_search(
        [Outcome({**START, "BM": 128}, "timed", "", [3.0, 1.0, 2.0]), Outcome(dict(START), "flawed", "8 bytes of spills")], START
    )
    assert text.splitlines()[1:] == ["* BM=128: 2.0000 ms", "* the first program as it is: not timed, flawed: 8 bytes of spills"]
    assert "(of BM 64 128)" in text
