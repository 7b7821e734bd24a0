"""Random small programs through the exploration and the interpreter: what is clean has no fault under any schedule tried, what is faulty shows its fault when replayed."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.explore.programs import check_text, explore_program, fault, replay
from tests.strategies.selection import examples

HEAD = """\
@kernel(arch="sm_90a")
def k(X: Global[f16, 16, 64], Y: Global[f16, 16, 64]):
    sX = shared(f16, [3, 16, 64])
    a, b = mbarrier(COUNT_A), mbarrier(COUNT_B)
    meet = named_barrier(2)
    with role("r", warps=WARPS) as w:
        if w == 0:
            for i in range(3):
                store(sX[i], full(f16, [16, 64], 0.0))
            fence_async()
        sync()
"""
LINES = st.one_of(
    st.builds("{}.wait({})".format, st.sampled_from("ab"), st.integers(0, 1)),
    st.builds("{}.arrive()".format, st.sampled_from("ab")),
    st.builds("{}.expect({} * nbytes(sX[0]))".format, st.sampled_from("ab"), st.integers(1, 2)),
    st.builds("copy_async(X[0 : 16, :], sX[{}], {})".format, st.integers(0, 2), st.sampled_from("ab")),
    st.builds("x = load(sX[{}])".format, st.integers(0, 2)),
    st.builds("store(sX[{}], full(f16, [16, 64], 1.0))".format, st.integers(0, 2)),
    st.builds("store_async(sX[{}], Y[0 : 16, :])".format, st.integers(0, 2)),
    st.sampled_from(["meet.sync()", "meet.arrive()", "fence_async()", "store_wait()", "sync()"]),
)
# a producer and a consumer that are right, to put lines into and take lines out of
PRODUCER = [
    "a.expect(1 * nbytes(sX[0]))",
    "copy_async(X[0 : 16, :], sX[0], a)",
    "b.wait(0)",
    "a.expect(1 * nbytes(sX[0]))",
    "copy_async(X[0 : 16, :], sX[0], a)",
]
CONSUMER = [
    "a.wait(0)",
    "x = load(sX[0])",
    "b.arrive()",
    "a.wait(1)",
    "x = load(sX[0])",
    "store(sX[1], full(f16, [16, 64], 2.0))",
    "fence_async()",
    "store_async(sX[1], Y[0 : 16, :])",
    "store_wait()",
]


def program(counts: tuple[int, int], workers: list[list[str]]) -> str:
    head = HEAD.replace("COUNT_A", str(counts[0])).replace("COUNT_B", str(counts[1])).replace("WARPS", str(len(workers)))
    body = [f"        if w == {n}:\n" + "".join(f"            {line}\n" for line in lines) for n, lines in enumerate(workers) if lines]
    return head + "".join(body)


def agree(text: str, seeds: range) -> str:
    """The exploration's verdict, with which the interpreter agrees."""
    checked = check_text(text)
    result = explore_program(checked, seconds=20)
    if result.verdict == "clean":
        tried = ["in_order", "adversarial:reverse", "adversarial:engines_first", *(f"random:{s}" for s in seeds)]
        assert {s: c for s in tried if (c := fault(checked, s))} == {}
    elif result.verdict == "faulty":
        assert replay(checked, result) != ""
    return result.verdict


@examples(1.5)
@given(st.tuples(st.integers(1, 2), st.integers(1, 2)), st.lists(st.lists(LINES, min_size=1, max_size=4), min_size=2, max_size=3))
def test_any_lines(counts: tuple[int, int], workers: list[list[str]]) -> None:
    agree(program(counts, workers), range(5))


@examples(1.5)
@given(st.data())
def test_a_right_pipeline_with_a_line_more_or_less(data: st.DataObject) -> None:
    producer, consumer = list(PRODUCER), list(CONSUMER)
    for lines in (producer, consumer):
        for _ in range(data.draw(st.integers(0, 2))):
            at = data.draw(st.integers(0, len(lines) - 1))
            if data.draw(st.booleans()):
                del lines[at]
            else:
                lines.insert(at, data.draw(LINES))
    agree(program((1, 1), [producer, consumer]), range(5))


def test_the_pipeline_is_right_and_both_verdicts_occur() -> None:
    """So that the tests above compare something: a sample of the same kind has clean and faulty programs."""
    assert agree(program((1, 1), [PRODUCER, CONSUMER]), range(20)) == "clean"
    rng, observed = random.Random(3), []
    for _ in range(30):
        lines = [list(PRODUCER), list(CONSUMER)]
        selector = rng.randrange(2)
        del lines[selector][rng.randrange(len(lines[selector]))]
        observed.append(agree(program((1, 1), lines), range(3)))
    assert observed.count("clean") >= 3 and observed.count("faulty") >= 3 and set(observed) == {"clean", "faulty"}


@pytest.mark.parametrize("seed", range(3))
def test_meeting_in_pairs_agrees(seed: int) -> None:
    """Named barriers: six arrivals in pairs, some of which wait."""
    rng = random.Random(seed)
    workers = [[rng.choice(["meet.sync()", "meet.arrive()"]) for _ in range(2)] for _ in range(3)]
    assert agree(program((1, 1), workers), range(10)) in ("clean", "faulty")
