"""The queue of units of work (TileQueue of cuir/lowering/queues.py), written as a program of the language: no schedule has a race or a deadlock.

The queue is the lowering's own, so no program says its barriers, and compute-sanitizer's racecheck takes its ring for a race (docs/verification.md).
One warp posts, three take; the first of these runs ahead where the queue has a barrier for that.
"""

from __future__ import annotations

import pytest

from cuir.checking.checker import check
from cuir.explore import explore
from cuir.lowering.targets import target_of
from cuir.syntax.parser import parse
from tests.strategies.arguments import arguments

UNITS = 9  # posted: every slot of the largest queue is used again
TEXT = """\
@kernel(arch="sm_90a")
def queue(X: Global[f32, M, 32], Y: Global[f32, 3, M, 32], *, SLOTS: const = 2, AHEAD: const = False):
    unit = shared(f32, [SLOTS, 32, 32])
    full, empty, ahead = mbarrier(1, stages=SLOTS), mbarrier(3, stages=SLOTS), mbarrier(1)
    work = tiles(1)
    with role("post", warps=1):
        for t in work:
            for use in range(cdiv(M, 32)):
                s, phase = use % SLOTS, use // SLOTS % 2
                if use > 0:
                    if AHEAD:
                        ahead.wait((use - 1) % 2)
                    empty[s].wait(phase ^ 1)
                store(unit[s], X[use * 32 + rows(32), cols(32)])
                full[s].arrive()
    with role("take", warps=3) as w:
        for t in work:
            for use in range(cdiv(M, 32)):
                s, phase = use % SLOTS, use // SLOTS % 2
                full[s].wait(phase)
                x = load(unit[s])
                if AHEAD and w == 0:
                    ahead.arrive()
                empty[s].arrive()
                store(Y[w, use * 32 + rows(32), cols(32)], x)
"""
FAULTS = {
    "not reserved": ("empty[s].wait(phase ^ 1)\n                store", "store"),
    "given back unread": ("                x = load(unit[s])\n", ""),
    "an arrival too few": ("mbarrier(3, stages=SLOTS)", "mbarrier(2, stages=SLOTS)"),
    "not awaited": ("                full[s].wait(phase)\n", ""),
}


def list_codes(text: str, slots: int, ahead: bool) -> list[str]:
    """The codes of what is wrong."""
    checked = check(parse(text, "queue.cuir"), consts={"SLOTS": slots, "AHEAD": ahead})
    return [d.code for d in explore(checked, arguments(checked, {"M": 32 * UNITS}, seed=0)).diagnostics]


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("slots", [1, 2, 4])
def test_no_schedule_of_the_queue_goes_wrong(slots: int, ahead: bool) -> None:
    assert list_codes(TEXT, slots, ahead) == []


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_a_queue_with_a_fault_does(fault: str) -> None:
    old, new = FAULTS[fault]
    text = TEXT.replace(old, new)
    if fault == "given back unread":
        text = text.replace("empty[s].arrive()\n", "empty[s].arrive()\n                x = load(unit[s])\n")
    assert text != TEXT and list_codes(text, 2, False)


def test_the_queue_is_still_the_one_that_is_modelled() -> None:
    """Waits, arrivals and parities of the CUDA text, in its order: whoever changes them changes the program above."""
    text = target_of("sm_90a").render("cuir::TileQueue<1, 4> q(slots);", {})
    for line in (
        "void reserve() { wait(&slots->empty[use % SLOTS], use / SLOTS % 2 ^ 1); }",
        "void reserve_ahead() { wait(&slots->ahead, (use - 1) % 2); reserve(); }",
        "Bar::arrive(&slots->full[use++ % SLOTS]);",
        "wait(&slots->full[use % SLOTS], use / SLOTS % 2);",
        "read(unit); Bar::arrive(&slots->ahead); Bar::arrive(&slots->empty[use++ % SLOTS]);",
        "arrive_warp(&slots->empty[use++ % SLOTS], lane);",
    ):
        assert line in text, line
