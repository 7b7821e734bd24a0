"""Settings of the whole suite.

One thread a worker, Hypothesis without deadlines, `gpu` tests skipped without a Hopper GPU, `nvcc` tests without a compiler, `thorough` ones and most of
each sweep in a plain run; each test within its budget of CPU seconds.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings

from cuir.caching.disk import RESULTS
from cuir.runtime import result_cache
from tests.strategies.memory import hold_freed_memory, read_resident
from tests.strategies.selection import BUDGET, OVERRUN, PROPERTY, find_left_out, is_named, is_thinned, measure_cpu

T = TypeVar("T")

hold_freed_memory()
os.environ.setdefault("TORCH_DYNAMO_RUN_GC_AFTER_COMPILE", "0")  # garbage is collected behind a test
with mock.patch.object(sys, "addaudithook"), contextlib.suppress(ImportError):
    import filelock as filelock  # of PyTorch and transformers: its hook runs at each `id()` of the process from then on
os.environ.setdefault("CUIR_PROCESSES", "1")  # of a verification: workers share the cores out already
gc.disable()  # until all tests are collected: imports and parametrised cases make objects that stay
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile(
    "cuir", max_examples=20, deadline=None, suppress_health_check=SLOW
)  # for minutes; `--hypothesis-profile=thorough` for hours. See tests/strategies/selection.py
settings.register_profile("thorough", max_examples=1000, deadline=None, suppress_health_check=SLOW)
settings.load_profile("cuir")


def pytest_configure(config: pytest.Config) -> None:
    """Use one thread a worker. The process that only hands tests out to workers does not import PyTorch: they wait for it to start."""
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        import torch

        torch.set_num_threads(1)


_NUMBERS = itertools.count()


@pytest.fixture(autouse=True)
def results_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The folder of cached results: one for all tests, and one for each test that changes modules by `monkeypatch`.

    What a changed module makes is nothing to another test, and no test's results are a user's.
    """
    folder = tmp_path_factory.getbasetemp()
    if "monkeypatch" in request.fixturenames:
        folder /= f"results/{next(_NUMBERS)}"
    else:
        folder = (folder.parent if hasattr(request.config, "workerinput") else folder) / "shared_results"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(result_cache, "RESULTS", replace(RESULTS, folder=str(folder)))
        yield


@functools.cache
def _no_gpu(arch: str = "sm_90a") -> str:
    """Return why kernels of an architecture do not run here; empty if they do."""
    import torch

    from cuir.ops.limits import TARGETS

    if not torch.cuda.is_available():
        return "no CUDA device: torch.cuda.is_available() is False"
    major, minor = torch.cuda.get_device_capability()
    return "" if TARGETS[arch].runs_on((major, minor)) else f"needs a GPU that runs {arch}, found compute capability {major}.{minor}"


@functools.cache
def _has_nvcc() -> bool:
    return shutil.which("nvcc") is not None


def pytest_collection_finish() -> None:
    """What is there by now stays: collections of garbage need not walk through it again and again."""
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(10 * _YOUNG, 50, 100)  # within a test: interpreted runs make many small objects that die by themselves
    from cuir.verification import stages

    stages.release_freed_memory = _retain_freed_memory


def _retain_freed_memory() -> None:
    """At the end of a verification: the next one takes the same pages, which the system would clear again."""


_YOUNG = 100_000  # objects of a test and of those before it, from which they are looked through


def _collect_garbage() -> None:
    """Behind a test, collect what it left in circles, once; what survives is in caches, and later collections leave it out.

    Within a test, everything is alive, and would be walked through again in each older generation.
    """
    if gc.get_count()[0] > _YOUNG:
        gc.collect(0)
        gc.freeze()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """pytest collects garbage five times when it ends, for warnings that nobody awaits: through millions of objects that end with the process."""
    gc.freeze()
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = dict(session.config.stash.get(_LEFT_OUT, {}))


_LEFT_OUT = pytest.StashKey[Counter[str]]()  # how many tests a plain run leaves out, by reason


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("selection")
    group.addoption(
        "--thorough",
        choices=("none", "all", "rest"),
        default="none",
        help="`thorough` tests and whole sweeps, too; or what a plain run leaves out",
    )
    group.addoption("--sweep-seed", type=int, default=0, help="seed of the cases of sweeps that a plain run takes")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        marker = item.get_closest_marker("gpu")
        if marker is not None and (reason := _no_gpu(*marker.args)):
            item.add_marker(pytest.mark.skip(reason=reason))
        if item.get_closest_marker("nvcc") and not _has_nvcc():
            item.add_marker(pytest.mark.skip(reason="no nvcc on the PATH"))
    expected = config.getoption("--thorough")
    if expected == "all":
        return
    left_out = find_left_out(items, config.getoption("--sweep-seed"))
    if expected == "rest":
        omitted = [item for item in items if item.nodeid not in left_out and not is_thinned(item)]
    else:  # deselected, not skipped: a report of each would take a millisecond and a half
        omitted = [item for item in items if item.nodeid in left_out and not is_named(item, config.args)]
        config.stash[_LEFT_OUT] = Counter(left_out[item.nodeid] for item in omitted)
    names = {item.nodeid for item in omitted}
    items[:] = [item for item in items if item.nodeid not in names]
    config.hook.pytest_deselected(items=omitted)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take the reasons from a worker of xdist, each of which has left out the same tests."""
    node.config.stash[_LEFT_OUT] = Counter(getattr(node, "workeroutput", {}).get("left_out", {}))


# ---- less to verify
@pytest.fixture
def few_problems(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sixth of the problems of a verification at level quick, and of its schedules; all of them in `make thorough`.

    For a test of a program that is to pass, where what verification finds is not under test.
    """
    if request.config.getoption("--thorough") != "none":
        return
    from cuir.verification import numbers_stage, schedules, schedules_stage, stages
    from cuir.verification.coverage import coverage_loop

    effort = coverage_loop.EFFORTS["quick"]
    monkeypatch.setitem(coverage_loop.EFFORTS, "quick", replace(effort, operations=effort.operations // 20))
    monkeypatch.setenv("CUIR_CACHE", str(tmp_path / "cache"))  # such a report is not to be remembered
    for module, name in (
        (schedules, "make_schedules"),
        (schedules_stage, "make_orders"),
        (schedules_stage, "make_counted_jobs"),
        (schedules_stage, "make_schedule_cases"),
        (schedules_stage, "make_empty_cases"),
        (schedules_stage, "make_ring_cases"),
        (schedules_stage, "make_counted_cases"),
        (numbers_stage, "make_number_cases"),
        (numbers_stage, "make_user_cases"),
        (stages, "make_problems"),
        (stages, "choose_readout_lengths"),
    ):
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *arguments, real=real: list(real(*arguments))[::6])


@pytest.fixture
def no_schedules(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A verification without its stage of schedules; with it in `make thorough`.

    For a test of what the stage of numbers finds, or lets pass, in problems that are not made for schedules.
    """
    if request.config.getoption("--thorough") != "none":
        return
    from cuir.verification import stages

    monkeypatch.setenv("CUIR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(stages._Verification, "schedules", lambda *arguments: None)


@pytest.fixture
def seeded_quarter(request: pytest.FixtureRequest) -> Callable[[list[T]], list[T]]:
    """A function that takes every fourth element of a list; all of them in `make thorough`.

    For a test of many small cases at once, of which each group is to have some.
    """
    if request.config.getoption("--thorough") != "none":
        return lambda cases: cases
    first = request.config.getoption("--sweep-seed") % 4
    return lambda cases: cases[first::4] or cases


# ---- memory
_RESIDENT = [1500.0]  # MB after a test, from which what was freed is given back: else a worker grows to many times as much
_GROWTH = 300  # MB above what stays then, until the next time: it walks through the whole heap


def pytest_runtest_logfinish() -> None:
    _collect_garbage()
    if read_resident() > _RESIDENT[0]:
        from cuir.verification.resource_limits import release_freed_memory

        release_freed_memory()
        _RESIDENT[0] = max(_RESIDENT[0], read_resident() + _GROWTH)


# ---- the budget
_SPENT = pytest.StashKey[float]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    item.stash[_SPENT] = -measure_cpu()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the CPU seconds to the report of a test, and fail one of a plain run that is far over the budget."""
    report = yield
    if report.when == "call" and _SPENT in item.stash and not item.get_closest_marker("thorough"):
        seconds = item.stash[_SPENT] + measure_cpu()
        report.user_properties.append((PROPERTY, round(seconds, 1)))
        compiles = item.get_closest_marker("gpu") is not None  # nvcc alone takes more than the budget
        if report.passed and seconds > OVERRUN * BUDGET and not compiles and item.config.getoption("--thorough") == "none":
            report.outcome = "failed"
            report.longrepr = (
                f"{seconds:.1f} CPU seconds; a test has {BUDGET:.0f}: make its kernel or its problem smaller, or mark it `thorough`"
            )
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Count what is left out, by reason; name the tests over the budget, the longest first."""
    for reason, count in terminalreporter.config.stash.get(_LEFT_OUT, Counter()).most_common():
        terminalreporter.write_line(f"{count} left out: {reason}")
    seconds = {
        report.nodeid: spent
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport) and report.when == "call"
        for name, spent in report.user_properties
        if name == PROPERTY and spent > BUDGET
    }
    if seconds:
        terminalreporter.section(f"over the budget of {BUDGET:.0f} CPU seconds a test")
        for name, spent in sorted(seconds.items(), key=lambda pair: -pair[1]):
            terminalreporter.write_line(f"{spent:6.1f} s  {name}")
