"""Questions about no thread, and snapshots compared with the knowledge of their threads."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cuir.ptx.machine.knowledge import Knowledge, are_among

WIDTH, CTAS = 64, 2
COUNT = WIDTH * CTAS
NOBODY = np.zeros(0, np.int64)
groups = st.lists(st.integers(0, COUNT - 1), unique=True).map(lambda slots: np.array(sorted(slots), np.int64))


def make_knowledge(meetings: list[tuple[np.ndarray, np.ndarray]]) -> Knowledge:
    """Make the knowledge of two CTAs in which threads have learned of others, one group of the other."""
    known = Knowledge(0, COUNT, WIDTH, COUNT)
    for tick, (learners, others) in enumerate(meetings, 1):
        known.learn(learners, known.take_snapshot(others, tick))
    return known


@given(st.lists(st.tuples(groups, groups), max_size=6), st.booleans())
def test_nobody_knows_nothing_and_teaches_nothing(meetings: list[tuple[np.ndarray, np.ndarray]], waited: bool) -> None:
    known = make_knowledge(meetings)
    if waited:
        known.note_product(0, 1, 2)
    before = known.clock_of.copy()
    assert not known.take_snapshot(NOBODY, 9).any()
    known.learn(NOBODY, known.take_snapshot(np.arange(COUNT), 9))
    known.meet_in_cta(NOBODY, 9)
    known.meet_in_warp(NOBODY, 9)
    assert np.array_equal(known.clock_of, before) and not known.cta.any() and not known.warp.any()
    assert not len(known.find_unlearned(NOBODY, NOBODY, NOBODY)) and not len(known.find_unfinished(NOBODY, NOBODY, NOBODY))
    assert not len(known.are_over(NOBODY, np.arange(32), 1)) and not len(known.find_known(0, NOBODY))
    assert not len(known.copy_of(NOBODY).cta)
    assert not are_among(np.arange(COUNT), NOBODY).any() and not len(are_among(NOBODY, np.arange(4)))


@given(st.lists(st.tuples(groups, groups), min_size=1, max_size=6))
def test_who_learns_a_snapshot_knows_what_its_threads_know(meetings: list[tuple[np.ndarray, np.ndarray]]) -> None:
    *earlier, (learners, others) = meetings
    known, tick = make_knowledge(earlier), len(meetings)
    events = [
        (thread, at) for thread in range(0, COUNT, 7) for at in range(1, tick) if any(known.is_known(s, (thread, at)) for s in others)
    ]
    known.learn(learners, known.take_snapshot(others, tick))
    for slot in learners.tolist():
        assert all(known.is_known(slot, e) for e in [*events, *((int(o), tick) for o in others)])
        assert np.array_equal(known.find_known(slot, others) >= tick, np.ones(len(others), np.bool_))
