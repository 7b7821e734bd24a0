"""Watches on expressions: observers of the values that runs compute.

Code without a watch is not changed.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from ..checking.checked import Checked
from ..checking.kernel_results import ResultKey
from ..syntax.nodes import Expr
from .machine import Evaluate


class Watch(Protocol):
    """Observer of the values of some expressions of one kernel.

    key: identifies the observed expressions in the cache of compiled code.
    """

    @property
    def key(self) -> Hashable: ...

    def watch(self, e: Expr, run: Evaluate) -> Evaluate:
        """Return the code of an expression, which also reports its values if it is watched."""


_ON: ContextVar[bool] = ContextVar("watching", default=False)


@contextmanager
def watch_runs() -> Iterator[None]:
    """Report watched expressions, in runs inside the context, of kernels that have a watch."""
    token = _ON.set(True)
    try:
        yield
    finally:
        _ON.reset(token)


_WATCH = ResultKey[Watch]("watch")


def set_watch(checked: Checked, watch: Watch) -> None:
    """Set a kernel's watch, for code that is compiled from now on."""
    checked.results.store(_WATCH, watch)


def get_watch(checked: Checked) -> Watch | None:
    """Return the kernel's watch inside of `watch_runs`, else None."""
    return find_watch(checked) if _ON.get() else None


def find_watch(checked: Checked) -> Watch | None:
    """Return the watch that a kernel was given, if any."""
    return checked.results.find(_WATCH)
