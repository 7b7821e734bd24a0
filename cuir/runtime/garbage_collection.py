"""Delay of full garbage collections, which walk through every object of PyTorch and this package."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

_NEVER = 1 << 30  # collections of the middle generation before a full one

_LOCK = threading.Lock()
_depth = 0
_thresholds: tuple[int, int, int] = (0, 0, 0)


@contextlib.contextmanager
def without_full_collections() -> Iterator[None]:
    """Run a block of some seconds without full collections; younger objects are collected as before."""
    global _depth, _thresholds
    with _LOCK:
        _depth += 1
        if _depth == 1:
            _thresholds = gc.get_threshold()
            gc.set_threshold(_thresholds[0], _thresholds[1], _NEVER)
    try:
        yield
    finally:
        with _LOCK:
            _depth -= 1
            if _depth == 0 and gc.get_threshold()[2] == _NEVER:  # else the caller's code has set others
                gc.set_threshold(*_thresholds)


__all__ = ["without_full_collections"]


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Run a block that makes many objects and hardly a cycle without any collection: each would walk through the process."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
