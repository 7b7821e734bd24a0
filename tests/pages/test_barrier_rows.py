"""Rows of barriers: phases follow each other without gaps, and each arrival has its tick."""

from __future__ import annotations

import itertools

from cuir.pages.barrier_rows import make_barrier_rows
from tests.pages.ring_programs import HANG, TEXT, record


def test_phases_follow_each_other() -> None:
    _, trace, _ = record(TEXT)
    end = max(e.start + e.length for e in trace.events)
    rows = make_barrier_rows(trace.sync_steps, end)
    assert [row.name for row in rows] == ["empty[0]", "empty[1]", "full[0]", "full[1]"]
    assert [len(row.phases) for row in rows] == [4, 3, 4, 3]
    for row in rows:
        assert row.phases[0][0] == 0 and row.phases[-1][1] >= end
        assert all(a[1] == b[0] and a[0] <= a[1] for a, b in itertools.pairwise(row.phases))
    assert sum(len(row.ticks) for row in rows) == sum(s.kind in ("arrive", "land") for s in trace.sync_steps) == 15


def test_a_phase_that_never_ends_stays_open() -> None:
    _, trace, _ = record(HANG)
    rows = {row.name: row for row in make_barrier_rows(trace.sync_steps, 10_000.0)}
    assert rows["empty[0]"].phases == [(0.0, 10_000.0)] and len(rows["empty[0]"].ticks) == 1 and len(rows["full[0]"].phases) == 2
