"""Comparison of calls of one problem: each result judged, then all right calls timed in turns.

It serves suites in which a contender is a call that is ready to run.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch

from ..timing.timing_protocol import Call, Outputs, describe_error, median_ms, raise_if_lost, time_in_turns
from .cell_benchmark import BUILD_SECONDS, RUN_SECONDS, Timing, family
from .result_rows import Entry

R = TypeVar("R")
Judge = Callable[[Outputs], tuple[float, str]]  # returns the error of a call's outputs, and why they are wrong


def contest(
    calls: Mapping[str, Callable[[], R]],
    judge: Callable[[R], tuple[float, str]],
    figures: Callable[[float], Entry],
    timing: Timing,
    *,
    seconds: Callable[[str], float] = lambda name: BUILD_SECONDS,
    prepared: Callable[[Call], Call] = lambda call: call,
) -> dict[str, Entry]:
    """Judge and time calls; return the contenders' entries of a row.

    Raises RuntimeError when the CUDA context is lost.

    Args:
        calls: Calls by contender; each may prepare itself in its first call, for which `seconds` gives its time.
        judge: Returns the error of a call's outputs, and why they are wrong, "" if they are right.
        figures: Returns figures for milliseconds.
        timing: Rounds of timing, contenders not to run, and the progress.
        prepared: Returns what is timed of a call that was right.
    """
    tell, lost = timing.tell, timing.lost
    entries: dict[str, Entry] = {}
    right: dict[str, Call] = {}
    for name, call in calls.items():
        if name in lost:
            entries[name] = {"failed": lost[name]}
            continue
        try:
            tell(name, seconds(name))
            outputs = call()
            tell(name, RUN_SECONDS)
            error, why = judge(outputs)
            entries[name] = {"error": error, **({"wrong": why} if why else {})}
            del outputs
        except (
            Exception
        ) as error:  # PyTorch's compilers and other packages raise whatever they meet; one contender that does not run ends no suite
            raise_if_lost(error)
            entries[name] = {"failed": describe_error(error)}
            continue
        if not why:
            right[name] = prepared(call)
    times, failed = time_in_turns(right, timing.rounds, timing.measure or median_ms, family, lambda name: tell(name, RUN_SECONDS))
    for name, samples in times.items():
        milliseconds = statistics.median(samples)
        entries[name] |= {"milliseconds": round(milliseconds, 5), **figures(milliseconds), "rounds": len(samples)}
    for name, why in failed.items():
        entries[name] |= {"failed": why}
    return entries


def judge_of(error: Callable[[torch.Tensor], float], judge: Callable[[torch.Tensor], str]) -> Judge:
    """Return the judge that `contest` takes, for calls that return O, or O and more."""

    def of(outputs: Outputs) -> tuple[float, str]:
        o = outputs[0] if isinstance(outputs, tuple) else outputs
        return error(o), judge(o)

    return of


__all__ = ["contest", "judge_of"]
