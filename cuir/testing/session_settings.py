"""Settings of a test session, which the pytest plug-in sets, and the time that shrinking may take.

Failure of a differential test: at most 30 lines, the cause first, and how to run it again.
"""

from __future__ import annotations

import sys
import time
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..text.diagnostics import CuirError, Diagnostic

LINES = 30


class MismatchError(AssertionError):
    """Raised where a kernel differs from its function, or goes wrong under a schedule.

    Attributes:
        diagnostics: the faults, the first being the cause.
    """

    def __init__(self, text: str, diagnostics: Sequence[Diagnostic] = ()):
        super().__init__(text)
        self.diagnostics = tuple(diagnostics)


def make_failure(title: str, error: CuirError, call: str) -> MismatchError:
    """Make the exception for a fault. call: the assertion that reproduces it."""
    lines = [title, *(line for d in error.diagnostics[:1] for line in d.render().splitlines() if "= note: replay:" not in line)]
    more = len(error.diagnostics) - 1
    end = [f"({more} more in `diagnostics` of this exception)"] * bool(more) + [f"again: {call}"]
    room = LINES - len(end)
    if len(lines) > room:
        lines = [*lines[: room - 1], f"... ({len(lines) - room + 1} more lines in `diagnostics` of this exception)"]
    return MismatchError("\n".join([*lines, *end]), error.diagnostics)


SHRINKING = 10.0  # seconds after the first failure of a test in which further examples run


@dataclass
class SessionSettings:
    """Number of schedules of each problem; whether kernels also run on a GPU."""

    schedules: int = 3
    gpu: bool = False


@dataclass
class TestClock:
    """Failures of the test that runs, by problem, and the time of the first one.

    Hypothesis shrinks for minutes. Once SHRINKING is over, problems that have not failed pass without a run, so that
    it ends with the smallest failure found; a problem that has failed fails again.
    """

    __test__ = False  # no test class

    began: float | None = None
    failures: dict[object, Exception] = field(default_factory=dict)

    def record(self, key: object, failure: Exception) -> None:
        """Record a failure."""
        if self.began is None:
            self.began = time.monotonic()
        self.failures[key] = failure

    @property
    def is_over(self) -> bool:
        """True if no further example is to run."""
        return self.began is not None and time.monotonic() - self.began > SHRINKING


session = SessionSettings()
clock: list[TestClock | None] = [None]  # of the test that runs under the plug-in


def is_within_hypothesis() -> bool:
    """Return whether Hypothesis runs the test, and shrinks it itself."""
    hypothesis = sys.modules.get("hypothesis")
    return hypothesis is not None and bool(hypothesis.currently_in_test_context())


def identify(function: object) -> object:
    """Return a key by which a function that a test makes again for each example is known."""
    code = getattr(function, "__code__", None)
    if code is None:
        return id(function)
    from ..attn.tracing.user_objects import list_cells, list_defaults  # imports PyTorch

    values = [m.value for m in (*list_cells(function), *list_defaults(function))] if isinstance(function, types.FunctionType) else []
    return code, tuple(v if isinstance(v, (int, float, str, bool)) else id(v) for v in values)


def run_once(key: object, check: Callable[[], MismatchError | None]) -> MismatchError | None:
    """Run a check of the problem `key` and return its failure, or do as the clock of the test says.

    Raises what the check raises, again for a problem for which it has.
    """
    current = clock[0] if is_within_hypothesis() else None
    if current is None:
        return check()
    if key in current.failures:
        if isinstance(earlier := current.failures[key], MismatchError):
            return earlier
        raise earlier
    if current.is_over:
        return None
    try:
        failure = check()
    except Exception as error:
        current.record(key, error)
        raise
    if failure is not None:
        current.record(key, failure)
    return failure
