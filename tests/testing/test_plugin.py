"""The pytest plug-in: options, short failures, and an end to shrinking."""

from __future__ import annotations

import pytest

from cuir.testing import session_settings
from cuir.testing.session_settings import TestClock, run_once

pytest_plugins = ["pytester"]
pytest.importorskip("cuir.flex")  # operators register once, and pytester forgets the modules that its run imports

FAILING = """
from hypothesis import given, settings
from cuir.testing import assert_matches, strategies
from tests.testing.programs import SCALE, SECOND_TILE_WRONG

def test_fails():
    assert_matches(SECOND_TILE_WRONG, lambda x, factor: x * factor, M=65)

def test_a_wrong_call():
    assert_matches(SCALE, lambda x, factr: x * factr, M=65)

@settings(deadline=None, max_examples=20, database=None)
@given(m=strategies.lengths(200), seed=strategies.seeds())
def test_shrinks(m, seed):
    assert_matches(SECOND_TILE_WRONG, lambda x, factor: x * factor, M=m, seed=seed)
"""


@pytest.mark.sweep(4)
@pytest.mark.parametrize("ci", ["", "true"])  # pytest cuts its short summary to lines, but not where CI is set
def test_failures_are_short_and_without_our_frames(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, ci: str) -> None:
    monkeypatch.setattr(session_settings, "SHRINKING", 1.0)
    monkeypatch.setenv("CI", ci)
    pytester.makepyfile(FAILING)
    output = pytester.runpytest_inprocess("--disable-plugin-autoload", "-p", "cuir.testing.plugin", "-p", "no:cacheprovider")
    output.assert_outcomes(failed=3)
    text = output.stdout.str()
    sections = text.split("____ test_")[1:]
    assert len(sections) == 3 and all(len(s.splitlines()) < 45 for s in sections)
    assert "matching.py:" not in text.partition("Explanation")[0] and "Traceback" not in text
    assert "error[X105]" in sections[1] or "factr" in sections[1]
    assert "m=" in sections[2]
    summary = text.partition("short test summary")[2].splitlines()[1:]
    assert len([line for line in summary if line.startswith("FAILED")]) == 3 and len(summary) <= 5


def test_options_reach_the_assertions(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_settings, "session", session_settings.session)
    pytester.makepyfile(
        """
        from cuir.testing.session_settings import session
        def test_it():
            assert (session.schedules, session.gpu) == (7, False)
        """
    )
    try:
        pytester.runpytest_inprocess("-p", "cuir.testing.plugin", "--cuir-schedules", "7").assert_outcomes(passed=1)
        refused = pytester.runpytest_inprocess("-p", "cuir.testing.plugin", "--cuir-schedules", "0")
        refused.stderr.fnmatch_lines(["*--cuir-schedules is the number of schedules*found 0*"])
    finally:
        session_settings.session.schedules = 3


def test_a_clock_repeats_failures_and_stops_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_settings, "is_within_hypothesis", lambda: True)
    clock = TestClock()
    monkeypatch.setattr(session_settings, "clock", [clock])
    runs: list[str] = []

    def check(name: str) -> None:
        runs.append(name)
        if name == "bad":
            raise ValueError(name)

    with pytest.raises(ValueError):
        run_once("bad", lambda: check("bad"))
    run_once("good", lambda: check("good"))
    with pytest.raises(ValueError):
        run_once("bad", lambda: check("bad"))
    assert runs == ["bad", "good"]
    monkeypatch.setattr(session_settings, "SHRINKING", 0.0)
    run_once("other", lambda: check("other"))
    assert runs == ["bad", "good"]
