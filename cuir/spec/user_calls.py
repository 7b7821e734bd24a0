"""Guarded calls of a user's functions: ends of the process and endless calls become errors.

Prints go to stderr, and global state is restored. Ctrl-C passes. Functions that swallow every exception are given up by
`on_stuck`, which the command line sets.

Standard streams during calls of users' functions: their prints go to stderr, in their thread alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TextIO

import torch

from ..text.diagnostics import CuirError
from ..text.source import Span, function_span, line_span, user_span
from .global_state import GlobalState

_streams_lock = threading.Lock()
_callers: set[int] = set()  # threads within a user's function
_saved: list[TextIO] = []  # stdout, stderr and stdin of before, while some thread is within one


class ThreadStdout:
    """Stand-in for stdout: stderr for threads within a user's function.

    For all other threads it is the stream of before.

    `contextlib.redirect_stdout` is of the process: where two threads overlap, the last to leave restores stderr.
    """

    def __init__(self, stdout: TextIO):
        self._stdout = stdout

    def __getattr__(self, name: str) -> object:
        return getattr(sys.stderr if threading.get_ident() in _callers else self._stdout, name)


@contextlib.contextmanager
def redirect_prints() -> Iterator[None]:
    """Send what this thread prints to stderr within the block.

    Restore the streams that the block replaces.
    """
    with _streams_lock:
        if not _callers:
            _saved[:] = sys.stdout, sys.stderr, sys.stdin
            sys.stdout = ThreadStdout(sys.stdout)
        _callers.add(threading.get_ident())
        entered = sys.stdout, sys.stderr, sys.stdin
    try:
        yield
    finally:
        with _streams_lock:
            _callers.discard(threading.get_ident())
            sys.stdout, sys.stderr, sys.stdin = entered if _callers else _saved


SECONDS = 60.0  # of processor time of one call, unless its caller says otherwise
_WALL = 4.0  # wall-clock seconds for each of these: a function that sleeps or reads a terminal takes no processor time
_RETRY_SECONDS = 0.25  # seconds until a function that swallowed its end is ended again
_STUBBORN = 8  # number of attempts before it is given up
_ENDERS = ("_exit", "abort", "execv", "execve")  # functions of `os` by which a process ends
_OURS = (f"{Path(__file__).parents[1]}/", f"{Path(torch.__file__).parent}/", "<")
_PYTHON = (f"{Path(os.__file__).parent}/",)

# receives None for an interruption that was swallowed; does not return
on_stuck: Callable[[CuirError | None], None] | None = None

Refusals = dict[int, tuple[object, CuirError]]  # by the id of a function, which is kept alive

_allowed: ContextVar[float] = ContextVar("seconds of a call", default=SECONDS)
_refusals: ContextVar[Refusals | None] = ContextVar("functions that were refused", default=None)
_local = threading.local()


@contextlib.contextmanager
def limit_calls(seconds: float) -> Iterator[Refusals]:
    """Limit the processor time of each call within the block, in seconds.

    Yields the refused functions; a function that was refused once is refused again, without a call.
    """
    refused: Refusals = {}
    tokens = _allowed.set(seconds), _refusals.set(refused)
    try:
        yield refused
    finally:
        _allowed.reset(tokens[0])
        _refusals.reset(tokens[1])


def refuse_function(function: Callable[..., object] | None, error: CuirError) -> CuirError:
    """Record that a function is not a specification; return the error."""
    if (refused := _refusals.get()) is not None and function is not None:
        refused.setdefault(id(function), (function, error))
    return error


class _Ended(BaseException):
    """Raised where the function called something that ends the process."""


class _Expired(BaseException):
    """Raised where the function exceeded its time."""


class UserCall:
    """One call of a user's function.

    drawn: global generators that it drew from, or seeded.
    """

    def __init__(self, subject: str, function: Callable[..., object] | None, path: str | None):
        self.subject, self.function = subject, function
        code = getattr(function, "__code__", None)
        named = path or (code.co_filename if code is not None else None)
        self.path = None if named is None or named.startswith(_OURS) else named
        self.seconds, self.drawn = _allowed.get(), ()  # type: float, tuple[str, ...]
        self.active, self.interrupted, self.given_up = True, False, 0
        self.expired: Span | None = None
        self.ended: tuple[str, Span | None] | None = None
        self.thread, self.began, self.begun = threading.get_ident(), time.thread_time(), time.perf_counter()

    def place(self, error: BaseException) -> Span | None:
        """Return the innermost line of the user's file that an exception passed through.

        Without one, of other code outside of cuir and torch.
        """
        return (self.path and user_span(error, self.path)) or user_span(error) or self.definition

    @property
    def definition(self) -> Span | None:
        """Location of the function's definition."""
        return function_span(self.function) if self.function is not None else None

    def at(self, frame: FrameType | None) -> Span | None:
        """Return the innermost line of the user's file on a stack."""
        while frame is not None:
            name = frame.f_code.co_filename
            if name == self.path if self.path is not None else not name.startswith((*_OURS, *_PYTHON)):
                return line_span(name, frame.f_lineno)
            frame = frame.f_back
        return self.definition

    def over_time(self, at: Span | None) -> CuirError:
        """Make the error for a call that exceeded its time."""
        return CuirError.of(
            "X125",
            f"{self.subject} was given up after {self.seconds:g} seconds of processor time",
            at,
            "it is called for many small problems: a call takes seconds at most; --budget SECONDS (budget= in Python) allows more",
        )

    def ending(self, how: str, at: Span | None) -> CuirError:
        """Make the error for a call that ends the process."""
        return CuirError.of(
            "X119",
            f"{self.subject} ends the process: {how}",
            at,
            "return what is computed; raise an ordinary exception for what is wrong",
        )

    # ---- time
    def is_over(self) -> float:
        """Return the seconds until the next check; 0 if the call has exceeded its time."""
        clock = time.pthread_getcpuclockid(self.thread)
        remaining = self.seconds - (time.clock_gettime(clock) - self.began)
        remaining = min(remaining, _WALL * self.seconds - (time.perf_counter() - self.begun))
        return max(remaining, 0.01) if remaining > 0 else 0.0

    def expire(self, frame: FrameType | None) -> bool:
        """Record the end of the call's time; return whether it may be ended now."""
        if self.expired is None:
            self.expired = self.at(frame)
        self.given_up += 1
        if self.given_up > _STUBBORN and on_stuck is not None:
            on_stuck(self.over_time(self.expired))
        return self.active

    @contextlib.contextmanager
    def limit_time(self) -> Iterator[None]:
        """Limit the time of the block, by a signal in the main thread, else by a thread."""
        main = threading.current_thread() is threading.main_thread()
        with self.limit_time_by_signal() if main and signal.getsignal(signal.SIGALRM) is not None else self.limit_time_by_thread():
            yield

    @contextlib.contextmanager
    def limit_time_by_signal(self) -> Iterator[None]:
        """Limit the main thread's time by a signal, which also ends waits in system calls."""

        def on_alarm(number: int, frame: FrameType | None) -> None:
            if not self.active:
                return
            if remaining := self.is_over():
                signal.setitimer(signal.ITIMER_REAL, remaining)
                return
            signal.setitimer(signal.ITIMER_REAL, _RETRY_SECONDS)
            if self.expire(frame):
                raise _Expired

        def on_interrupt(number: int, frame: FrameType | None) -> None:
            repeated, self.interrupted = self.interrupted, True
            if repeated and on_stuck is not None:
                on_stuck(None)
            if callable(before):
                before(number, frame)

        before = signal.getsignal(signal.SIGINT)
        alarm = signal.signal(signal.SIGALRM, on_alarm)
        if callable(before):
            signal.signal(signal.SIGINT, on_interrupt)
        remaining, interval = signal.setitimer(signal.ITIMER_REAL, self.seconds)
        try:
            yield
        finally:
            self.active = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, alarm)
            if callable(before):
                signal.signal(signal.SIGINT, before)
            if remaining:  # restore the caller's timer
                signal.setitimer(signal.ITIMER_REAL, max(1e-6, remaining - (time.perf_counter() - self.begun)), interval)

    @contextlib.contextmanager
    def limit_time_by_thread(self) -> Iterator[None]:
        """Limit the time of another thread, by a thread that watches it."""
        over, lock, is_raised = threading.Event(), threading.Lock(), False

        def watch() -> None:
            nonlocal is_raised
            wait = self.seconds
            while not over.wait(wait):
                wait = self.is_over()
                if wait:
                    continue
                wait = _RETRY_SECONDS
                with lock:
                    if self.expire(sys._current_frames().get(self.thread)):
                        is_raised = True
                        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.thread), ctypes.py_object(_Expired))

        watcher = threading.Thread(target=watch, daemon=True, name="time of a specification")
        watcher.start()
        try:
            yield
        finally:
            with lock:
                self.active = False
                if is_raised:
                    _discard_pending_exception()
            over.set()


def _discard_pending_exception() -> None:
    """Catch an asynchronous exception that is perhaps pending in this thread.

    Clearing it would leave CPython 3.11's flag of pending work set for all threads: each function call that a debugger,
    coverage or Hypothesis traces would then repeat its first instruction for ever.
    """
    try:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(threading.get_ident()), ctypes.py_object(_Expired))
        for _ in range(1000):  # it is raised at the next backward jump
            pass
    except _Expired:
        pass


@contextlib.contextmanager
def user_call(
    subject: str, function: Callable[..., object] | None = None, path: str | None = None, environment: bool = True
) -> Iterator[UserCall]:
    """Guard a call of a user's function, or the import of the file `path`; a nested one does nothing.

    Args:
        subject: the function or file, for messages.
        function: the function to call.
        path: the file to import.
        environment: restore `os.environ`.

    Raises:
        CuirError: X119 for what ends the process, X125 for what takes too long. Ordinary exceptions pass.
    """
    if (outer := getattr(_local, "call", None)) is not None:
        yield outer
        return
    if (refusal := (_refusals.get() or {}).get(id(function))) is not None:
        raise refusal[1]
    call = UserCall(subject, function, path)
    state, process = GlobalState(environment), os.getpid()
    _local.call = call
    try:
        try:
            with call.limit_time(), _refuse_ends(call), redirect_prints():
                yield call
        finally:
            if os.getpid() != process:  # a child process of the function
                _real["_exit"](0)
            call.active, _local.call = False, None
            call.drawn = state.restore()
    except (Exception, SystemExit, GeneratorExit, KeyboardInterrupt, _Ended, _Expired) as error:
        if call.interrupted:
            raise KeyboardInterrupt from None
        _raise_for(call, error)
        raise
    if call.interrupted:  # and the function swallowed it
        raise KeyboardInterrupt
    _raise_for(call, None)


def _raise_for(call: UserCall, error: BaseException | None) -> None:
    """Raise CuirError for a call that ended the process or took too long.

    Even if the function swallowed the exceptions that were to stop it.
    """
    if call.given_up:
        raise refuse_function(call.function, call.over_time(call.expired)) from None
    if call.ended is not None:
        raise refuse_function(call.function, call.ending(*call.ended)) from None
    if isinstance(error, (SystemExit, KeyboardInterrupt, GeneratorExit)):
        description = f"{type(error).__name__}({error.code!r})" if isinstance(error, SystemExit) else type(error).__name__
        raise refuse_function(call.function, call.ending(f"it raises {description}", call.place(error))) from None


# ---- what ends a process at once
_real: dict[str, Callable[..., object]] = {name: getattr(os, name) for name in (*_ENDERS, "kill")} | {"raise_signal": signal.raise_signal}
_lock, _depth = threading.Lock(), 0
_home = os.getpid()


def end_at_once(code: int) -> NoReturn:
    """End this process, as `os._exit` does outside of a user's function."""
    _real["_exit"](code)
    raise AssertionError


def _refuse(name: str, *arguments: Any, **named: Any) -> Any:
    """Refuse a function that would end this process; call it in any other process.

    It stands in for the function itself, so references that users stored are refused too.
    """
    is_this_process = name != "kill" or (arguments and arguments[0] in (0, -1, os.getpid(), -os.getpgrp()))
    if os.getpid() != _home or not is_this_process or (name in ("kill", "raise_signal") and arguments[-1:] == (0,)):
        return _real[name](*arguments, **named)
    call = getattr(_local, "call", None)
    module = "signal" if name == "raise_signal" else "os"
    if call is not None:
        call.ended = f"it calls {module}.{name}", call.at(sys._getframe(1))
    raise _Ended(f"{module}.{name} in a specification")


_stand_ins = {name: functools.partial(_refuse, name) for name in _real}


@contextlib.contextmanager
def _refuse_ends(call: UserCall) -> Iterator[None]:
    """Replace the functions that end a process at once, while some thread is in a user's function."""
    global _depth, _home
    with _lock:
        _depth += 1
        if _depth == 1:
            _home = os.getpid()
            _install(_stand_ins)
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if not _depth:
                _install(_real)


def _install(functions: Mapping[str, Callable[..., object]]) -> None:
    for name, function in functions.items():
        setattr(signal if name == "raise_signal" else os, name, function)
