"""Workers that all use each stage of a ring, or take turns on its stages: what reports say of counts and laps."""

from __future__ import annotations

import pytest
import torch

from cuir import CuirError, check, parse, run
from cuir.text.diagnostics import Diagnostic

TURNS = """@kernel(arch="sm_90a")
def scale(X: Global[f32, M, 64], Y: Global[f32, M, 64], *, WARPS: const = 3, STAGES: const = 6, COUNT: const = 1):
    buf = shared(f32, [STAGES, 16, 64])
    full = mbarrier(1, stages=STAGES)
    empty = mbarrier(COUNT, stages=STAGES)
    work = tiles(cdiv(M, 16 * WARPS))
    with role("load", warps=1):
        i = 0
        for t in work:
            for w in range(WARPS):
                s = i % STAGES
                empty[s].wait(i // STAGES % 2 ^ 1)
                full[s].expect(nbytes(buf[s]))
                r = (t * WARPS + w) * 16
                copy_async(X[r : r + 16, :], buf[s], full[s])
                i += 1
    with role("scale", warps=WARPS) as w:
        i = w
        for t in work:
            s = i % STAGES
            full[s].wait(i // STAGES % 2)
            x = load(buf[s])
            total = row_sum(x)
            y = load(buf[s]) / total
            empty[s].arrive()
            r = (t * WARPS + w) * 16
            store(Y[r : r + 16, :], y)
            i += WARPS
"""
EARLY = (
    "            y = load(buf[s]) / total\n            empty[s].arrive()\n",
    "            empty[s].arrive()\n            y = load(buf[s]) / total\n",
)
NO_ARRIVAL = ("            empty[s].arrive()\n", "")
NO_WAIT = ("                empty[s].wait(i // STAGES % 2 ^ 1)\n", "")
ALL = [("i += WARPS", "i += 1"), ("i = w\n", "i = 0\n"), ("range(WARPS)", "range(1)")]  # each warp uses each stage


def report(*changes: tuple[str, str], schedule: str = "in_order", **consts: int) -> list[Diagnostic]:
    """Return the reports of a run, none if it passes."""
    text = TURNS
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    checked = check(parse(text, "turns.cuir"), None, consts)
    x = torch.rand(640, 64)
    try:
        run(checked, {"X": x, "Y": torch.zeros_like(x)}, grid=1, schedule=schedule)
    except CuirError as error:
        return list(error.diagnostics)
    return []


def words(result: Diagnostic) -> str:
    return " ".join([result.message, *(n.message for n in result.notes), result.hint or ""])


@pytest.mark.parametrize("schedule", ["in_order", "adversarial:workers_first", "adversarial:reverse"])
def test_workers_that_take_turns_pass(schedule: str) -> None:
    assert report(schedule=schedule) == []


@pytest.mark.parametrize("schedule", ["in_order", "adversarial:workers_first", "random:3"])
@pytest.mark.parametrize("stages", [3, 6])
def test_an_early_release_is_no_matter_of_the_count(schedule: str, stages: int) -> None:
    first, *_ = report(EARLY, schedule=schedule, STAGES=stages)
    assert first.code == "R401" and "count" not in words(first), words(first)
    assert "arrives on `empty[" in first.notes[0].message
    assert first.notes[0].span is not None and first.notes[0].span.line == TURNS[: TURNS.index("            y = load")].count("\n") + 1


def test_a_count_of_all_workers_is_too_high_for_those_that_take_turns() -> None:
    (only,) = report(COUNT=3)
    assert only.code == "D401" and "the count of `empty[0]` is 3, and 1 worker uses a stage in a phase" in only.notes[0].message
    assert only.hint is not None and only.hint.endswith("here 1")


def test_a_count_that_is_too_low_for_workers_that_use_each_stage() -> None:
    first, *_ = report(*ALL)
    assert "the count of `empty[0]` is 1, and 3 workers arrive on it" in words(first)
    assert report(*ALL, COUNT=3) == []


def test_stages_that_are_no_multiple_of_the_workers() -> None:
    first, *_ = report(STAGES=4)
    assert first.code == "S401" and "load[0] arrives here" in first.notes[0].message
    assert "was the turn of" in first.notes[1].message and first.hint is not None and first.hint.endswith("such as 6")


def test_a_wrong_parity_is_no_matter_of_turns() -> None:
    first, *_ = report(("full[s].wait(i // STAGES % 2)", "full[s].wait(i // STAGES % 2 ^ 1)"))
    assert "turn of" not in words(first)


def test_a_missing_wait_names_the_ring_that_returns_the_buffer() -> None:
    first, *_ = report(NO_WAIT)
    assert first.code == "S402" and first.hint is not None and "a wait on `empty` of the same stage" in first.hint


def test_what_follows_from_a_missing_release_is_one_note() -> None:
    (only,) = report(NO_ARRIVAL)
    assert only.notes[0].message == "no statement arrives on `empty`"
    assert "follow from this: scale[0] for phase 1 of `full[0]`, scale[1]" in words(only)
