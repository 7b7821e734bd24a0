"""Watches on expressions: observers of the values that runs compute.

Code without a watch is not changed.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from ..checking.checked import Checked
from ..syntax.nodes import Expr
from .machine import Evaluate


class Watch(Protocol):
    """Sees the values of some expressions of one kernel; key: which, so that code for others is not taken for it."""

    @property
    def key(self) -> Hashable: ...

    def watched(self, e: Expr, run: Evaluate) -> Evaluate:
        """The code of an expression, which also shows its values if it is watched."""


_ON: ContextVar[bool] = ContextVar("watching", default=False)


@contextmanager
def watching() -> Iterator[None]:
    """Runs inside show watched expressions of kernels that have a watch."""
    token = _ON.set(True)
    try:
        yield
    finally:
        _ON.reset(token)


def set_watch(checked: Checked, watch: Watch) -> None:
    """Give a kernel its watch; a new one takes the place of an old one for code that is made later."""
    checked.made[Watch] = watch


def watch_of(checked: Checked) -> Watch | None:
    """The watch of a kernel where runs are watched."""
    watch: Watch | None = checked.made.get(Watch) if _ON.get() else None
    return watch
