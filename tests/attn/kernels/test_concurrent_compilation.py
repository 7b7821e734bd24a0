"""Candidates: which setting runs, which one is verified meanwhile, and what is compiled for it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuir.attn.capture.first_call_progress import Progress
from cuir.attn.kernels.concurrent_compilation import Candidates
from cuir.text.diagnostics import CuirError

ALLOWED = 64
NAME = "causal"


class Compilers:
    """Compilers of settings {"n": index}, each of which ends once it may."""

    def __init__(self, outcomes: Sequence[int | CuirError], wait: bool = True):
        self.outcomes, self.begun = outcomes, list[int]()
        self.may_end = [threading.Event() for _ in outcomes]
        for event in self.may_end if not wait else ():
            event.set()

    def __call__(self, consts: Mapping[str, Any], nvcc: Any) -> Any:
        number = consts["n"]
        self.begun.append(number)
        nvcc.begun.set()
        assert self.may_end[number].wait(20)
        outcome = self.outcomes[number]
        if isinstance(outcome, CuirError):
            raise outcome
        return SimpleNamespace(number=number, spilled=outcome)

    def candidates(self, spills: bool) -> Candidates:
        def others() -> list[dict[str, int]]:
            self.listings += 1
            return [{"n": n} for n in range(1, len(self.outcomes))]

        self.listings = 0
        return Candidates({"n": 0}, others, ALLOWED, self, spills)


def choose_in_turn(spilled: Sequence[int]) -> tuple[int, int]:
    """Return the setting that runs, and the number of settings to compile for that, one after the other."""
    best, compiled = 0, 1
    for number in range(1, len(spilled)):
        if spilled[best] <= ALLOWED:
            break
        compiled += 1
        if spilled[number] <= spilled[best] // 2:
            best = number
    return best, compiled


@given(st.lists(st.integers(0, 800), min_size=1, max_size=4), st.booleans())
def test_the_setting_that_runs_is_that_of_compiling_in_turn(spilled: list[int], spills: bool) -> None:
    compilers, proven = Compilers(spilled, wait=False), list[Any]()
    with compilers.candidates(spills) as candidates:
        verified = candidates.verify(lambda consts, progress: proven.append(consts["n"]), NAME)
        index, kernel = candidates.decided()
    best, compiled = choose_in_turn(spilled)
    assert index == kernel.number == best  # type: ignore[attr-defined]
    assert proven == [verified]
    assert compilers.listings == int(spilled[0] > ALLOWED or spills)
    assert sorted(compilers.begun) == list(range(max(compiled, 2 if spills and len(spilled) > 1 else 1)))


def test_verification_of_a_setting_that_spills_ends_early() -> None:
    compilers, proven = Compilers([800, 0]), list[int]()

    def prove(consts: Mapping[str, Any], progress: Progress) -> None:
        proven.append(consts["n"])
        if consts["n"] == 0:
            compilers.may_end[0].set()
            while True:  # until a message of its progress ends it
                progress.tell("mask", passing=True)
        compilers.may_end[1].set()

    with compilers.candidates(spills=False) as candidates:
        assert candidates.verify(prove, NAME) == 1 and proven == [0, 1]
        assert candidates.decided()[0] == 1


def test_the_setting_expected_to_run_is_verified_first() -> None:
    compilers, proven = Compilers([800, 0]), list[int]()

    def prove(consts: Mapping[str, Any], progress: Progress) -> None:
        proven.append(consts["n"])
        for event in compilers.may_end:
            event.set()

    with compilers.candidates(spills=True) as candidates:
        assert candidates.verify(prove, NAME) == 1 and candidates.decided()[0] == 1 and proven == [1]


def test_a_refusal_of_verification_stops_the_compilers() -> None:
    compilers, refusal = Compilers([0, 0]), CuirError.of("V301", "wrong")

    def prove(consts: Mapping[str, Any], progress: Progress) -> None:
        raise refusal

    with pytest.raises(CuirError) as raised, compilers.candidates(spills=True) as candidates:
        candidates.verify(prove, NAME)
    assert raised.value is refusal and all(nvcc.stopped for nvcc in candidates.compilers.values())
    for event in compilers.may_end:
        event.set()


@pytest.mark.parametrize("spills", [False, True])
def test_a_compilers_refusal_is_raised_if_its_kernel_is_needed(spills: bool) -> None:
    refusal = CuirError.of("L010", "nvcc refuses it")
    cases: list[tuple[list[int | CuirError], int | None]] = [([0, refusal], 0), ([refusal, 0], None), ([800, refusal], None)]
    for outcomes, index in cases:
        with Compilers(outcomes, wait=False).candidates(spills) as candidates:
            candidates.verify(lambda consts, progress: None, NAME)
            if index is None:
                with pytest.raises(CuirError) as raised:
                    candidates.decided()
                assert raised.value is refusal
            else:
                assert candidates.decided()[0] == index
