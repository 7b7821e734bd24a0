"""Selection of tests: all but `thorough` ones, a seeded share of each sweep; and the CPU seconds that each may take.

`--thorough=all` runs everything, `--thorough=rest` what a plain run leaves out. A test that is named by its id always runs.

The number of examples of a property: `--hypothesis-profile=thorough` tries more of all.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable

import pytest
from hypothesis import settings

SHARE = 16  # one case in so many of a sweep is run; `sweep(4)` has a share of its own
BUDGET = 5.0  # CPU seconds of one test with its set-up, children included
OVERRUN = 3.0  # a test fails beyond so many budgets: other load on a machine stretches CPU seconds, though not threefold
PROPERTY = "cpu_seconds"
ELSEWHERE = "`make thorough` runs"
THINNING = frozenset({"few_problems", "no_schedules", "seeded_quarter"})  # fixtures with which a plain run tests less


def choose_cases(ids: Iterable[str], seed: int, share: int = SHARE) -> set[str]:
    """The share of a sweep's cases that a plain run takes: at least one, the same in every process."""
    ranked = sorted(ids, key=lambda name: zlib.crc32(f"{seed}:{name}".encode()))
    return set(ranked[: -(-len(ranked) // share)])


def find_left_out(items: list[pytest.Item], seed: int) -> dict[str, str]:
    """The ids of the tests that a plain run leaves out, each with the reason."""
    reasons: dict[str, str] = {}
    sweeps: dict[tuple[str, int], list[str]] = {}
    for item in items:
        if marker := item.get_closest_marker("thorough"):
            reasons[item.nodeid] = f"thorough{': ' if marker.args else ''}{' '.join(marker.args)}; {ELSEWHERE} it"
        elif marker := item.get_closest_marker("sweep"):
            share = marker.args[0] if marker.args else SHARE
            sweeps.setdefault((item.nodeid.partition("[")[0], share), []).append(item.nodeid)
    for (_, share), ids in sweeps.items():
        retained = choose_cases(ids, seed, share)
        reasons.update(
            (name, f"a sweep: a case in {share} runs (--sweep-seed={seed}), {ELSEWHERE} all") for name in ids if name not in retained
        )
    return reasons


def is_thinned(item: pytest.Item) -> bool:
    """Return True if a plain run verifies less in this test than `make thorough` does."""
    return not THINNING.isdisjoint(getattr(item, "fixturenames", ()))


def is_named(item: pytest.Item, args: Iterable[str]) -> bool:
    """Return True if the command line names this test, or its function, by its id."""
    return any("::" in arg and item.nodeid.startswith(arg.removeprefix("./")) for arg in args)


def measure_cpu() -> float:
    """User and system seconds of this process and of its finished children."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def examples(factor: float) -> settings:
    """Settings for a property that tries `factor` times the examples of others, because they are cheap or each takes long."""
    return settings(max_examples=max(1, round(factor * settings.default.max_examples)))  # type: ignore[attr-defined]
