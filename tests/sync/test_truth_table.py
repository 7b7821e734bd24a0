"""One truth table of the rules of synchronisation, under vector clocks and under sets of events."""

from __future__ import annotations

import random

import pytest

from cuir.sync.byte_ranges import covers, is_overlapping
from cuir.sync.orders import Party, can_be_ordered
from tests.sync.histories import MBARRIERS, WORKERS, Bits, Clocks, Run

ORDERS = [Clocks, Bits]
# What is tested, a history, and the finding: its code, and the event at which it is found.
TABLE = [
    ("a write is ordered before a read by its barrier", "a write x; a arrive m; b wait m 0; b read x", ""),
    ("no wait", "a write x; a arrive m; b read x", "R401 3"),
    ("no arrival behind the write", "a arrive m; a write x; b wait m 0; b read x", "R401 4"),
    ("a wait for the phase before orders nothing", "b wait m 1; a write x; b read x", "R401 3"),
    ("two reads need no order", "a read x; b read x", ""),
    ("a write after a read", "a read x; b write x", "R401 2"),
    ("two writes", "a write x; b write x", "R401 2"),
    ("other bytes", "a write x; b write y", ""),
    ("some of the same bytes", "a write xy; b write y", "R401 2"),
    ("a part of the bytes", "a write x; b read left", "R401 2"),
    ("the same worker", "a write x; a read x; a write x", ""),
    ("order goes through a third worker", "a write x; a arrive m; b wait m 0; b arrive k; c wait k 0; c read x", ""),
    ("an arrival releases what is before it alone", "a arrive m; a write x; a arrive k; b wait m 0; b read x", "R401 5"),
    ("all arrivals of a phase release", "a write x; a arrive p; b write y; b arrive p; c wait p 0; c read xy", ""),
    ("a write stands for the reads that it covers", "a read x; a arrive m; b wait m 0; b write x; b arrive k; c wait k 0; c read x", ""),
    (
        "a write of a part does not stand for the rest",
        "a write x; a arrive m; b wait m 0; b write left; b arrive k; c wait k 0; c read x",
        "",
    ),
    ("a later read stands for those before it", "a read x; a read x; a arrive m; b wait m 0; b write x", ""),
    ("an earlier read is not over by a later one", "a read x; a arrive m; a read x; b wait m 0; b write x", "R401 5"),
    # fences
    ("an engine reads what was fenced", "a write x; a fence; a product x", ""),
    ("an engine reads what was not fenced", "a write x; a product x", "R403 2"),
    ("a fence before the write", "a fence; a write x; a product x", "R403 3"),
    ("the writer fences before it arrives", "a write x; a fence; a arrive m; b wait m 0; b product x", ""),
    ("the reader's fence does not count", "a write x; a arrive m; b wait m 0; b fence; b product x", "R403 5"),
    ("a fence behind the arrival is not released", "a write x; a arrive m; a fence; b wait m 0; b product x", "R403 5"),
    ("an engine's write needs a fence, too", "a write x; a send x", "R403 2"),
    ("a copy over what was written", "a write x; a arrive m; b wait m 0; b copy k x", "R403 4"),
    ("a copy over what was read", "a read x; a arrive m; b wait m 0; b copy k x", ""),
    ("without order a missing fence is a race", "a write x; b product x", "R401 2"),
    ("a fence of shared memory is none for tensors", "a write T; a fence; a send T", "R403 3"),
    ("a fence for tensors", "a write T; a fence tensors; a send T", ""),
    ("a fence for tensors is one of shared memory, too", "a write x; a fence tensors; a send x", ""),
    ("a fence for tensors, released", "a write T; a fence tensors; a arrive m; b wait m 0; b send T", ""),
    ("a fence for tensors, not released", "a write T; a arrive m; a fence tensors; b wait m 0; b send T", "R403 5"),
    ("a load by the generic proxy needs no fence", "a write x; a read x", ""),
    # products in the order of their issue, and commits that arrive late
    ("products of one worker need no order", "a into x; a into x", ""),
    ("products of two workers do", "a into x; b into x", "R401 2"),
    ("a commit orders products of two workers", "a into x; a deliver m; a delivered m; b wait m 0; b into x", ""),
    ("a read behind a commit's phase", "a into x; a deliver m; a delivered m; b wait m 0; b read x", ""),
    ("a read before its phase", "a into x; a deliver m; b read x", "R401 3"),
    ("the issuer's own read", "a into x; a read x", "R401 2"),
    ("a product over what is read", "b read x; a into x", "R401 2"),
    (
        "a commit covers what earlier ones did",
        "a into x; a deliver k; a into y; a deliver m; a delivered k; a delivered m; b wait m 0; b read xy",
        "",
    ),
    ("but no later product", "a into x; a deliver m; a into x; a delivered m; b wait m 0; b read x", "R401 6"),
    ("nor the worker's own writes", "a write y; a into x; a deliver m; a delivered m; b wait m 0; b read y", "R401 6"),
    ("yet what it learned", "c write y; c arrive k; a wait k 0; a into x; a deliver m; a delivered m; b wait m 0; b read y", ""),
    ("an arrival too many by a commit", "b arrive k 1; a deliver k; a delivered k", "S402 3"),
    # tensors, scopes
    ("additions commute", "a add T; b add T", ""),
    ("an addition and a read", "a add T; b read T", "R402 2"),
    ("a barrier orders a CTA in a tensor", "a write T; a arrive m; b wait m 0; b read T", ""),
    ("but not a cluster in this one", "a write T; a arrive m; c wait m 0; c read T", "R402 4"),
    ("a cluster in this one", "a write U; a arrive m; c wait m 0; c read U", ""),
    ("a cluster in shared memory", "a write x; a arrive m; c wait m 0; c read x", ""),
    # bulk copies
    ("a wait for a copy's phase", "a arrive m 1; a copy m x; a land m; b wait m 0; b read x", ""),
    ("no wait for the copy", "a arrive m 1; a copy m x; a land m; b read x", "R401 4"),
    ("a copy in flight", "a arrive m 1; a copy m x; b read x", "R401 3"),
    ("its issuer does not know that it has landed", "a arrive m 1; a copy m x; a land m; a read x", "R401 4"),
    ("what is done before a copy is not ordered by its landing", "a write y; a arrive m 1; a copy m x; a land m; b wait m 0; b read y", ""),
    ("nor is what is done between arrival and issue", "a arrive m 1; a write y; a copy m x; a land m; b wait m 0; b read y", "R401 6"),
    ("an engine reads what an engine wrote", "a arrive m 1; a copy m x; a land m; b wait m 0; b product x", ""),
    ("bytes land before they are expected", "a copy m x; a land m; a arrive m 1; b wait m 0; b read x", ""),
    ("more bytes than expected", "a arrive m 0.5; a copy m x; a land m", "S403 3"),
    ("more bytes than the last arrival expects", "a copy m x; a land m; a arrive m", "S403 3"),
    ("a copy that nobody waits for", "a arrive m 1; a copy m x; a land m; a end", "M403 4"),
    ("a copy in a phase that does not end", "a copy m x; a land m; a end", "M403 3"),
    ("a copy that another worker waits for", "a arrive m 1; a copy m x; a land m; b wait m 0; a end", ""),
    # arrivals
    ("two arrivals of a phase", "a arrive p; b arrive p; c wait p 0", ""),
    ("an arrival too many", "a arrive m 1; a arrive m", "S402 2"),
    ("an arrival that may be too many", "a arrive m 1; a copy m x; a land m; b arrive m", "S402 4"),
    ("an arrival behind the wait", "a arrive m 1; a copy m x; a land m; b wait m 0; b arrive m", ""),
    ("an arrival of a phase without bytes", "a arrive m; b arrive m", ""),
    # laps
    ("a waiter is overtaken before its wait", "a arrive m; a arrive m; b wait m 0", "S401 3"),
    ("a waiter may be overtaken", "a arrive m; b wait m 0; a arrive m", "S401 99"),
    ("the wait for the phase before", "b wait m 1; a arrive m", "S401 99"),
    ("whoever arrives knows that the waiter went on", "b wait m 1; b arrive k; a wait k 0; a arrive m", ""),
    ("an arrival before the wait does not tell", "b arrive k; b wait m 1; a wait k 0; a arrive m", "S401 99"),
    ("it went on, and is a lap behind later", "a arrive m; b wait m 0; b arrive k; a wait k 0; a arrive m; a arrive m", ""),
    ("the issue of a copy tells that its worker went on", "b wait m 1; b arrive m 1; b copy m x; b land m; c wait m 0", ""),
    ("a wait again for the same phase", "a arrive m; b wait m 0; b wait m 0; b wait m 0", ""),
    # async groups
    ("a group is over after its wait", "a load x; a commit; a drain 0; a read x", ""),
    ("a group in flight", "a load x; a commit; a read x", "R401 3"),
    ("not committed", "a load x; a drain 0; a read x", "R401 3"),
    ("the last group is left in flight", "a load x; a commit; a load y; a commit; a drain 1; a read x", ""),
    ("and is read", "a load x; a commit; a load y; a commit; a drain 1; a read y", "R401 6"),
    ("groups are over in order", "a load x; a commit; a load y; a commit; a drain 0; a read xy", ""),
    ("an empty group counts", "a load x; a commit; a commit; a drain 1; a read x", ""),
    ("the wait is released", "a load x; a commit; a drain 0; a arrive m; b wait m 0; b read x", ""),
    ("another worker's wait", "a load x; a commit; a arrive m; b wait m 0; b read x", "R401 5"),
    ("a bulk store has read", "a send x; a sent 0; a write x", ""),
    ("a bulk store may still read", "a send x; a write x", "R401 2"),
    ("all stores but the last", "a send x; a send y; a sent 1; a write x", ""),
    ("the last store", "a send x; a send y; a sent 1; a write y", "R401 4"),
    ("a product has read", "a product x; a multiplied 0; a write x", ""),
    ("a product may still read", "a product x; a write x", "R401 2"),
    ("a wait for a later product covers it", "a product x; a product y; a multiplied 1; a write x", ""),
    ("a wait for an earlier product does not", "a product x; a product y; a multiplied 0; a write y", "R401 4"),
    ("a product that is over is released", "a product x; a multiplied 0; a arrive m; b wait m 0; b write x", ""),
    ("a product in flight is not", "a product x; a arrive m; a multiplied 0; b wait m 0; b write x", "R401 5"),
    # named barriers
    ("a named barrier orders both", "a write x; a meet; b write y; b meet; a pass; b pass; a read y; b read x", ""),
    ("before it passes a worker knows nothing", "a write x; a meet; b meet; b read x", "R401 4"),
    ("a phase knows nothing of the next", "a meet; b meet; a write x; a meet; b pass; b read x", "R401 6"),
    ("warps that the hardware does not expect", "a meet; d meet", "S406 2"),
    ("the same worker twice", "a meet; a meet", ""),
    ("a fence goes through it", "a write x; a fence; a meet; b meet; b pass; b product x", ""),
]


@pytest.mark.parametrize("seen", [True, False], ids=["run", "search"])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("history", "expected"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_finding(order: type[Clocks] | type[Bits], history: str, expected: str, seen: bool) -> None:
    finding = Run(order, seen).find(history)
    assert (f"{finding.code} {finding.span.line}" if finding else "") == expected


def test_every_code_is_in_the_table() -> None:
    assert {row[2].split(" ")[0] for row in TABLE} == {"", "R401", "R402", "R403", "S401", "S402", "S403", "S406", "M403"}


MESSAGES = [
    ("a write x; b read x", "the read of `x` by b is not ordered after the write of `x` by a", None),
    ("a write x; a product x", "may miss the write of `x` by a: an ordinary write reaches the async proxy after a fence", None),
    (
        "a write T; a fence; a send T",
        "may miss the write of `T` by a: what is stored to a tensor the ordinary way reaches the copy engine after a fence",
        "may miss the write of `T` by a: an ordinary write reaches the async proxy after a fence",
    ),
    ("a arrive m; a arrive m; b wait m 0", "b waits for phase 0 of `m`, and phase 1 can be over by then", None),
    ("a arrive m 1; a arrive m", "one more came from a while phase 0 still misses 64 bytes", "one more can come from a while phase 0"),
    ("a arrive m 1; a copy m x; a land m; b arrive m", "b arrives for phase 1 of `m`, and phase 0 can still miss its bytes", None),
    (
        "a arrive m 0.5; a copy m x; a land m",
        "phase 0 of `m` expected 32 bytes, and 64 landed with the copy",
        "phase 0 of `m` gets 32 bytes more than it expects with the copy",
    ),
    (
        "a arrive p 1; a copy p x; a copy p y; a land p; a land p; b arrive p",
        "phase 0 of `p` got 64 bytes more than it expects",
        None,
    ),
    ("a meet; d meet", "found 2 arrivals of 5 warps (a, d)", "here 2 of 5 warps can come, the last from d"),
    (
        "a copy m x; a land m; a end",
        "nobody waited for the copy, which landed in phase 0",
        "nobody waits for the copy that lands in phase 0",
    ),
]


@pytest.mark.parametrize(("history", "run", "search"), MESSAGES)
def test_message(history: str, run: str, search: str | None) -> None:
    for order in ORDERS:
        for seen, message in ((True, run), (False, search or run)):
            finding = Run(order, seen).find(history)
            assert finding is not None and message in finding.message and finding.hint


EVENTS = [
    *(f"{mode} {place}" for mode in ("write", "read") for place in ("x", "xy", "left", "T", "U")),
    *("add U", "fence", "fence tensors", "product x", "send x", "send T", "commit", "drain 0", "load y", "meet", "copy m x"),
    *(f"arrive {bar}" for bar in MBARRIERS),
    *("arrive m 1", "land m", "sent 0", "multiplied 0", "wait m 0", "wait m 1", "wait k 0", "wait p 0", "pass", "end"),
]


def find_all(order: type[Clocks] | type[Bits], events: list[str]) -> list[str]:
    """Return the findings of the events that are possible, one after the other."""
    run, results = Run(order), []
    for line, event in enumerate(events, 1):
        try:
            finding = run.find(event)
        except (AssertionError, IndexError, KeyError):  # a wait that does not return, nothing to land or to wait for
            continue
        results.append(f"{line} {finding}" if finding else "")
        if finding is not None and finding.code != "R401":
            break
    return results


@pytest.mark.parametrize("seed", range(20))
def test_both_orders_agree(seed: int) -> None:
    """Random histories: whatever an order is made of, the findings are the same."""
    rng = random.Random(seed)
    codes = set()
    for _ in range(40):
        events = [f"{rng.choice(WORKERS)} {rng.choice(EVENTS)}" for _ in range(rng.randint(4, 30))]
        results = find_all(Clocks, events)
        assert results == find_all(Bits, events), events
        codes |= {r.split("'")[1] for r in results if r}
    assert len(codes) > 2


@pytest.mark.parametrize(
    ("other", "scope", "expected"),
    [
        (Party(0, 0), "cta", True),
        (Party(0, 1), "cta", False),
        (Party(0, 1), "cluster", True),
        (Party(1, 0), "cluster", False),
        (Party(1, 0), "device", True),
    ],
)
def test_scopes(other: Party, scope: str, expected: bool) -> None:
    assert can_be_ordered(Party(0, 0), other, scope) is expected  # type: ignore[arg-type]


def test_byte_ranges_are_sets() -> None:
    rng = random.Random(0)
    for _ in range(300):
        a, b = ({rng.randrange(12) for _ in range(rng.randint(1, 8))} for _ in range(2))
        ranges = [tuple((n, n + 1) for n in sorted(s)) for s in (a, b)]
        merged = []
        for pairs in ranges:
            result: list[tuple[int, int]] = []
            for lo, hi in pairs:
                result[-1:] = [(result[-1][0], hi)] if result and result[-1][1] == lo else [*result[-1:], (lo, hi)]
            merged.append(tuple(result))
        assert is_overlapping(*merged) == bool(a & b)
        assert covers(*merged) == (a >= b)
