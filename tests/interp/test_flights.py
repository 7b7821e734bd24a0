"""Asynchronous accesses of a recorded run: each lasts until a worker waits for it, or until the end."""

from __future__ import annotations

from cuir.interp import Schedule, Trace
from cuir.interp.flights import find_flights, is_named
from tests.pages.ring_programs import TEXT, record


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
