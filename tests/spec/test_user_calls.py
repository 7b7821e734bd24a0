"""A user's functions neither end the process, nor run without end, nor change its state; Ctrl-C passes.

Prints of users' functions go to stderr; threads that overlap leave stdout as it was.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from cuir.spec.loading import import_file
from cuir.spec.user_calls import limit_calls, redirect_prints, user_call
from cuir.text.diagnostics import CuirError


def call(function: Callable[[], object], seconds: float = 5.0) -> object:
    with limit_calls(seconds), user_call("the function", function):
        return function()


def spin() -> None:
    while True:
        pass


def spin_and_swallow() -> None:
    until = time.perf_counter() + 1.0  # ends by itself, so that the test does
    while time.perf_counter() < until:
        try:
            time.sleep(0.01)
        except BaseException:
            continue


def swallow_exit() -> int:
    try:
        os._exit(0)
    except BaseException:
        return 1


def leave(how: str) -> Callable[[], object]:
    def leaving() -> object:
        if how == "sys.exit":
            sys.exit(0)
        if how == "SystemExit":
            raise SystemExit
        if how == "KeyboardInterrupt":
            raise KeyboardInterrupt
        if how == "GeneratorExit":
            raise GeneratorExit
        if how == "os.kill":
            os.kill(os.getpid(), signal.SIGTERM)
        if how == "raise_signal":
            signal.raise_signal(signal.SIGTERM)
        if how == "os.execv":
            os.execv(sys.executable, [sys.executable, "-c", ""])
        os._exit(0)

    return leaving


@pytest.mark.parametrize(
    "how", ["sys.exit", "SystemExit", "KeyboardInterrupt", "GeneratorExit", "os.kill", "raise_signal", "os.execv", "os._exit"]
)
def test_what_ends_the_process_is_refused_with_its_line(how: str) -> None:
    with pytest.raises(CuirError) as caught:
        call(leave(how))
    result = caught.value.diagnostics[0]
    assert result.code == "X119" and result.span is not None and result.span.source.name == __file__


def test_an_end_that_is_swallowed_is_refused_too() -> None:
    with pytest.raises(CuirError, match=r"os\._exit"):
        call(swallow_exit)


def test_a_kept_exit_stays_refused_behind_the_call(tmp_path: Path) -> None:
    path = tmp_path / "kept.py"
    path.write_text("from os import _exit\n")
    module = import_file(path)
    with pytest.raises(BaseException, match=r"os\._exit"):
        module._exit(0)
    assert os._exit is not module._exit


def test_an_import_that_exits_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "leaves.py"
    path.write_text("import sys\n\nsys.exit(0)\n")
    with pytest.raises(CuirError) as caught:
        import_file(path)
    result = caught.value.diagnostics[0]
    assert result.code == "X119" and result.span is not None and result.span.line == 3


@pytest.mark.parametrize("function", [spin, spin_and_swallow, lambda: time.sleep(60)])
@pytest.mark.parametrize("in_thread", [False, True])
def test_what_does_not_end_is_given_up(function: Callable[[], None], in_thread: bool) -> None:
    if in_thread and function not in (spin, spin_and_swallow):
        pytest.skip("a thread cannot be woken from a system call")
    errors: list[CuirError] = []

    def attempt() -> None:
        try:
            call(function, 0.1)
        except CuirError as error:
            errors.append(error)

    if in_thread:
        thread = threading.Thread(target=attempt)
        thread.start()
        thread.join(30)
    else:
        attempt()
    result = errors[0].diagnostics[0]
    assert result.code == "X125" and result.span is not None and result.span.source.name == __file__


def test_a_function_that_was_given_up_is_not_called_again() -> None:
    calls = []

    def slow() -> None:
        calls.append(1)
        spin()

    with limit_calls(0.05) as refused:
        for _ in range(2):
            with pytest.raises(CuirError, match="given up"), user_call("the function", slow):
                slow()
    assert len(calls) == 1 and len(refused) == 1


def test_an_interruption_passes_even_where_it_is_swallowed() -> None:
    def waits() -> None:
        with contextlib.suppress(KeyboardInterrupt):
            threading.Timer(0.1, lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)).start()
            time.sleep(30)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background begins with SIGINT ignored
    try:
        with pytest.raises(KeyboardInterrupt):
            call(waits)
    finally:
        signal.signal(signal.SIGINT, before)


def test_handlers_and_timers_are_as_before() -> None:
    rang: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda *_: rang.append(1)), signal.getsignal(signal.SIGINT)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        call(lambda: time.sleep(0.1))
        time.sleep(0.05)
        assert rang == [1] and signal.getsignal(signal.SIGINT) is before[1]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before[0])


def test_state_is_put_back(tmp_path: Path) -> None:
    def changes() -> None:
        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(torch.get_num_threads() + 1)
        torch.use_deterministic_algorithms(True)
        torch.set_grad_enabled(False)
        torch.manual_seed(3)
        random.seed(3)
        np.random.seed(3)
        os.environ["CUIR_TEST"] = "1"
        os.environ.pop("PATH", None)
        os.chdir(tmp_path)
        sys.setrecursionlimit(5000)
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115

    def state() -> list[object]:
        return [
            torch.get_default_dtype(),
            torch.get_num_threads(),
            torch.are_deterministic_algorithms_enabled(),
            torch.is_grad_enabled(),
            torch.get_rng_state().tolist(),
            random.getstate(),
            np.random.get_state()[1].tolist(),
            dict(os.environ),
            os.getcwd(),  # type: ignore[union-attr]
            sys.getrecursionlimit(),
            sys.stdout,
        ]

    before = state()
    call(changes)
    assert state() == before


def test_global_generators_that_are_drawn_from_are_named() -> None:
    with user_call("the function") as result:
        torch.rand(1), random.random(), np.random.rand()
    assert result.drawn == ("torch's global generator", "Python's `random`", "NumPy's `random`")
    with user_call("the function") as quiet:
        torch.rand(1, generator=torch.Generator())
    assert quiet.drawn == ()


@pytest.mark.parametrize(
    "draw",
    [
        lambda: np.random.rand(),
        lambda: np.random.rand(624),  # the place among the keys is the same afterwards
        lambda: np.random.normal(),
        lambda: np.random.shuffle([1, 2, 3]),
        lambda: np.random.seed(5),
        lambda: np.random.set_state(("MT19937", np.arange(624, dtype=np.uint32), 3, 0, 0.0)),
    ],
)
@pytest.mark.parametrize("waiting", [False, True])  # the second number of a pair of normal ones
def test_draws_from_numpy_are_named_and_undone(draw: Callable[[], object], waiting: bool) -> None:
    np.random.seed(7)
    if waiting:
        np.random.normal()
    kind, keys, *rest = np.random.get_state()
    for _ in range(2):
        with user_call("the function") as result:
            draw()
        assert result.drawn == ("NumPy's `random`",)
    with user_call("the function") as quiet:
        pass
    assert quiet.drawn == ()
    kind_after, keys_after, *rest_after = np.random.get_state()
    assert (kind_after, rest_after) == (kind, rest) and (keys_after == keys).all()


def test_what_it_prints_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    call(lambda: print("said"))
    assert capsys.readouterr() == ("", "said\n")


def test_calls_inside_of_a_call_are_one() -> None:
    with user_call("outer") as outer, user_call("inner") as inner:
        assert inner is outer


def test_a_child_of_the_function_does_not_go_on() -> None:
    marker = os.getpid()
    call(os.fork)
    assert os.getpid() == marker
    os.wait()


GIVEN_UP_THEN_TRACED = """
import sys, threading
from cuir.spec.user_calls import limit_calls, user_call
from cuir.text.diagnostics import CuirError

def call_for_long():
    try:
        with limit_calls(0.05), user_call("the function"):
            while True:
                pass
    except CuirError as error:
        print(error.diagnostics[0].code)

def call_swallowing():
    try:
        with limit_calls(0.05), user_call("the function"):
            for _ in range(3):
                try:
                    while True:
                        pass
                except BaseException:
                    pass
    except CuirError as error:
        print(error.diagnostics[0].code)

for function in (call_for_long, call_swallowing):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()
sys.settrace(lambda *event: None)
(lambda: print("traced"))()
"""


@pytest.mark.thorough
def test_a_call_that_was_given_up_in_a_thread_leaves_tracing_as_it_is() -> None:
    output = subprocess.run([sys.executable, "-c", GIVEN_UP_THEN_TRACED], capture_output=True, text=True, timeout=60, check=True)
    assert output.stdout.split() == ["X125", "X125", "traced"]


@pytest.mark.parametrize("first_out", ["first", "second"])
def test_overlapping_calls_restore_stdout(first_out: str) -> None:
    """In both orders of leaving."""
    before = sys.stdout
    inside, leave = {n: threading.Event() for n in ("first", "second")}, {n: threading.Event() for n in ("first", "second")}

    def enter(name: str) -> None:
        with user_call(name):
            inside[name].set()
            leave[name].wait(10)

    threads = {name: threading.Thread(target=enter, args=(name,)) for name in ("first", "second")}
    for name in ("first", "second"):
        threads[name].start()
        assert inside[name].wait(10)
    for name in (first_out, "second" if first_out == "first" else "first"):
        leave[name].set()
        threads[name].join()
    assert sys.stdout is before


def test_other_threads_print_to_stdout_meanwhile(capsys: pytest.CaptureFixture[str]) -> None:
    with redirect_prints():
        print("a user's function")
        second = threading.Thread(target=print, args=("a server",))
        second.start()
        second.join()
    assert capsys.readouterr() == ("a server\n", "a user's function\n")


def test_streams_that_a_function_replaces_are_restored_while_another_runs() -> None:
    before, outside = sys.stdout, threading.Event()

    def wait() -> None:
        with redirect_prints():
            started.set()
            outside.wait(10)

    started, thread = threading.Event(), threading.Thread(target=wait)
    thread.start()
    assert started.wait(10)
    standing = sys.stdout
    with redirect_prints():
        sys.stdout = io.StringIO()
    assert sys.stdout is standing
    outside.set()
    thread.join()
    assert sys.stdout is before
