"""pytest plug-in: options, and failures of `cuir.testing` as their report alone.

A failure has no traceback of internals.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the command line."""
    group = parser.getgroup("cuir")
    group.addoption("--cuir-schedules", type=int, default=3, metavar="N", help="schedules of each problem of cuir.testing (3)")
    group.addoption("--cuir-gpu", action="store_true", help="run kernels of cuir.testing on the GPU as well")


def pytest_configure(config: pytest.Config) -> None:
    """Pass the options on. Nothing of torch is imported unless they differ from the defaults."""
    count, gpu = config.getoption("--cuir-schedules"), config.getoption("--cuir-gpu")
    if count < 1:
        raise pytest.UsageError(f"--cuir-schedules is the number of schedules of each problem, at least 1; found {count}")
    if (count, gpu) != (3, False):
        from .session_settings import session

        session.schedules, session.gpu = count, gpu


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Give the test a clock for shrinking."""
    if "cuir.testing" not in sys.modules:
        return (yield)
    from .session_settings import TestClock, clock

    clock[0] = TestClock()
    try:
        return (yield)
    finally:
        clock[0] = None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show a failure of `cuir.testing` by its report, with the test's own line and what Hypothesis adds."""
    report = yield
    if call.excinfo is None or "cuir.testing" not in sys.modules or item.config.getoption("fulltrace", False):
        return report
    if _is_ours(call.excinfo):
        place = next((e for e in reversed(call.excinfo.traceback) if e.path == item.path), None)
        at = f"{item.path.name}:{place.lineno + 1}: {place.statement}\n" if place is not None else ""
        notes = "".join(f"\n{n}" for n in getattr(call.excinfo.value, "__notes__", ()))
        report.longrepr = _make_representation(call.excinfo, f"{at}{call.excinfo.value}{notes}")
    return report


def _make_representation(exception: pytest.ExceptionInfo[BaseException], text: str) -> Any:
    """Make what pytest prints of a failure: the text, and its first line in the short summary.

    CI prints the short summary whole.
    """
    representation: Any = exception.getrepr(style="native")
    entries = representation.reprtraceback.reprentries
    del entries[:-1]
    entries[0].lines[:] = [text]
    if representation.reprcrash is not None:
        representation.reprcrash.message = str(exception.value).partition("\n")[0]
    return representation


def _is_ours(exception: pytest.ExceptionInfo[BaseException]) -> bool:
    """Return whether an exception is a failure or an error of an assertion of `cuir.testing`."""
    from ..text.diagnostics import CuirError
    from .session_settings import MismatchError

    if isinstance(exception.value, MismatchError):
        return True
    folder = Path(__file__).parent
    return isinstance(exception.value, CuirError) and any(Path(e.path).parent == folder for e in exception.traceback)
