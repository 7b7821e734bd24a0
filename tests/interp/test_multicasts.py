"""Races of copies that land in other CTAs: the report blames a release or a count, and no wait on a barrier of another CTA."""

from __future__ import annotations

import re

import pytest
import torch

import corpus
import cuir
from cuir.interp import run
from cuir.text.diagnostics import CuirError, Diagnostic

TEXT = corpus.faulty()["R401_multicast_released_in_one_cta"]
ACROSS = TEXT.replace("free[s].arrive()", "free[s].arrive(cluster=True)")
RIGHT = ACROSS.replace("free = mbarrier(1,", "free = mbarrier(2,")
SCHEDULES = ("in_order", "random:2", "adversarial:workers_first", "adversarial:reverse", "adversarial:engines_first")
LINES = """
@kernel(arch="sm_90a", cluster=(2, 2))
def lines(X: Global[f16, M, 64], Y: Global[f16, M, 64]):
    buf, full, free = shared(f16, [2, 64, 64]), mbarrier(1, stages=2), mbarrier(2, stages=2)
    work = tiles(cdiv(M, 64))
    with role("load", warps=1):
        i = 0
        for t in work:
            s, phase, r = i % 2, i // 2 % 2, cta_rank() % 2 * 32
            free[s].wait(phase ^ 1)
            full[s].expect(nbytes(buf[s]))
            copy_async(X[t * 64 + r : t * 64 + r + 32, :], buf[s, r : r + 32], full[s], cluster="x")
            i += 1
    with role("use", warpgroups=1):
        i = 0
        for t in work:
            s, phase = i % 2, i // 2 % 2
            full[s].wait(phase)
            x = load(buf[s])
            free[s].arrive(cluster="y")
            if cta_rank() == 0:
                store(Y[t * 64 : t * 64 + 64, :], x)
            i += 1
"""


def find_report(text: str, schedule: str) -> Diagnostic | None:
    x = torch.randn(640, 64).half()
    y = torch.zeros_like(x)
    try:
        run(cuir.check(cuir.parse(text)), {"X": x, "Y": y}, grid=1, schedule=schedule)
    except CuirError as error:
        return error.diagnostics[0]
    assert torch.equal(x, y)
    return None


def writable(result: Diagnostic) -> bool:
    """Check that no words ask for a wait on a barrier of another CTA."""
    words = " ".join([result.hint or "", *(n.message for n in result.notes)])
    return re.search(r"no wait by \S+ of CTA (\d+) on `[^`]* of CTA (?!\1)\d+`", words) is None


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_release_in_one_cta_is_blamed(schedule: str) -> None:
    result = find_report(TEXT, schedule)
    assert result is not None and result.code == "R401" and writable(result)
    assert result.notes[0].span is not None and result.notes[0].span.text().strip().startswith("free[s].arrive()")
    assert result.hint is not None and "arrive(cluster=True)" in result.hint and "mbarrier(2)" in result.hint


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_release_along_the_other_line_is_blamed(schedule: str) -> None:
    result = find_report(LINES, schedule)
    assert result is not None and result.code == "R401" and writable(result)
    assert result.notes[0].span is not None and "arrive(cluster=" in result.notes[0].span.text()
    assert result.hint is not None and 'arrive(cluster="x")' in result.hint


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_release_across_the_cluster_that_the_count_leaves_out_is_a_wrong_count(schedule: str) -> None:
    result = find_report(ACROSS, schedule)
    assert result is not None and writable(result) and result.hint == "the count is the number of workers that arrive in a phase, here 2"


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_release_across_the_cluster_before_the_read_is_blamed(schedule: str) -> None:
    early = RIGHT.replace("            free[s].arrive(cluster=True)\n", "").replace(
        "            x = load", "            free[s].arrive(cluster=True)\n            x = load"
    )
    result = find_report(early, schedule)
    assert result is None or (
        result.code == "R401" and writable(result) and result.notes[0].span is not None and "arrive" in result.notes[0].span.text()
    )
    if schedule == "in_order":
        assert result is not None


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_release_across_the_cluster_that_counts_all_is_right(schedule: str) -> None:
    assert find_report(RIGHT, schedule) is None
    assert find_report(LINES.replace('arrive(cluster="y")', 'arrive(cluster="x")'), schedule) is None
