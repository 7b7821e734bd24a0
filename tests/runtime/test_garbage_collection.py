"""Full collections that wait: how long, and for whom."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest

from cuir.runtime.garbage_collection import without_collections, without_full_collections


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[tuple[int, int, int]]:
    before = gc.get_threshold()
    gc.set_threshold(50, 5, 5)
    yield 50, 5, 5
    gc.set_threshold(*before)


def make_cycles(count: int) -> list[int]:
    """Make unreachable cycles, and some objects that stay; return the generations that were collected."""
    generations: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            generations.append(info["generation"])

    gc.callbacks.append(note)
    cycles = []
    for _ in range(count):
        cycle: list[object] = []
        cycle.append(cycle)
        cycles.append([cycle, []])
    gc.callbacks.remove(note)
    return generations


def test_only_young_objects_are_collected() -> None:
    with without_full_collections():
        generations = make_cycles(20_000)
    assert 1 in generations and 2 not in generations


def test_the_callers_thresholds_return_after_the_last_block(thresholds: tuple[int, int, int]) -> None:
    inner, outer_ended = threading.Event(), threading.Event()

    def run_beside() -> None:
        with without_full_collections():
            inner.set()
            assert outer_ended.wait(20)

    with without_full_collections():
        thread = threading.Thread(target=run_beside)
        thread.start()
        assert inner.wait(20)
    assert gc.get_threshold() != thresholds
    outer_ended.set()
    thread.join()
    assert gc.get_threshold() == thresholds
    with pytest.raises(ValueError, match="no"), without_full_collections():
        raise ValueError("no")
    assert gc.get_threshold() == thresholds


def test_thresholds_that_a_block_sets_stay() -> None:
    with without_full_collections():
        gc.set_threshold(70, 7, 7)
    assert gc.get_threshold() == (70, 7, 7)


@pytest.mark.parametrize("enabled", [True, False])
def test_no_collection_runs_inside_and_the_state_is_kept_behind_an_error(enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()
    try:
        with pytest.raises(ZeroDivisionError), without_collections():
            assert not gc.isenabled()
            raise ZeroDivisionError
        assert gc.isenabled() is enabled
    finally:
        gc.enable()
