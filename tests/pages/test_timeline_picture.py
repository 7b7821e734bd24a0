"""The timeline of a race: what its bars mean, frames around both accesses, and what is in flight until it is waited for.

Rows of barriers: phases follow each other without gaps, and each arrival has its tick.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path

import torch

import cuir
from cuir.interp import Trace
from cuir.pages.schedule_steps import describe_steps, list_pending
from cuir.pages.timeline_picture import FINDING, make_barrier_rows, render_timeline
from cuir.text.diagnostics import CuirError
from tests.pages.html_text import assert_well_formed, read_text
from tests.pages.ring_programs import HANG, TEXT, record

STORES = """
@kernel(arch="sm_90a")
def double(X: Global[f16, M, 64], Y: Global[f16, M, 64]):
    buf = shared(f16, [64, 64])
    work = tiles(cdiv(M, 64))
    with role("all", warpgroups=1):
        for t in work:
            x = exp2(exp2(exp2(cast(load(X[t * 64 : t * 64 + 64, :]), f32))))
            store_wait()
            store(buf, cast(x, f16))
            fence_async()
            store_async(buf, Y[t * 64 : t * 64 + 64, :])
"""
LATE = STORES.replace("            store_wait()\n", "").replace(
    "            fence_async()", "            store_wait()\n            fence_async()"
)


def trace_of(text: str) -> Trace:
    """The trace of two units of work on one CTA, with its fault."""
    trace = Trace()
    tensors = {name: torch.ones(128, 64, dtype=torch.float16) for name in "XY"}
    try:
        cuir.run(cuir.check(cuir.parse(text)), tensors, trace=trace, grid=1)
    except CuirError:
        assert trace.fault is not None
    return trace


def list_framed(html: str) -> list[str]:
    """The kinds of framed bars, by their titles."""
    return re.findall(rf'stroke="{FINDING}"[^>]*><title>([^<]*)', html)


def test_both_accesses_of_a_race_are_framed_and_the_store_is_in_flight() -> None:
    html = render_timeline(trace_of(LATE), 9)
    framed = list_framed(html)
    assert any(title.startswith("R401, line 9") for title in framed), framed
    assert any("Y[t * 64 : t * 64 + 64, :], line 12" in title for title in framed), framed
    flight = next(title for title in framed if "may read buf until" in title)
    assert "bulk store #1 by all[0], line 12" in flight and "no wait for it in this run" in flight
    text = read_text(html)
    assert "Bars are times of a cost model" in text and "A race is an order that is missing" in text
    assert_well_formed(html)


def test_a_right_run_has_flights_and_no_frame() -> None:
    html = render_timeline(trace_of(STORES))
    assert not list_framed(html) and "may read buf until the wait in line 9" in html and 'class="flight"' in html


def test_steps_say_how_long_a_store_may_read() -> None:
    right, late = trace_of(STORES), trace_of(LATE)
    texts = [s.text for s in describe_steps(right.sync_steps)]
    assert any(t.endswith("bulk store #1 by all[0] may read buf until a wait for it") for t in texts)
    assert "is over: all[0] has waited for it" in texts and list_pending(right.sync_steps) == [("bulk store #2 by all[0]", 12)]
    last = describe_steps(late.sync_steps, late.fault)[-1].text
    assert last.endswith("Not waited for yet: bulk store #1 by all[0] (line 12)")


def test_pages_have_the_whole_replay_command(cuir: Callable, tmp_path: Path) -> None:
    (tmp_path / "late.cuir").write_text(LATE, encoding="utf-8")
    (tmp_path / "spec.py").write_text(
        "import torch\n\n\ndef reference(x):\n    return torch.exp2(torch.exp2(torch.exp2(x)))\n", encoding="utf-8"
    )
    file, page, trace = tmp_path / "late.cuir", tmp_path / "page.html", tmp_path / "trace.html"
    assert cuir("verify", file, "--against", tmp_path / "spec.py", "--html", page).code == 1
    assert f"replay: cuir verify {file} --against" in page.read_text(encoding="utf-8")
    assert cuir("run", file, "-d", "M=128", "--grid", "1", "--trace", trace).code == 1
    assert f"replay: cuir run {file} -d M=128 --data-seed 0 --schedule in_order --grid 1" in trace.read_text(encoding="utf-8")


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
