"""A wait that stands behind the access that it should guard: the report names its line, and moving it there mends the kernel."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import torch

from cuir.text.diagnostics import Diagnostic

PAIR = """\
@kernel(arch="sm_90a")
def k(X: Global[f16, M, 64], Y: Global[f16, 64, 64]):
    sA, sB = shared(f16, [64, 64]), shared(f16, [64, 64])
    full, back = mbarrier(1), mbarrier(1)
    with role("a", warpgroups=1):
        x = full(f16, [64, 64], 1.0)
{a}
    with role("b", warpgroups=1):
{b}
"""
COPY = ["full.expect(nbytes(sA))", "copy_async(X[0 : 64, :], sA, full)"]
FILLS = ["store(sA, x)", "fence_async()"]
# name: body of role a, of role b; `late` marks the access, and the line behind it the wait that should stand in front
LATE = {
    "bulk store": ([*FILLS, "store_async(sA, Y[0 : 64, :])", "store(sA, x)  # late", "store_wait()"], []),
    "cp.async": (["copy_async(X[0 : 64, :], sA)", "copy_commit()", "y = load(sA)  # late", "copy_wait(0)"], []),
    "product": ([*FILLS, "r = mma_async(sA, sA.T)", "store(sA, x)  # late", "mma_wait(r)"], []),
    "result": ([*FILLS, "r = mma_async(sA, sA.T)", "y = r * 2.0  # late", "mma_wait(r)", "store(sB, cast(y, f16))"], []),
    "accumulator": ([*FILLS, "r = mma_async(sA, sA.T)", "r = zeros(f32, [64, 64])  # late", "mma_wait(r)"], []),
    "landing": (COPY, ["y = load(sA)  # late", "full.wait(0)"]),
    "release": ([*FILLS, "full.arrive()", "store(sA, x)  # late", "back.wait(0)"], ["full.wait(0)", "y = load(sA)", "back.arrive()"]),
    "arrival": (
        [*FILLS, "full.arrive()", "back.wait(0)", "store(sA, x)"],
        ["full.wait(0)", "r = mma_async(sA, sA.T)", "back.arrive()  # late", "mma_wait(r)"],
    ),
}


def make_text(a: list[str], b: list[str]) -> str:
    lines = ["\n".join(" " * 8 + line for line in body or ["pass"]) for body in (a, b)]
    text = PAIR.format(a=lines[0], b=lines[1])
    return text if b else text.partition('    with role("b"')[0]


def find(execute, text: str) -> Diagnostic | None:
    """The first fault in three schedules."""
    for schedule in ("in_order", "adversarial:workers_first", "adversarial:reverse"):
        error = execute(text, {n: torch.zeros(64, 64, dtype=torch.float16) for n in "XY"}, schedule=schedule).error
        if error is not None:
            return error.diagnostics[0]
    return None


@pytest.mark.parametrize("name", LATE)
def test_a_wait_one_line_too_late_is_named_and_moving_it_mends(execute, name: str) -> None:
    text = make_text(*LATE[name])
    lines = text.split("\n")
    at = next(n for n, line in enumerate(lines, 1) if "# late" in line)
    wait = lines[at].strip()
    fault = find(execute, text)
    assert fault is not None
    assert (at + 1, f"this {wait} stands behind the") in [(n.span.line, n.message[: len(wait) + 23]) for n in fault.notes if n.span], (
        fault.render()
    )
    assert fault.hint is not None and fault.hint.startswith(f"move {wait} from line {at + 1} to in front of the")
    assert fault.hint.partition(";")[0].endswith(f"in line {at}")
    lines[at - 1], lines[at] = lines[at], lines[at - 1]
    assert find(execute, "\n".join(lines)) is None


def test_a_commit_behind_the_access_is_moved_too(execute) -> None:
    fault = find(execute, make_text(["copy_async(X[0 : 64, :], sA)", "y = load(sA)", "copy_commit()", "copy_wait(0)"], []))
    assert fault is not None and fault.hint is not None and fault.hint.startswith("move copy_commit and copy_wait(0) from line")


def variants() -> Iterator[tuple[list[str], list[str]]]:
    """Bodies in which no wait behind the access would mend it by being moved."""
    head = [*FILLS, "store_async(sA, Y[0 : 64, :])"]
    yield [*head, "store(sA, x)"], []
    yield [*head, "store(sA, x)", "store_wait(1)"], []
    yield [*head, "store(sA, x)", "if M > 64:", "    store_wait()"], []
    yield [*head, "store(sA, x)", "r = mma_async(sB, sB.T)", "mma_wait(r)"], []
    yield [*head, "for i in range(2):", "    store(sA, x)", "store_wait()"], []


@pytest.mark.parametrize("a", [a for a, _ in variants()], ids=range(5))
def test_nothing_is_moved_that_would_not_mend(execute, a: list[str]) -> None:
    fault = find(execute, make_text(a, []))
    assert fault is None or not (fault.hint or "").startswith("move"), fault and fault.render()


LAX = {
    "bulk store": [*FILLS, "store_async(sA, Y[0 : 64, :])", "store_wait({})", "store(sA, x)"],
    "cp.async": ["copy_async(X[0 : 64, :], sA)", "copy_commit()", "copy_wait({})", "y = load(sA)", "copy_wait(0)"],
    "loop": ["for i in range(3):", "    store_wait({})", *(f"    {x}" for x in (*FILLS, "store_async(sA, X[i * 64 : i * 64 + 64, :])"))],
}


@pytest.mark.parametrize("name", LAX)
def test_a_wait_that_leaves_the_access_in_flight_is_named(execute, name: str) -> None:
    lax, strict = (make_text([line.format(n) for line in LAX[name]], []) for n in (1, 0))
    fault = find(execute, lax)
    assert fault is not None and find(execute, strict) is None
    line = next(n for n, text in enumerate(lax.split("\n"), 1) if "_wait(1)" in text)
    assert (line, "leaves the last 1 in flight") in [
        (n.span.line, n.message[-100:].partition("(1) ")[2][:27]) for n in fault.notes if n.span
    ]


def test_a_wait_before_the_issue_is_not_called_lax(execute) -> None:
    """It has run before the access was issued, and would not have waited for it with any number."""
    fault = find(execute, make_text(["store_wait(1)", *FILLS, "store_async(sA, Y[0 : 64, :])", "store(sA, x)"], []))
    assert fault is not None and not any("leaves the last" in n.message for n in fault.notes)


def test_the_next_wait_behind_a_loop_is_named(execute) -> None:
    text = make_text(
        [*FILLS, "for i in range(2):", "    store(sA, x)", "    fence_async()", "    store_async(sA, Y[0 : 64, :])", "store_wait()"], []
    )
    fault = find(execute, text)
    assert fault is not None and fault.hint is not None and fault.hint.startswith("a store_wait() in front of the write in line")
    assert any(n.message.startswith("the next store_wait() is here") for n in fault.notes)


def test_a_wait_before_the_access_in_the_same_turn_is_not_moved(pipe) -> None:
    """A wrong parity in front is the fault, though another wait on the ring stands behind."""
    ran = pipe(
        ("full[s].wait(it // STAGES % 2)", "full[s].wait(it // STAGES % 2 ^ 1)"),
        ("empty[s].arrive()", "empty[s].arrive()\n                full[s].wait(it // STAGES % 2)"),
    )
    assert ran.error is not None and "move" not in (ran.error.diagnostics[0].hint or "")


def test_two_units_of_work_are_named(pipe) -> None:
    """The wait for the bulk store of the unit before is missing: only a CTA with two units shows it."""
    missing = ("            store_wait()\n", "")
    assert pipe(missing, U=2, grid=2).error is None
    ran = pipe(missing, U=2, grid=1)
    assert ran.error is not None
    result = ran.error.diagnostics[0]
    notes = " ".join(n.message for n in result.notes)
    assert "two units of work of one CTA, its units 1 and 2: this pair needs more units of work than CTAs" in notes
    at = result.span.line if result.span is not None else 0
    assert re.search(rf"must be over before the write in line {at}\b", notes)


def test_one_unit_is_not_called_two(pipe) -> None:
    ran = pipe(("                full[s].wait(it // STAGES % 2)\n", ""), U=1)
    assert ran.error is not None and "units of work" not in " ".join(n.message for n in ran.error.diagnostics[0].notes)
