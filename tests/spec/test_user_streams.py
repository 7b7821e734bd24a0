"""Prints of users' functions go to stderr; threads that overlap leave stdout as it was."""

from __future__ import annotations

import io
import sys
import threading

import pytest

from cuir.spec.user_calls import user_call
from cuir.spec.user_streams import redirect_prints


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
