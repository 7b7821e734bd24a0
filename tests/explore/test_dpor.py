"""The reduced exploration against every interleaving: the same faults, the same classes, each class once."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given

from cuir.explore import dpor as module
from cuir.explore.dpor import Budget, search
from cuir.explore.execution import Execution
from cuir.explore.schedule_reduction import find_shortest, find_smallest
from cuir.explore.skeleton import Skeleton
from tests.explore.skeletons import CALM, SKELETONS, interleavings, skeleton
from tests.strategies.selection import examples


def explore_skeleton(k: Skeleton) -> tuple[module.SearchResult, Counter[frozenset]]:
    """The exploration, and how often each class was completed."""
    classes: Counter[frozenset] = Counter()

    class Counted(Execution):
        def end(self) -> None:
            classes[frozenset(self.counted)] += 1
            super().end()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "Execution", Counted)
        return search(k, Budget()), classes


def compare(k: Skeleton, most: int = 200) -> tuple[int, bool]:
    """Count the classes, and return whether one is faulty.

    Skeletons of more than `most` interleavings are left out.
    """
    runs = interleavings(k, most)
    if runs is None:
        return 0, False
    all_items = list(runs)
    result, classes = explore_skeleton(k)
    faulty = any(r.faults for r in all_items)
    assert (result.faulty is not None) == faulty
    if not faulty:
        assert set(classes) == {frozenset(r.counted) for r in all_items}
        assert set(classes.values()) == {1} and result.counts.classes == len(classes)
    else:
        assert result.faulty is not None
        short = find_shortest(result.faulty, 5.0)
        assert short.least and len(short.schedule) == min(steps_to_a_fault(r) for r in all_items if r.faults)
        for agents in (short.schedule, find_smallest(result.faulty)[1]):
            repeated = Execution(k)
            for agent in agents:
                assert repeated.is_enabled(agent) and not repeated.faults
                repeated.step(agent)
            if not repeated.faults:  # a deadlock, or a copy in flight at the end
                repeated.end()
            assert repeated.faults
    return len(classes), faulty


def steps_to_a_fault(run: Execution) -> int:
    """Count the steps of this execution until a fault shows."""
    repeated = Execution(run.skeleton)
    for finished, agent in enumerate(run.trace):
        if repeated.faults:
            return finished
        repeated.step(agent)
    return len(run.trace)


@examples(4)
@given(SKELETONS)
def test_any_skeleton(k: Skeleton) -> None:
    compare(k)


@examples(4)
@given(CALM)
def test_skeletons_of_many_classes(k: Skeleton) -> None:
    compare(k)


def test_pairs_that_meet_in_any_order() -> None:
    """Four workers meet in pairs: three ways to pair, two orders of the pairs."""
    assert compare(skeleton([(2, True)], [[("sync", 0)]] * 4), 10_000) == (6, False)


def test_one_class_however_many_interleavings() -> None:
    """Two workers that hand a stage to and fro, beside one that minds its own business."""
    pong = [("wait", 0, 0), ("arrive", 1, 0), ("wait", 0, 1), ("arrive", 1, 0)]
    ping = [("arrive", 0, 0), ("wait", 1, 0), ("arrive", 0, 0), ("wait", 1, 1)]
    assert compare(skeleton([(1, False), (1, False)], [ping, pong])) == (1, False)
