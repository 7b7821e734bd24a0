"""Traces: engines overlap workers, waits end when barriers do, and the output opens in a viewer.

Asynchronous accesses of a recorded run: each lasts until a worker waits for it, or until the end.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch

import cuir
from cuir.interp import Schedule, Trace, plot_trace, write_trace
from cuir.interp.event_trace import find_flights, is_named
from tests.pages.ring_programs import TEXT, record

FLAGSHIP = "corpus/kernels/flash_fwd_sm90.cuir"


def record_of_event_trace(attention) -> Trace:
    trace = Trace()
    ran, _, _ = attention(FLAGSHIP, 1, 2, 2, 384, 384, D=128, grid=1, trace=trace)
    assert ran.error is None
    return trace


def test_tracks_and_kinds(attention) -> None:
    trace = record_of_event_trace(attention)
    assert {"compute[0]", "compute[1]", "tensor core", "copy engine"} <= {e.track for e in trace.events}
    assert {e.kind for e in trace.events} == {"work", "wait", "product", "copy", "store"}
    assert all(e.length > 0 and e.start >= 0 for e in trace.events if e.kind != "wait")


def test_a_track_does_one_thing_at_a_time(attention) -> None:
    """Workers and the tensor core do; copies overlap by their latency."""
    trace = record_of_event_trace(attention)
    for track in {e.track for e in trace.events} - {"copy engine"}:
        events = sorted((e for e in trace.events if e.track == track), key=lambda e: e.start)
        assert all(a.start + a.length <= b.start + 1e-6 for a, b in itertools.pairwise(events))


def test_products_run_under_the_work_of_the_other_warpgroup(attention) -> None:
    trace = record_of_event_trace(attention)
    products = [(e.start, e.start + e.length) for e in trace.events if e.kind == "product"]
    work = [(e.start, e.start + e.length) for e in trace.events if e.kind == "work" and e.track.startswith("compute")]
    shared = sum(max(0.0, min(b, d) - max(a, c)) for a, b in products for c, d in work)
    assert shared > 0.2 * sum(b - a for a, b in products)


def test_a_trace_changes_nothing(attention) -> None:
    plain, _, _ = attention(FLAGSHIP, 1, 2, 2, 384, 384, D=128, grid=1)
    traced, _, _ = attention(FLAGSHIP, 1, 2, 2, 384, 384, D=128, grid=1, trace=Trace())
    assert plain.report is not None and traced.report is not None
    assert plain.report.events == traced.report.events
    assert plain.arguments["O"].equal(traced.arguments["O"])


def test_output(attention, tmp_path: Path) -> None:
    trace = record_of_event_trace(attention)
    write_trace(trace, tmp_path / "t.json")
    saved = json.loads((tmp_path / "t.json").read_text())
    assert {e["ph"] for e in saved["traceEvents"]} == {"M", "X"}
    plot_trace(trace, tmp_path / "t.png", 0, 4000)
    assert (tmp_path / "t.png").read_bytes()[:4] == b"\x89PNG"


def test_a_deadlock_leaves_a_trace_in_which_the_blocked_workers_end(tmp_path: Path) -> None:
    text = Path("corpus/programs/gemm.cuir").read_text(encoding="utf-8").replace("mbarrier(WG,", "mbarrier(2,")
    checked = cuir.check(cuir.parse(text), consts={"T": cuir.f16, "BM": 64, "BN": 64})
    arguments = {
        "A": torch.zeros(64, 256).half(),
        "Bt": torch.zeros(64, 256).half(),
        "C": torch.zeros(64, 64).half(),
        "bias": torch.zeros(64),
    }
    trace = Trace()
    with pytest.raises(cuir.CuirError, match="D401"):
        cuir.run(checked, arguments, trace=trace)
    blocked = {e.track: e for e in trace.events if e.kind == "blocked"}
    assert {track: e.name for track, e in blocked.items()} == {"load[0]": "wait empty[0]", "compute[0]": "wait full[0]"}
    ends = {e.start + e.length for e in blocked.values()}
    assert len(ends) == 1 and ends.pop() > max(e.start + e.length for e in trace.events if e.kind != "blocked")
    plot_trace(trace, tmp_path / "t.svg")
    assert "empty[0]" in (tmp_path / "t.svg").read_text(encoding="utf-8")


def test_steps_are_the_events_of_barriers_in_their_order(attention) -> None:
    trace = record_of_event_trace(attention)
    kinds = {s.kind for s in trace.sync_steps}
    assert {"arrive", "issue", "land", "wait", "product", "store"} <= kinds and "blocked" not in kinds
    arrivals: dict[str, list[int]] = {}
    for step in trace.sync_steps:
        if step.kind == "arrive":
            arrivals.setdefault(step.target, []).append(step.phase)
    assert arrivals and all(phases == sorted(phases) for phases in arrivals.values())
    landed, issued = (sum(s.value for s in trace.sync_steps if s.kind == kind) for kind in ("land", "issue"))
    assert landed == issued == sum(s.value for s in trace.sync_steps if s.kind == "arrive") > 0
    assert "steps" in repr(trace) and "\n" not in repr(trace)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (("k_full[s].wait(phase)", "k_full[s].wait(phase ^ 1)"), "fault"),
        (
            (
                "k_empty = mbarrier(1, stages=STAGES), mbarrier(CLUSTER * WG",
                "k_empty = mbarrier(1, stages=STAGES), mbarrier(CLUSTER * WG + 1",
            ),
            "blocked",
        ),
    ],
)
def test_a_fault_has_its_place_in_the_row_of_its_worker(attention, change: tuple[str, str], kind: str) -> None:
    trace = Trace()
    ran, _, _ = attention(FLAGSHIP, 1, 2, 2, 384, 384, D=128, grid=1, trace=trace, changes=[change])
    assert ran.error is not None and trace.fault == ran.error.diagnostics[0] and trace.fault.span is not None
    last = [e for e in trace.events if e.kind in ("fault", "blocked")]
    assert {e.kind for e in last} == {kind} and any(e.line == trace.fault.span.line and e.track in trace.fault.message for e in last)


def test_each_access_lasts_until_its_wait(pipe) -> None:
    """In a right run all but the last bulk stores are waited for, behind the work of the engine."""
    trace = Trace()
    assert pipe(U=2, N=3, grid=1, trace=trace).error is None
    flights = find_flights(trace)
    kinds = [f.event.kind for f in flights]
    assert (kinds.count("copy"), kinds.count("product"), kinds.count("store")) == (7, 12, 4)
    assert all(f.until >= f.event.start + f.event.length for f in flights)
    open_kinds = [f.event.kind for f in flights if not f.wait_line]
    assert open_kinds == ["store"] * 2, "for those the kernel's end waits"
    store = next(f for f in flights if f.event.kind == "store")
    waits = [e for e in trace.sync_steps if e.target == "store_wait" and e.line == store.wait_line]
    assert waits and "may read sY[wg * 64 : wg * 64 + 64] until the wait in line" in store.describe()


def test_a_race_with_a_bulk_store_shows_it_in_flight(pipe) -> None:
    """The store's bar may be over by the cost model; its flight reaches the overwrite, and both are of the finding."""
    trace = Trace()
    ran = pipe(("            store_wait()\n", ""), U=2, grid=1, trace=trace)
    assert ran.code == "R401" and trace.fault is not None
    named = [e for e in trace.events if is_named(e, trace.fault)]
    assert {e.kind for e in named} - {"work"} == {"store", "fault"} and [e.kind for e in named].count("store") == 1
    flight = next(f for f in find_flights(trace) if f.event.kind == "store" and f.event in named)
    fault = next(e for e in trace.events if e.kind == "fault")
    assert not flight.wait_line and flight.until >= fault.start and "no wait for it in this run" in flight.describe()


def test_a_race_with_a_workers_access_marks_both() -> None:
    """An access of a worker has no bar: it gets one in the row of the worker."""
    early = TEXT.replace("            empty[s].arrive()\n", "").replace(
        "            x = cast", "            empty[s].arrive()\n            x = cast"
    )
    _, trace, fault = record(early, Schedule.parse("adversarial:starve:0"))
    assert fault is not None and fault.code == "R401" and "the read of `buf[s]` by compute[0]" in fault.message
    named = [e for e in trace.events if is_named(e, fault)]
    earlier = next(e for e in named if e.kind == "access")
    line = next(n for n, text in enumerate(early.split("\n"), 1) if "load(buf[s])" in text)
    assert (earlier.track, earlier.line) == ("compute[0]", line) and any(e.kind == "fault" and e.track == "load[0]" for e in named)
